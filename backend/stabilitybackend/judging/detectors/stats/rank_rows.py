"""Rows of several ranks, put together by step: a step that all ranks have passed is handed out.

A comparison of ranks needs the same step of all of them, and ranks report at different times. Steps that a rank logs
alone, metrics that one rank alone logs, and runs of one rank cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.name_sets import key_of
from stabilitybackend.base.stateful import Stateful, fresh

#: Metrics and ranks that are compared, and the product of both: what comes later is not. A cell is 100 bytes of state.
MAX_METRICS = 16
MAX_RANKS = 4_096
MAX_CELLS = 16_384
#: Names that one rank alone logs that are remembered.
MAX_ALONE = 1_024
#: Rows of one rank that wait for the others: two of the largest messages. A rank that is further behind is not waited
#: for. Of many ranks or metrics it is as many as hold so many values, and LEAST_LAG_ROWS at least.
LAG_ROWS = 1_024
LEAST_LAG_ROWS = 64
MOST_WAITING = 4_194_304
#: So many rows in a row behind a rank's newest step mean that its steps began again, not that they are late.
LATE_ACCEPTED_AFTER = 32

__all__ = ["MAX_METRICS", "RankRows", "StepRows"]


@dataclass(slots=True)
class StepRows:
    """Steps of all ranks, in order.

    Args:
        steps, times: (rows,); the time is that of the last rank, unix seconds.
        values: (rows, ranks, metrics); NaN where a rank did not log the metric, infinite where that was not finite.
    """

    steps: NDArray[np.int64]
    times: NDArray[np.float64]
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
        dropped: rows that were not compared, for they came late or beyond a bound.
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
        #: The newest step of the ranks that are furthest behind, and how many these are; 0: to be counted again.
        self._slowest = -1
        self._behind = 0
        #: Metrics and rank of a row, -1 for several -> as of ``_metrics_of``; forgotten where anything new is compared.
        self._known: dict[tuple[tuple[str, ...], int], tuple[NDArray[np.int64] | None, NDArray[np.int64]]] = {}
        #: Ranks of rows -> their places, which never change.
        self._placed: dict[tuple[int, ...], NDArray[np.int64]] = {}

    def restored(self) -> None:
        self._known, self._placed = {}, {}
        self._behind = 0
        for name in ("_newest", "_rows", "_awaited", "_late"):
            setattr(self, name, getattr(self, name).copy())  # what was read can't be written to

    def saved_values(self) -> list[Any]:
        """Return the state, with the rows that wait rank by rank: it does not matter in which blocks they came."""
        return [self._by_rank() if one is self._blocks else one for one in super().saved_values()]

    def _by_rank(self) -> list[_Block]:
        pieces: dict[int, list[_Block]] = {}
        for block in self._blocks:
            for at, rank in enumerate(block.ranks.tolist()):
                one = block if len(block.ranks) == 1 else block.at(np.arange(len(block.ranks)) == at)
                pieces.setdefault(rank, []).append(one)
        alike = [
            list(some) for rank in sorted(pieces) for _, some in groupby(pieces[rank], lambda b: b.metrics.tolist())
        ]
        return [
            _Block(
                np.concatenate([block.steps for block in some]), np.concatenate([block.times for block in some]),
                some[0].ranks, some[0].metrics, np.concatenate([block.values for block in some], axis=1),
            )
            for some in alike
        ]  # fmt: skip

    def restart(self, step: int) -> None:
        """Go on at a step, which may be an earlier one."""
        self._done = step - 1
        self._newest[:], self._rows[:], self._late[:] = self._done, 0, 0
        self._blocks = []
        self._behind = 0

    def add(
        self, names: Sequence[str], steps: NDArray[np.int64], times: NDArray[np.float64],
        values: NDArray[np.float64], ranks: Sequence[int], wants: Callable[[str], bool],
    ) -> list[StepRows]:  # fmt: skip
        """Take rows and return the steps that are complete now.

        Args:
            names: the metrics. values: (metrics, rows).
            ranks: of the rows, or the one that all are of.
            wants: whether a metric is compared, by its name.
        """
        if len(ranks) == 1 and len(self.ranks) < 2 and ranks[0] in (self.ranks or ranks):
            self.ranks.setdefault(ranks[0], 0)
            return []  # no other rank to compare it with
        if len(ranks) > 1 and self._is_news(names, wants):
            one = [np.arange(len(steps)) == at for at in range(len(steps))]
            parts = [(steps[at], times[at], values[:, at], [rank]) for at, rank in zip(one, ranks, strict=True)]
            return [row for part in parts for row in self.add(names, *part, wants)]
        places = self._placed.get(tuple(ranks))
        if places is None:
            if len(self.ranks) >= MAX_RANKS and any(rank not in self.ranks for rank in ranks):
                self.dropped += len(steps)
                return []
            places = self._places_of(ranks)
        chosen, metrics = self._metrics_of(names, ranks, wants)
        block = _Block(steps, times, places, metrics, values if chosen is None else values[chosen])
        if len(ranks) == 1 and len(steps) > 1 and np.count_nonzero(steps[1:] < steps[:-1]):
            return [row for at in range(len(steps)) for row in self._take_new(block.at(slice(at, at + 1)))]
        return self._take_new(block)

    def _is_news(self, names: Sequence[str], wants: Callable[[str], bool]) -> bool:
        """Return whether ranks or a metric are new: the rows that it begins with depend on their order then."""
        if (key_of(names), -1) in self._known:
            return False
        room = len(self.metrics) < self._most()
        return len(self.ranks) < 2 or (room and any(name not in self.metrics and wants(name) for name in names))

    def _most(self) -> int:
        return min(MAX_METRICS, MAX_CELLS // max(1, len(self.ranks)))

    def _lag(self) -> int:
        cells = max(1, len(self.ranks) * len(self.metrics))
        return max(LEAST_LAG_ROWS, min(LAG_ROWS, MOST_WAITING // cells))

    def _take_new(self, block: _Block) -> list[StepRows]:
        """Take the rows that do not come late. So many late ones in a row are steps that began again."""
        ranks, steps = block.ranks, block.steps
        if len(ranks) == 1:
            expected = max(int(self._newest[ranks[0]]), self._done + 1)
            if steps[0] >= expected:
                return self._take(block)
        elif not np.count_nonzero(steps < np.maximum(self._newest[ranks], self._done + 1)):
            return self._take(block)
        if len(ranks) > 1:
            return [row for at in range(len(steps)) for row in self._take_new(block.at(np.arange(len(steps)) == at))]
        rank, late = int(ranks[0]), int(steps.searchsorted(expected))
        begin = LATE_ACCEPTED_AFTER - 1 - int(self._late[rank])
        self._late[rank] += late
        if begin < late:
            self.restart(int(steps[begin]))  # a stray huge step must not make us deaf
            late = begin
        self.dropped += late
        return self._take(block.at(slice(late, None))) if late < len(steps) else []

    def _places_of(self, ranks: Sequence[int]) -> NDArray[np.int64]:
        if len(self._placed) >= MAX_RANKS:
            self._placed = {}
        places = self._placed[tuple(ranks)] = np.array([self._place_of(rank) for rank in ranks], np.int64)
        return places

    def _place_of(self, rank: int) -> int:
        """Return the place of a rank. New ones come one by one: room is made for some more."""
        place = self.ranks.get(rank)
        if place is not None and place < len(self._newest):
            return place
        place = self.ranks.setdefault(rank, len(self.ranks))
        self._known.clear()
        if place >= len(self._newest):
            more = max(8, place // 4)
            self._newest = np.append(self._newest, np.full(more, self._done))
            self._rows, self._late = np.append(self._rows, [0] * more), np.append(self._late, [0] * more)
            self._awaited = np.append(self._awaited, [False] * more)
        return place

    def _metrics_of(
        self, names: Sequence[str], ranks: Sequence[int], wants: Callable[[str], bool]
    ) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:
        """Return which of the names are compared, None for all, and the places of these metrics."""
        key = (key_of(names), ranks[0] if len(ranks) == 1 else -1)
        known = self._known.get(key)
        if known is None:
            found = [(at, self._metric_of(name, ranks)) for at, name in enumerate(names) if wants(name)]
            chosen = np.array([at for at, place in found if place >= 0], np.int64)
            places = np.array([place for _, place in found if place >= 0], np.int64)
            if len(self._known) >= MAX_CELLS:
                self._known.clear()
            known = self._known[key] = (None if len(chosen) == len(names) else chosen, places)
        return known

    def _metric_of(self, name: str, ranks: Sequence[int]) -> int:
        """Return the place of a metric, -1 for one that one rank alone logs, or too many."""
        place = self.metrics.get(name)
        if place is not None:
            return place if place < self._most() else -1
        first = self._alone.get(name)
        if len(ranks) > 1 or (first is not None and first != ranks[0]):
            if len(self.metrics) < self._most():
                self._alone.pop(name, None)
                self._known.clear()
                return self.metrics.setdefault(name, len(self.metrics))
        elif first is None and len(self._alone) < MAX_ALONE:
            self._alone[name] = ranks[0]
            self._known.clear()
        return -1

    def _take(self, block: _Block) -> list[StepRows]:
        self._blocks.append(block)
        alone = len(block.ranks) == 1
        ranks = int(block.ranks[0]) if alone else block.ranks
        if np.count_nonzero(self._awaited[ranks]) == len(block.ranks):
            self._behind -= int(np.count_nonzero(self._newest[ranks] == self._slowest))
        else:
            self._behind = 0
        self._awaited[ranks], self._late[ranks] = True, 0
        self._newest[ranks] = block.steps[-1] if alone else block.steps
        self._rows[ranks] += len(block.steps) if alone else 1
        found = self._complete() if self._behind <= 0 else []
        most = self._rows[ranks] if alone else self._rows[ranks].max()
        if most > LEAST_LAG_ROWS and most > (lag := self._lag()):
            # The rank is that far ahead: those that have not come to its oldest rows are not waited for.
            ahead = int(block.ranks[self._rows[block.ranks].argmax()])
            steps = np.concatenate([one.steps[one.ranks == ahead if len(one.ranks) > 1 else slice(None)]
                                    for one in self._blocks if ahead in one.ranks])  # fmt: skip
            self._awaited &= self._newest > np.sort(steps)[-lag - 1]
            found += self._complete()
        return found

    def _complete(self) -> list[StepRows]:
        """Hand out the steps that all awaited ranks have passed: one may log a step in several rows."""
        newest = self._newest[self._awaited]
        self._slowest = int(newest.min())
        self._behind = int(np.count_nonzero(newest == self._slowest))
        limit = self._slowest - 1
        if limit <= self._done:
            return []
        parts = [block.split(limit) for block in self._blocks]
        self._blocks, self._done = [rest for _, rest in parts if rest is not None], limit
        due = [block for block, _ in parts if block is not None]
        for block in due:
            self._rows[block.ranks] -= len(block.steps) if len(block.ranks) == 1 else 1
        return self._rows_of(due)

    def _rows_of(self, blocks: list[_Block]) -> list[StepRows]:
        if not blocks:
            return []
        shape, steps = (len(self.ranks), len(self.metrics)), blocks[0].steps[:1]
        if not all(block.steps[0] == block.steps[-1] == steps[0] for block in blocks):  # one step, as is usual
            steps = np.unique(np.concatenate([block.steps for block in blocks]))
        values, times = np.full((len(steps), *shape), np.nan), np.full(len(steps), -np.inf)
        for block in blocks:
            with_nan = np.where(np.isnan(block.values), np.inf, block.values) + 0.0  # -0.0 is 0.0
            if len(steps) == 1:
                values[0, block.ranks[:, None], block.metrics] = with_nan.T
                times[0] = max(times[0], block.times.max())
                continue
            at = np.searchsorted(steps, block.steps)
            np.maximum.at(times, at, block.times)
            values[at[:, None], block.ranks[:, None], block.metrics] = with_nan.T
        return [StepRows(steps, times, values[:, :, : self._most()])]
