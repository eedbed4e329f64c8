"""Rows that are given at once: each detector is then exactly what it is when they come one by one."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import ClassVar

import pytest

from stabilitybackend.judging.detectors.engine.bank import DetectorBank
from stabilitybackend.judging.detectors.engine.base import Detector, Finding, Mark, Point, fresh
from stabilitybackend.judging.detectors.engine.row_blocks import QuietRows
from stabilitybackend.judging.detectors.registry import DETECTORS

USUAL = {name: make for name, make in DETECTORS.items() if not make().every_rank}
SETS = ("web", "code", "books")
NAMES = (
    "loss", "train/loss", "grad_norm", "lr", "batch_size", "tokens_per_s", "step_time_s",
    *(f"loss/{name}" for name in SETS), "ratio/web", "ratio/code", "mixture.ratio/web", "mixture.ratio/code",
)  # fmt: skip


class Job:
    """Logs a run that is quiet for a while, then is not: everything by chance, from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.step, self.time, self.level, self.rate, self.share = 0, 1e9, 2.5, 3e-4, 0.6
        self.batches = [self.rng.gauss(0, 0.03) for _ in range(192)]
        every = self.rng.choice([1, 1, 1, 10])
        self.every, self.seconds = every, every * self.rng.choice([0.0, 0.01, 1.0])
        declares, self.repeats = seed % 3 == 0, seed % 4 == 1
        self.names = [
            name
            for name in NAMES
            if (declares or not name.startswith("mixture")) and (self.rng.random() < 0.6 or name in ("loss", "lr"))
        ]

    def rows(self, count: int) -> tuple[list[str], list[int], list[float], dict[str, list[float]]]:
        """Return rows of one mood: calm ones mostly."""
        rng = self.rng
        mood = rng.choice(
            ["calm"] * 6 + ["spike", "climb", "nan", "repeat", "shift", "lr", "mix", "slow", "zero", "gap"]
        )
        begin = rng.randrange(count)
        if mood == "gap":
            self.step += 40 * self.every
        columns: dict[str, list[float]] = {name: [] for name in self.names}
        steps, times = [], []
        for at in range(count):
            on = at >= begin
            if mood == "climb" and on:
                self.level *= 1.002
            if mood == "shift" and at == begin:
                self.level *= rng.choice([0.9, 1.1])
            if mood == "lr" and on:
                self.rate *= rng.choice([1.0, 1.02, 1.5, 0.7])
            if mood == "mix" and at == begin:
                self.share = rng.choice([0.3, 0.6, 0.8])
            noise = (
                self.batches[self.step // self.every % 192] if self.repeats or mood == "repeat" else rng.gauss(0, 0.03)
            )
            loss = self.level + noise + (3.0 if mood == "spike" and begin <= at < begin + 6 else 0.0)
            seconds = 0.5 * (1.6 if mood == "slow" and on else 1.0) * (1 + rng.random() / 50)
            share = self.share + rng.gauss(0, 0.005)
            values = {
                "loss": loss, "train/loss": loss, "grad_norm": math.exp(rng.gauss(0, 0.2)), "lr": self.rate,
                "batch_size": 512.0, "tokens_per_s": 4096 / seconds, "step_time_s": seconds, "ratio/web": share,
                "ratio/code": 1 - share, "mixture.ratio/web": share, "mixture.ratio/code": 1 - share,
            }  # fmt: skip
            values |= {f"loss/{name}": loss * (0.8 + 0.2 * i) + rng.gauss(0, 0.05) for i, name in enumerate(SETS)}
            if mood in ("nan", "zero") and on and rng.random() < 0.5:
                odd = rng.choice([math.nan, math.inf, -math.inf, 1e300]) if mood == "nan" else 0.0
                values[rng.choice(self.names)] = odd
            steps.append(self.step)
            times.append(self.time)
            for name, column in columns.items():
                column.append(values[name])
            self.step += self.every
            self.time += self.seconds
        return self.names, steps, times, columns

    def mark(self) -> Mark:
        """Return what may happen between two blocks of rows: another process goes on, or a mixture is declared."""
        if self.rng.random() < 0.3:
            shares = {"web": 0.6, "code": 0.4}
            return Mark("mixture", self.step, self.time, "declared", {"shares": shares, "unit": "tokens"})
        left = {"loss": [(self.step + i * self.every, self.level + 0.01 * i) for i in range(40)]}
        data = {"fork_step": self.step - 1, "cause": "rollback", "reason": "", "changes": {}, "left_behind": left}
        return Mark("fork", self.step, self.time, "the run went back", {**data, "last_step": self.step + 40})


def fed(bank: DetectorBank, names: list[str], steps: list[int], times: list[float],
        columns: dict[str, list[float]], size: int) -> Iterator[tuple[float, Finding]]:  # fmt: skip
    """Feed rows, ``size`` at a time."""
    for at in range(0, len(steps), size):
        part = slice(at, at + size)
        wanted = {name: column[part] for name, column in columns.items() if bank.wants(name)}
        yield from bank.feed_rows(names, steps[part], times[part], wanted)


@pytest.mark.parametrize("seed", range(12))
def test_rows_given_at_once_find_and_leave_what_the_same_rows_one_by_one_do(seed: int) -> None:
    job = Job(seed)
    whole, single = (DetectorBank(USUAL, snapshot_every_steps=job.rng.choice([97, 1_024])) for _ in range(2))
    single._every = whole._every
    for _ in range(16):
        rows = job.rows(job.rng.choice([16, 60, 200]))
        assert [*fed(whole, *rows, 512)] == [*fed(single, *rows, 1)]
        assert whole.state() == single.state()
        if job.rng.random() < 0.2:
            mark = job.mark()
            assert whole.mark(mark) == single.mark(mark)
        if job.rng.random() < 0.1:
            back = job.step - job.every * job.rng.randrange(1, 60)
            assert whole.rewind(back) == single.rewind(back)
            job.step = whole.last_step + job.every
    assert whole.snapshot_steps() == single.snapshot_steps()
    assert whole.failures == single.failures == {}


class Counting(Detector):
    """Counts points: by ``update`` one at a time, by ``take_quiet`` seven at a time, and raises at the value 13."""

    name: ClassVar[str] = "counting"
    kinds: ClassVar[tuple[str, ...]] = ("spike",)
    points: int = 0
    seen: list[int] = fresh(list)

    def wants(self, metric: str) -> bool:
        return metric in ("a", "b")

    def update(self, point: Point) -> list[Finding]:
        self.points += 1
        if point.value == 13.0:
            raise ValueError("13 is no value")
        self.seen.append(self.context.step)
        return []

    def take_quiet(self, rows: QuietRows, start: int, stop: int) -> int:
        stop = min(stop, start + 7)
        if any(13.0 in values[start:stop] for values in rows.columns.values()):
            return start
        self.points += sum(metric in ("a", "b") for metric in rows.columns) * (stop - start)
        return stop


class CountingOtherwise(Counting):
    """Another ``update``: what its base takes at once would pass it by."""

    def update(self, point: Point) -> list[Finding]:
        self.points += 100
        return super().update(point)


def counted(make: type[Counting], values: list[float]) -> Counting:
    bank = DetectorBank({"counting": make})
    bank.feed_rows(["a", "b"], list(range(len(values))), [float(i) for i in range(len(values))],
                   {"a": values, "b": values})  # fmt: skip
    [found] = bank.detectors.values()
    assert isinstance(found, Counting)
    return found


def test_a_detector_gets_each_row_once_and_sees_the_context_of_its_row() -> None:
    found = counted(Counting, [1.0] * 50)
    assert found.points == 100
    assert found.seen == [step for step in range(0, 50, 8) for _ in "ab"]


def test_a_detector_that_raises_among_rows_given_at_once_starts_afresh_with_the_next_metric() -> None:
    found = counted(Counting, [1.0] * 20 + [13.0] + [1.0] * 20)
    assert found.points == 2 * 20


def test_a_subclass_with_another_update_gets_each_row_by_it() -> None:
    assert counted(CountingOtherwise, [1.0] * 50).points == 2 * 50 * 101
