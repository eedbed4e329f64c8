"""Rows of several ranks, put together by step: a step that all ranks have passed is handed out.

Whoever compares ranks needs the same step of all of them, and ranks report at different times. Steps that a rank logs
alone, metrics that one rank alone logs, and runs of one rank cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.name_sets import key_of
from stabilitybackend.stateful import Stateful, fresh

#: Metrics that are compared, and ranks times metrics: what comes later is not compared. A cell is some 100 bytes of
#: state.
MAX_METRICS = 16
MAX_CELLS = 16_384
#: Names that one rank alone logs that are remembered.
MAX_ALONE = 1_024
#: Rows of one rank that wait for the others. A rank that is further behind is not waited for.
LAG_ROWS = 256
#: So many rows in a row behind a rank's newest step mean that its steps began again, not that they are late.
LATE_ACCEPTED_AFTER = 32

__all__ = ["MAX_METRICS", "RankRows", "StepRow"]


@dataclass(slots=True)
class StepRow:
    """One step of all ranks.

    Args:
        step, time: of it; the time is that of the last rank, unix seconds.
        values: (ranks, metrics); NaN where a rank did not log the metric, infinite where it logged NaN or infinity.
    """

    step: int
    time: float
    values: NDArray[np.float64]


@dataclass(slots=True)
class _Block:
    """Rows that wait: steps and times (n,), places of their ranks, (n,) or (1,), and of metrics (m,), values (m, n)."""

    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    ranks: NDArray[np.int64]
    metrics: NDArray[np.int64]
    values: NDArray[np.float64]

    def at(self, chosen: slice | NDArray[np.bool_]) -> _Block:
        ranks = self.ranks if len(self.ranks) == 1 else self.ranks[chosen]
        return _Block(self.steps[chosen], self.times[chosen], ranks, self.metrics, self.values[:, chosen])

    def split(self, limit: int) -> tuple[_Block | None, _Block | None]:
        """Return the rows up to a step, and those after it; None for none."""
        if len(self.ranks) == 1:
            count = int(self.steps.searchsorted(limit, "right"))
            due = self if count == len(self.steps) else self.at(slice(0, count)) if count else None
            return due, None if due is self else self.at(slice(count, None))
        is_due = self.steps <= limit
        if is_due.all():
            return self, None
        return (self.at(is_due), self.at(~is_due)) if is_due.any() else (None, self)


class RankRows(Stateful):
    """Collects rows. However they are cut into blocks, the same steps are handed out.

    Attributes:
        ranks, metrics: number and name -> place, in the order in which they came.
        dropped: values that were not compared, for they came late or beyond a bound.
    """

    ranks: dict[int, int] = fresh(dict)
    metrics: dict[str, int] = fresh(dict)
    dropped: int = 0
    #: Metric -> the only rank that logs it.
    _alone: dict[str, int] = fresh(dict)
    _blocks: list[_Block] = fresh(list)
    #: By place of the rank: its newest step, its rows that wait, whether it is waited for, its late rows in a row.
    _newest: NDArray[np.int64] = fresh(lambda: np.zeros(0, np.int64))
    _rows: NDArray[np.int64] = fresh(lambda: np.zeros(0, np.int64))
    _awaited: NDArray[np.bool_] = fresh(lambda: np.zeros(0, np.bool_))
    _late: NDArray[np.int64] = fresh(lambda: np.zeros(0, np.int64))
    #: Up to which step rows were handed out.
    _done: int = -1

    def __init__(self) -> None:
        super().__init__()
        #: Metrics of a row -> as of ``_metrics_of``.
        self._known: dict[tuple[str, ...], tuple[NDArray[np.int64] | None, NDArray[np.int64]]] = {}

    def restored(self) -> None:
        self._known = {}
        for name in ("_newest", "_rows", "_awaited", "_late"):
            setattr(self, name, getattr(self, name).copy())  # what was read can't be written to

    def restart(self, step: int) -> None:
        """Go on at a step, which may be an earlier one."""
        self._done = step - 1
        self._newest[:], self._rows[:], self._late[:] = self._done, 0, 0
        self._blocks = []

    def add(
        self, names: Sequence[str], steps: NDArray[np.int64], times: NDArray[np.float64],
        values: NDArray[np.float64], ranks: Sequence[int],
    ) -> list[StepRow]:  # fmt: skip
        """Take rows and return the steps that are complete now.

        Args:
            names: of the metrics that are compared. values: (metrics, rows).
            ranks: of the rows, or the one that all are of.
        """
        if len(ranks) == 1 and len(self.ranks) < 2 and ranks[0] in (self.ranks or ranks):
            self.ranks.setdefault(ranks[0], 0)
            return []  # no other rank to compare it with
        if len(ranks) > 1 and self._is_news(names):
            one = [np.arange(len(steps)) == at for at in range(len(steps))]
            parts = [(steps[at], times[at], values[:, at], [rank]) for at, rank in zip(one, ranks, strict=True)]
            return [row for part in parts for row in self.add(names, *part)]
        places = np.array([self._place_of(rank) for rank in ranks], np.int64)
        chosen, metrics = self._metrics_of(names, ranks)
        block = _Block(steps, times, places, metrics, values if chosen is None else values[chosen])
        if len(ranks) == 1 and len(steps) > 1 and bool((steps[1:] < steps[:-1]).any()):
            return [row for at in range(len(steps)) for row in self._take_new(block.at(slice(at, at + 1)))]
        return self._take_new(block)

    def _is_news(self, names: Sequence[str]) -> bool:
        """Return whether ranks or a metric are new: the rows that it begins with depend on their order then."""
        if len(self.ranks) < 2:
            return True
        return len(self.metrics) < self._most() and not self.metrics.keys() >= set(names)

    def _most(self) -> int:
        return min(MAX_METRICS, MAX_CELLS // max(1, len(self.ranks)))

    def _take_new(self, block: _Block) -> list[StepRow]:
        """Take the rows that do not come late. So many late ones in a row are steps that began again."""
        ranks, steps = block.ranks, block.steps
        expected = np.maximum(self._newest[ranks], self._done + 1)
        if (steps >= expected).all():
            return self._take(block)
        if len(ranks) > 1:
            return [row for at in range(len(steps)) for row in self._take_new(block.at(np.arange(len(steps)) == at))]
        rank, late = int(ranks[0]), int(steps.searchsorted(expected[0]))
        begin = LATE_ACCEPTED_AFTER - 1 - int(self._late[rank])
        self._late[rank] += late
        if begin < late:
            self.restart(int(steps[begin]))  # a stray huge step must not make us deaf
            late = begin
        self.dropped += late
        return self._take(block.at(slice(late, None))) if late < len(steps) else []

    def _place_of(self, rank: int) -> int:
        """Return the place of a rank. New ones come one by one: room is made for twice as many."""
        place = self.ranks.setdefault(rank, len(self.ranks))
        if place >= len(self._newest):
            more = max(8, place)
            self._newest = np.append(self._newest, np.full(more, self._done))
            self._rows, self._late = np.append(self._rows, [0] * more), np.append(self._late, [0] * more)
            self._awaited = np.append(self._awaited, [False] * more)
        return place

    def _metrics_of(
        self, names: Sequence[str], ranks: Sequence[int]
    ) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:
        """Return which of the names are compared, None for all, and the places of these metrics."""
        key = key_of(names)
        known = self._known.get(key)
        if known is None:
            places = [self._metric_of(name, ranks) for name in names]
            chosen = [at for at, place in enumerate(places) if place >= 0]
            at, of = np.array(chosen, np.int64), np.array([places[one] for one in chosen], np.int64)
            known = (None if len(chosen) == len(names) else at, of)
            settled = len(self.metrics) >= self._most() or len(chosen) == len(names)
            if settled and len(self._known) < MAX_METRICS:
                self._known[key] = known
        return known

    def _metric_of(self, name: str, ranks: Sequence[int]) -> int:
        """Return the place of a metric, -1 for one that one rank alone logs, or too many."""
        place = self.metrics.get(name)
        if place is not None:
            return place
        first = self._alone.get(name)
        if len(ranks) > 1 or (first is not None and first != ranks[0]):
            if len(self.metrics) < self._most():
                self._alone.pop(name, None)
                return self.metrics.setdefault(name, len(self.metrics))
            self.dropped += 1
        elif len(self._alone) < MAX_ALONE:
            self._alone.setdefault(name, ranks[0])
        return -1

    def _take(self, block: _Block) -> list[StepRow]:
        self._blocks.append(block)
        ranks, count = block.ranks, len(block.steps) if len(block.ranks) == 1 else 1
        self._awaited[ranks], self._late[ranks] = True, 0
        self._newest[ranks] = block.steps[-1:] if len(ranks) == 1 else block.steps
        self._rows[ranks] += count
        found = self._complete()
        if int(self._rows[ranks].max()) > LAG_ROWS:
            # The rank is that far ahead: those that have not come to its oldest rows are not waited for.
            ahead = int(ranks[self._rows[ranks].argmax()])
            steps = np.concatenate([one.steps[one.ranks == ahead if len(one.ranks) > 1 else slice(None)]
                                    for one in self._blocks if ahead in one.ranks])  # fmt: skip
            self._awaited &= self._newest > np.sort(steps)[-LAG_ROWS - 1]
            found += self._complete()
        return found

    def _complete(self) -> list[StepRow]:
        """Hand out the steps that all awaited ranks have passed: one may log a step in several rows."""
        limit = int(self._newest[self._awaited].min()) - 1
        if limit <= self._done:
            return []
        parts = [block.split(limit) for block in self._blocks]
        self._blocks, self._done = [rest for _, rest in parts if rest is not None], limit
        due = [block for block, _ in parts if block is not None]
        for block in due:
            self._rows[block.ranks] -= len(block.steps) if len(block.ranks) == 1 else 1
        return self._rows_of(due)

    def _rows_of(self, blocks: list[_Block]) -> list[StepRow]:
        if not blocks:
            return []
        steps = np.unique(np.concatenate([block.steps for block in blocks]))
        values = np.full((len(steps), len(self.ranks), len(self.metrics)), np.nan)
        times = np.full(len(steps), -np.inf)
        for block in blocks:
            at = np.searchsorted(steps, block.steps)
            np.maximum.at(times, at, block.times)
            with_nan = np.where(np.isnan(block.values), np.inf, block.values) + 0.0  # -0.0 is 0.0
            values[at[:, None], block.ranks[:, None], block.metrics] = with_nan.T
        return [StepRow(int(step), float(time), row) for step, time, row in zip(steps, times, values, strict=True)]
