"""Stories of jobs whose steps go back for many reasons, with what the job itself knows of its curve."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from stabilityclient.wire import Frame
from support.job_frames import Job

__all__ = ["StepStory"]

#: Rows after each way of going back: an undeclared one is believed when its steps have gone on.
BELIEVED_ROWS = 12
#: Most places that a row of a job with several writers comes early or late.
MAX_WINDOW = 40
#: The same in the first rows after it went back, which are held until it is believed.
FIRST_WINDOW = 6
#: How far a stray lies behind the newest step at least.
STRAY_BEHIND = 20


@dataclass
class _Rank:
    """What one rank logs, and what it knows to be effective."""

    job: Job
    rows: list[tuple[int, dict[str, float]] | Frame] = field(default_factory=list)
    loss: dict[int, float] = field(default_factory=dict)
    strays: int = 0
    counted: Counter[int] = field(default_factory=Counter)
    tables: dict[int, float] = field(default_factory=dict)


class StepStory:
    """A job of one or two ranks: it trains, goes back by order, by its own word, without one or by a restart, and logs
    validation batches by their number, tables by their epoch, rows out of order and single low steps.

    Args:
        draw: decides. parts: what happens, at most. ranks: one or two, None: drawn.

    Attributes:
        rollbacks: how often it went back.
        what: what happened, for who reads of a failure.
    """

    def __init__(self, draw: random.Random, parts: int = 8, ranks: int | None = None) -> None:
        self._draw = draw
        ranks = draw.choice((1, 1, 2)) if ranks is None else ranks
        self._stride = draw.choice((1, 1, 1, 10))
        self._apart = draw.choice((None, None, "lr", "loss"))
        self.ranks = [_Rank(Job(rank, 1, ranks)) for rank in range(ranks)]
        self.rollbacks, self.what = 0, list[str]()
        self._starts, self._step, self._epoch = 1, 0, 0
        self._train(draw.randint(40, 80), 0)
        for number in range(draw.randint(1, parts)):
            part = draw.choice(
                ("train", "shuffled", "ordered", "declared", "undeclared", "restart", "batches", "table", "stray")
            )
            self.what.append(part)
            self._tell(part, number)

    def _tell(self, part: str, number: int) -> None:
        draw = self._draw
        if part in ("train", "shuffled"):
            self._train(draw.randint(BELIEVED_ROWS, 60), draw.randint(1, MAX_WINDOW) if part == "shuffled" else 0)
        elif part == "batches":
            for _ in range(draw.randint(2, 3)):
                for batch in range(draw.randint(1, 6)):
                    self._log(batch, "val/loss")
                self._train(BELIEVED_ROWS, 0)
        elif part == "table":
            self._epoch += 1
            self._log(self._epoch, "acc/top1")
        elif part == "stray":
            self._stray()
        else:
            self._go_back(part, number)

    def _rows(self, count: int, window: int) -> list[int]:
        steps = [self._step + self._stride * (row + 1) for row in range(count)]
        places = {step: place + self._draw.uniform(0, window) for place, step in enumerate(steps)}
        self._step = steps[-1]
        return sorted(steps, key=lambda step: places[step])

    def _train(self, count: int, window: int) -> None:
        steps = self._rows(count, window)
        for rank in self.ranks:
            for step in steps:
                value = 8 / (1 + step / 50) + self._draw.gauss(0, 0.01)
                rank.rows += [(step, row) for row in self._split({"loss": value, "lr": value / 1e4})]
                rank.loss[step] = value

    def _split(self, row: dict[str, float]) -> list[dict[str, float]]:
        """Return a row, or its metrics each alone where the job logs them apart."""
        if self._apart is None:
            return [row]
        first, second = ("lr", "loss") if self._apart == "lr" else ("loss", "lr")
        return [{first: row[first]}, {second: row[second]}]

    def _log(self, step: int, metric: str) -> None:
        rank, value = self.ranks[0], self._draw.random()
        rank.rows.append((step, {metric: value}))
        if metric == "val/loss":
            rank.counted[step] += 1
        else:
            rank.tables[step] = value

    def _stray(self) -> None:
        """One low step, at one that the job logged, and on it goes."""
        rank = self._draw.choice(self.ranks)
        low = [step for step in rank.loss if step <= self._step - STRAY_BEHIND * self._stride]
        if low:
            rank.rows.append((self._draw.choice(sorted(low)), {"loss": -1.0, "lr": -1.0}))
            rank.strays += 1
        self._train(BELIEVED_ROWS, 0)

    def _go_back(self, how: str, number: int) -> None:
        first, last = min(self.ranks[0].loss), self._step
        before = sorted(step for step in self.ranks[0].loss if first <= step < last)
        if how == "undeclared":
            before = before[:-1]  # the last step again alone is a second row of it
        to_step = self._draw.choice(before[-40:])
        self.rollbacks += 1
        self._step = to_step
        if how == "restart":
            self._starts += 1
        for rank in self.ranks:
            rank.loss = {step: value for step, value in rank.loss.items() if step <= to_step}
            rank.tables = {step: value for step, value in rank.tables.items() if step <= to_step}
            for counter in [counter for counter in rank.counted if counter > to_step]:
                del rank.counted[counter]
            if how == "restart":
                rank.job = Job(rank.job.info.rank or 0, self._starts, rank.job.info.world_size)
                rank.rows.append(rank.job.event("start"))
            elif how != "undeclared":
                order = {"command_id": f"c{number}"} if how == "ordered" else {}
                rank.rows.append(rank.job.rolled_back(to_step, f"k{number}", **order))
        told = how in ("ordered", "declared") or last - to_step > 3 * FIRST_WINDOW * self._stride
        window = self._draw.choice((0, 0, 0, FIRST_WINDOW)) if told else 0
        self._train(self._draw.randint(BELIEVED_ROWS, 60), window)

    def frames(self, longest: int = 7) -> Iterator[Frame]:
        """Return what the agent sends: the ranks in turn, frames of one to ``longest`` rows."""
        for frames in zip_longest(*(list(self._of(rank, longest)) for rank in self.ranks)):
            yield from (frame for frame in frames if frame is not None)

    def _of(self, rank: _Rank, longest: int) -> Iterator[Frame]:
        job = Job(rank.job.info.rank or 0, 1, rank.job.info.world_size)
        starts, gathered = 1, list[tuple[int, dict[str, float]]]()
        for row in [*rank.rows, None]:
            alike = isinstance(row, tuple) and (not gathered or gathered[-1][1].keys() == row[1].keys())
            if gathered and (not alike or len(gathered) >= self._draw.randint(1, longest)):
                yield job.rows([step for step, _ in gathered], _columns(gathered))
                gathered = []
            if isinstance(row, tuple):
                gathered.append(row)
            elif row is not None:
                event = row.blocks[0]
                if event.type == "start":  # type: ignore[union-attr]
                    starts += 1
                    job = Job(rank.job.info.rank or 0, starts, rank.job.info.world_size)
                    continue
                yield job.event(event.type, event.step, **event.data)  # type: ignore[union-attr]
        yield job.event("finish")


def _columns(rows: Sequence[tuple[int, dict[str, float]]]) -> dict[str, list[float]]:
    return {name: [values[name] for _, values in rows] for name in rows[0][1]}
