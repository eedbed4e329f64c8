"""The bank: a rewind gives the state of a bank that never saw the dead points, in bounded memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitybackend.judging.detectors.engine.bank import MAX_SNAPSHOTS, SNAPSHOT_EVERY_STEPS, DetectorBank
from stabilitybackend.judging.detectors.engine.base import Detector, Finding, Point, fresh
from stabilitybackend.judging.detectors.registry import DETECTORS


class Memory(Detector):
    """Holds all that it saw, so that any difference of what was fed is a difference of state."""

    name: ClassVar[str] = "memory"
    kinds: ClassVar[tuple[str, ...]] = ("spike",)

    seen: list[Point] = fresh(list)

    def wants(self, metric: str) -> bool:
        return True

    def update(self, point: Point) -> list[Finding]:
        self.seen.append(point)
        return []


class Odd(Memory):
    name: ClassVar[str] = "odd"

    def update(self, point: Point) -> list[Finding]:
        self.seen.append(object())  # type: ignore[arg-type]
        return []


class Fragile(Memory):
    name: ClassVar[str] = "fragile"

    def update(self, point: Point) -> list[Finding]:
        if point.value < 0:
            raise ZeroDivisionError("a fault of the plug-in")
        return super().update(point)


MEMORY: dict[str, Callable[[], Detector]] = {"memory": Memory}


def row(step: int, branch: int, metrics: int) -> list[Point]:
    rng = random.Random(f"{step}/{branch}")
    return [Point(step, f"m{i}", rng.random(), float(step)) for i in range(metrics)]


def feed(bank: DetectorBank, points: list[Point]) -> None:
    for point in points:
        bank.feed(point)


@settings(max_examples=120, deadline=None)
@given(
    moves=st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1)), min_size=1, max_size=6),
    every=st.integers(1, 20),
    metrics=st.integers(1, 3),
)
def test_after_any_rollbacks_the_state_is_that_of_a_bank_that_never_saw_the_dead_points(
    moves: list[tuple[int, float]], every: int, metrics: int
) -> None:
    bank = DetectorBank(MEMORY, snapshot_every_steps=every)
    effective: list[Point] = []
    for branch, (length, where) in enumerate(moves):
        head = effective[-1].step if effective else -1
        fork = int(where * (head + 1)) - 1 if branch else head
        effective = [point for point in effective if point.step <= fork]
        after = bank.rewind(fork)
        feed(bank, [point for point in effective if point.step > after])
        fresh = [point for step in range(fork + 1, fork + 1 + length) for point in row(step, branch, metrics)]
        feed(bank, fresh)
        effective += fresh
    untouched = DetectorBank(MEMORY, snapshot_every_steps=every)
    feed(untouched, effective)
    assert bank.state() == untouched.state()


def test_the_real_detectors_say_the_same_after_a_rewind_as_if_nothing_had_been() -> None:
    rng = random.Random(1)
    before = [Point(i, "loss", 2.5 + rng.gauss(0, 0.05), 0.0) for i in range(300)]
    dead = [Point(i, "loss", 6.0, 0.0) for i in range(200, 300)]
    alive = [Point(i, "loss", 2.5 + rng.gauss(0, 0.05), 0.0) for i in range(151, 400)]
    bank = DetectorBank(DETECTORS)
    feed(bank, before[:200])
    first = [finding for point in dead for finding in bank.feed(point)]
    assert first[0].onset_step == 200
    after = bank.rewind(150)
    assert after <= 150
    feed(bank, [point for point in before[:151] if point.step > after])
    assert [finding for point in alive for finding in bank.feed(point)] == []
    fresh = DetectorBank(DETECTORS)
    feed(fresh, [*before[:151], *alive])
    assert bank.state() == fresh.state()


def test_snapshots_are_bounded_close_to_the_head_and_spread_over_the_run() -> None:
    bank = DetectorBank(DETECTORS)
    for step in range(50_000):
        bank.feed(Point(step, "lr", 1.0, 0.0))
        if step % 10 == 0:
            bank.feed(Point(step, "loss", 2.0, 0.0))
    steps = bank.snapshot_steps()
    assert len(steps) <= MAX_SNAPSHOTS
    assert 49_999 - steps[-1] <= SNAPSHOT_EVERY_STEPS
    wide = [
        (a, b)
        for a, b in zip([0, *steps], steps, strict=False)
        if b - a > 0.2 * (50_000 - b) + 2 * SNAPSHOT_EVERY_STEPS
    ]
    assert wide == []


def test_a_rewind_to_before_the_first_step_gives_the_empty_state() -> None:
    bank = DetectorBank(MEMORY)
    feed(bank, [point for step in range(100) for point in row(step, 0, 1)])
    assert bank.rewind(-1) == -1
    assert bank.state() == DetectorBank(MEMORY).state()


def test_a_fork_at_or_after_the_head_changes_nothing() -> None:
    bank = DetectorBank(MEMORY)
    feed(bank, [point for step in range(100) for point in row(step, 0, 1)])
    state = bank.state()
    assert bank.rewind(99) == 99
    assert bank.rewind(500) == 99
    assert bank.state() == state


def test_late_rows_are_refused_and_counted() -> None:
    bank = DetectorBank(MEMORY)
    feed(bank, [Point(5, "m", 1.0, 0.0), Point(3, "m", 1.0, 0.0), Point(6, "m", 1.0, 0.0)])
    assert bank.late_points == 1
    assert bank.last_step == 6


def test_one_stray_huge_step_does_not_make_the_bank_deaf() -> None:
    bank = DetectorBank(DETECTORS)
    feed(bank, [Point(i, "loss", 2.0 + 0.01 * (i % 7), 0.0) for i in range(100)])
    bank.feed(Point(10**12, "loss", 2.0, 0.0))
    values = [2.0 + 0.01 * (i % 7) for i in range(100, 300)] + [5.0] * 20
    found = [f for i, value in enumerate(values) for f in bank.feed(Point(100 + i, "loss", value, 0.0))]
    assert found[0].onset_step == 300


def test_a_detector_that_raises_starts_afresh_and_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    bank = DetectorBank({"fragile": Fragile, "memory": Memory})
    feed(bank, [Point(0, "m", 1.0, 0.0), Point(1, "m", -1.0, 0.0), Point(2, "m", 1.0, 0.0), Point(3, "m", -1.0, 0.0)])
    assert bank.failures == {"fragile": 2}
    both = DetectorBank({"fragile": Fragile, "memory": Memory})
    assert bank.state() != both.state()
    assert len(caplog.records) == 1


def test_a_detector_that_remembers_what_can_not_be_saved_starts_afresh_and_stops_no_other() -> None:
    bank = DetectorBank({"odd": Odd, "memory": Memory}, snapshot_every_steps=2)
    feed(bank, [Point(step, "m", 1.0, 0.0) for step in range(3)])
    assert bank.failures == {"odd": 1}
    assert bank.rewind(1) == 1
    assert sorted(bank.detectors) == ["memory", "odd"]


def test_a_metric_that_nobody_wants_costs_no_snapshot() -> None:
    bank = DetectorBank(DETECTORS)
    feed(bank, [Point(step, "anything_else", 1.0, 0.0) for step in range(1_000)])
    assert bank.snapshot_steps() == []


def test_a_wrong_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="snapshot_every_steps is 0, expected at least 1"):
        DetectorBank(DETECTORS, snapshot_every_steps=0)


@settings(max_examples=80, deadline=None)
@given(
    blocks=st.lists(
        st.tuples(
            st.lists(st.integers(0, 60), min_size=1, max_size=40),
            st.lists(st.sampled_from(["loss", "grad_norm", "lr", "a", "b", "c", "d"]), min_size=1, unique=True),
        ),
        min_size=1,
        max_size=12,
    ),
    every=st.integers(1, 8),
)
def test_rows_given_together_say_the_same_as_rows_given_one_by_one_also_where_steps_go_back(
    blocks: list[tuple[list[int], list[str]]], every: int
) -> None:
    whole, single = (DetectorBank(DETECTORS, snapshot_every_steps=every) for _ in range(2))
    rng = random.Random(1)
    for steps, names in blocks:
        columns = {n: [rng.choice([2.0, 2.1, 9.0, float("nan")]) for _ in steps] for n in names}
        times = [float(i) for i in range(len(steps))]
        wanted = {name: column for name, column in columns.items() if whole.wants(name)}
        said = whole.feed_rows(names, steps, times, wanted)
        one_by_one = [
            said
            for i, (step, time) in enumerate(zip(steps, times, strict=True))
            for said in single.feed_rows(names, [step], [time], {n: [column[i]] for n, column in wanted.items()})
        ]
        assert said == one_by_one
    assert whole.state() == single.state()
    assert (whole.last_step, whole.late_points) == (single.last_step, single.late_points)
    assert whole.snapshot_steps() == single.snapshot_steps()
