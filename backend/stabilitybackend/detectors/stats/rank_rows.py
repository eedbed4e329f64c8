"""Rows of several ranks, put together by step: a step that all ranks have passed is handed out.

Whoever compares ranks needs the same step of all of them, and ranks report at different times. Steps that a rank logs
alone, metrics that one rank alone logs, and runs of one rank cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    """Rows that wait: steps, times and places of their ranks (n,), places of the metrics (m,), values (m, n)."""

    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    ranks: NDArray[np.int64]
    metrics: NDArray[np.int64]
    values: NDArray[np.float64]

    def at(self, chosen: NDArray[np.bool_]) -> _Block:
        return _Block(
            self.steps[chosen], self.times[chosen], self.ranks[chosen], self.metrics, self.values[:, chosen]
        )  # fmt: skip


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

    def restored(self) -> None:
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
        known = np.array([self._place_of(rank) for rank in ranks], np.int64)
        if len(known) < len(steps):
            known = np.full(len(steps), known[0])
        chosen = [(at, place) for at, name in enumerate(names) if (place := self._metric_of(name, ranks)) >= 0]
        block = _Block(steps, times, known, np.array([p for _, p in chosen], np.int64), values[[a for a, _ in chosen]])
        usual = bool((steps >= self._newest[known]).all()) and (len(ranks) > 1 or bool((np.diff(steps) >= 0).all()))
        if usual:
            return self._take(block)
        rows = [block.at(np.arange(len(steps)) == at) for at in range(len(steps))]
        return [step for row in rows for step in (self._take(row) if self._is_in_order(row) else [])]

    def _is_news(self, names: Sequence[str]) -> bool:
        """Return whether ranks or a metric are new: the rows that it begins with depend on their order then."""
        if len(self.ranks) < 2:
            return True
        return len(self.metrics) < self._most() and not self.metrics.keys() >= set(names)

    def _most(self) -> int:
        return min(MAX_METRICS, MAX_CELLS // max(1, len(self.ranks)))

    def _is_in_order(self, row: _Block) -> bool:
        rank, step = int(row.ranks[0]), int(row.steps[0])
        if step >= self._newest[rank]:
            return True
        self.dropped += 1
        self._late[rank] += 1
        if self._late[rank] < LATE_ACCEPTED_AFTER:
            return False
        self.restart(step)  # a stray huge step must not make us deaf
        return True

    def _place_of(self, rank: int) -> int:
        """Return the place of a rank. New ones come one by one: room is made for twice as many."""
        place = self.ranks.setdefault(rank, len(self.ranks))
        if place >= len(self._newest):
            more = max(8, place)
            self._newest = np.append(self._newest, np.full(more, self._done))
            self._rows, self._late = np.append(self._rows, [0] * more), np.append(self._late, [0] * more)
            self._awaited = np.append(self._awaited, [False] * more)
        return place

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
        block = block if int(block.steps.min()) > self._done else block.at(block.steps > self._done)
        if not len(block.steps):
            return []
        self._blocks.append(block)
        ranks = block.ranks
        self._awaited[ranks], self._late[ranks] = True, 0
        np.maximum.at(self._newest, ranks, block.steps)
        np.add.at(self._rows, ranks, 1)
        found = self._complete()
        if int(self._rows[ranks].max()) > LAG_ROWS:
            # The rank is that far ahead: those that have not come to its oldest rows are not waited for.
            ahead = int(ranks[self._rows[ranks].argmax()])
            steps = np.concatenate([one.steps[one.ranks == ahead] for one in self._blocks])
            self._awaited &= self._newest > np.sort(steps)[-LAG_ROWS - 1]
            found += self._complete()
        return found

    def _complete(self) -> list[StepRow]:
        """Hand out the steps that all awaited ranks have passed: one may log a step in several rows."""
        count = len(self.ranks)
        limit = int(self._newest[:count][self._awaited[:count]].min()) - 1
        if limit <= self._done:
            return []
        due, rest = list[_Block](), list[_Block]()
        for block in self._blocks:
            is_due = block.steps <= limit
            if is_due.all():
                due.append(block)
            elif is_due.any():
                due.append(block.at(is_due))
                rest.append(block.at(~is_due))
            else:
                rest.append(block)
        self._blocks, self._done = rest, limit
        for block in due:
            np.subtract.at(self._rows, block.ranks, 1)
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
