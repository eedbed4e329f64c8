"""Smooths a curve over its rows, never over its drawing: the debiased moving average of TensorBoard.

It runs along the path of segments: a new segment continues the average at its fork step, so a dead branch and the
one that took its place leave the shared past in the same direction. NaN and the infinities are passed over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from stabilitybackend.storage.archive.aggregates import Aggs
from stabilitybackend.storage.archive.series import Extent, SeriesKey
from stabilitybackend.storage.query.downsampling import ONE_BLOCK, Drawn, SeriesReader
from stabilitybackend.storage.query.lineage_view import LineageView

__all__ = ["MAX_WEIGHT", "scan", "smooth_line"]

#: Greatest weight of the past. At 0.9999 a value is remembered for some 10,000 rows.
MAX_WEIGHT = 0.9999
#: Rows of one matrix product. 16 was the fastest of 8 to 64: 2.5 ms for a million rows, where a loop
#: takes 160 ms and Polars' ewm_mean 4.7 ms.
_BLOCK_ROWS = 16
#: Earlier rows are left out once their share of the average is below this fraction; rounding alone costs 1e-16.
_FORGOTTEN = 1e-14
#: Where rows are dense in one place and sparse in another: this many times the expected stretch is read.
_STRETCH = 1.5


@dataclass(slots=True)
class _Wanted:
    """The steps of one segment at which its average is asked for.

    Attributes:
        last: no later step is.
        demands: (step, rows): from that step on the average must be right; so many finite rows before it are enough, if
            the values before them were no greater.
        read_from: rows before this step are left out; None: the segment counts from its first step on, and so does
            its parent.
    """

    last: int
    demands: list[tuple[int, int]] = field(default_factory=list)
    read_from: int | None = None


@dataclass(frozen=True, slots=True)
class _Average:
    """The average after each finite row of one segment.

    Attributes:
        steps: of the finite rows. sums: the biased average after each of them.
        start: the biased average before the first of them. rows_before: finite rows that are in ``start``.
    """

    steps: NDArray[np.int64]
    sums: NDArray[np.float64]
    start: float
    rows_before: int

    def at(self, step: int) -> tuple[float, int]:
        """Return the biased average after ``step`` and how many rows are in it."""
        index = int(np.searchsorted(self.steps, step, side="right"))
        return (float(self.sums[index - 1]) if index else self.start), self.rows_before + index

    def debiased(self, steps: NDArray[np.int64], weight: float) -> NDArray[np.float64]:
        """Return the average at ``steps``, NaN before the first finite row."""
        index = np.searchsorted(self.steps, steps, side="right")
        rows = index + self.rows_before
        # 1 - weight ** rows, without the cancellation that this has for weights near 1
        share = -np.expm1(rows * math.log(weight))
        sums = np.append(self.start, self.sums)[index]
        result: NDArray[np.float64] = np.divide(sums, share, out=np.full(len(steps), np.nan), where=rows > 0)
        return result


def scan(values: NDArray[np.float64], weight: float, start: float) -> NDArray[np.float64]:
    """Return ``y[i] = weight * y[i - 1] + values[i]`` with ``y[-1] = start``.

    Blocks of rows are one product with a triangle of powers of ``weight`` (none above 1: no overflow); the output
    of a block into the next follows the same recurrence, 16 times shorter.
    """
    blocks = len(values) // _BLOCK_ROWS
    head = np.empty(0)
    if blocks > 1:
        distance = np.subtract.outer(np.arange(_BLOCK_ROWS), np.arange(_BLOCK_ROWS))
        triangle = np.where(distance >= 0, weight ** np.maximum(distance, 0), 0.0)
        inner = values[: blocks * _BLOCK_ROWS].reshape(blocks, _BLOCK_ROWS) @ triangle.T
        ends = scan(inner[:, -1].copy(), weight**_BLOCK_ROWS, start)
        inner += np.append(start, ends[:-1])[:, None] * weight ** np.arange(1, _BLOCK_ROWS + 1)
        head = inner.ravel()
        start = float(head[-1])
    tail = []
    for value in values[len(head) :].tolist():
        start = weight * start + value
        tail.append(start)
    return np.append(head, tail)


def smooth_line(
    store: SeriesReader, lineage: LineageView, weight: float, line: Sequence[Drawn]
) -> list[NDArray[np.float64] | None]:
    """Return the average at the drawn steps of each piece of one line (a metric of one rank); None for strays.

    The same as over all finite rows from the run's first step on, to about 1e-14: of a long past only the part that
    still counts is read. NaN is before the first finite row.

    Args:
        store: all of the run, also where only new points are drawn.
        weight: of the past, > 0 and <= MAX_WEIGHT.
    """
    curves = [drawn for drawn in line if not drawn.piece.key.stray]
    averages = _Smoother(store, lineage, weight, curves[0].piece.key).averages(curves) if curves else {}
    return [
        None if drawn.piece.key.stray else averages[drawn.piece.key.segment].debiased(drawn.steps, weight)
        for drawn in line
    ]


class _Smoother:
    """Smooths one line; ``like`` is any of its keys."""

    def __init__(self, store: SeriesReader, lineage: LineageView, weight: float, like: SeriesKey) -> None:
        self._store = store
        self._lineage = lineage
        self._weight = weight
        self._like = like
        #: Finite rows after which the past has no weight, unless it was greater than the later rows.
        self._memory_rows = math.ceil(math.log(_FORGOTTEN) / math.log(weight))

    def averages(self, line: Sequence[Drawn]) -> dict[int, _Average]:
        """Return by segment the averages that the drawn pieces ask for."""
        wanted: dict[int, _Wanted] = {}
        for drawn in line:
            self._want(wanted, drawn.piece.key.segment, int(drawn.steps[-1]), (int(drawn.steps[0]), self._memory_rows))
        for segment in range(max(wanted), -1, -1):  # children before their parents
            if segment in wanted:
                self._plan(segment, wanted)
        averages: dict[int, _Average] = {}
        for segment in sorted(wanted):
            averages[segment] = self._average(segment, wanted[segment], averages)
        return averages

    @staticmethod
    def _want(wanted: dict[int, _Wanted], segment: int, last: int, demand: tuple[int, int]) -> None:
        known = wanted.setdefault(segment, _Wanted(last))
        known.last = max(known.last, last)
        known.demands.append(demand)

    def _key(self, segment: int) -> SeriesKey:
        return replace(self._like, segment=segment)

    def _plan(self, segment: int, wanted: dict[int, _Wanted]) -> None:
        """Note the first step to read of a segment, and the need for its parent."""
        here, key = wanted[segment], self._key(segment)
        extent = self._store.extent(key)
        here.read_from = None if extent is None else self._start(key, extent, here.demands)
        parent = self._lineage.parents[segment]
        if here.read_from is None and parent is not None:
            first = min(step for step, _ in here.demands)
            rows = max(rows for _, rows in here.demands)
            if extent is not None and first >= extent.first_step:
                rows -= self._finite_rows(key, extent.first_step, min(first, extent.last_step))
            fork = self._lineage.forks[segment]
            self._want(wanted, parent, fork, (fork, max(rows, 1)))

    def _average(self, segment: int, here: _Wanted, averages: dict[int, _Average]) -> _Average:
        rows = self._store.rows(self._key(segment), here.read_from, here.last)
        finite = np.isfinite(rows.values)
        steps, values = (rows.steps, rows.values) if finite.all() else (rows.steps[finite], rows.values[finite])
        start, before = 0.0, 0  # also where the past is forgotten: as if the run began there
        parent = self._lineage.parents[segment]
        if here.read_from is None and parent is not None:
            start, before = averages[parent].at(self._lineage.forks[segment])
        return _Average(steps, scan(values * (1.0 - self._weight), self._weight, start), start, before)

    # --- the end of the past -------------------------------------------------------------------------------------

    def _start(self, key: SeriesKey, extent: Extent, demands: Sequence[tuple[int, int]]) -> int | None:
        """Return a step from which on reading is enough for all demands; None: all of the segment counts."""
        starts = []
        for first, rows in sorted(demands):
            start = self._forgets_before(key, extent, min(first, extent.last_step), rows)
            if start is None:
                return None
            starts.append(start)
        return min(starts)

    def _forgets_before(self, key: SeriesKey, extent: Extent, first: int, needed: int) -> int | None:
        """Return a step so that the rows from there to ``first`` outweigh all that was before, whatever its size.

        A spike of 1e30 is remembered longer than a loss of 2.

        Args:
            needed: finite rows before ``first`` that are still missing, at least.
        """
        stride = (extent.last_step - extent.first_step + 1) / extent.rows
        read_from = math.floor(first - _STRETCH * stride * needed)
        if read_from <= extent.first_step:
            return None
        near = self._store.aggregates(key, read_from, first, ONE_BLOCK)
        rows = int(near["count"].sum())
        if rows < needed:
            return None
        recent = math.floor(first - _STRETCH * stride / (1.0 - self._weight))
        size = _largest(self._store.aggregates(key, max(recent, read_from), first, ONE_BLOCK))
        since = rows + max(self._memory_rows - needed, 0)
        return read_from if self._outweighed(key, read_from, since, size) else None

    def _outweighed(self, key: SeriesKey, step: int, since: int, size: float) -> bool:
        """Return whether the path of a segment before ``step`` has no weight ``since`` finite rows later.

        Args:
            size: of the values that make up most of the average then.
        """
        for part in reversed(self._lineage.path_of(key.segment)):
            share = math.exp(since * math.log(self._weight))
            if share == 0.0:
                return True  # no number is so large
            there = self._key(part.segment)
            extent = self._store.extent(there)
            last = step - 1 if part.last is None else part.last
            if extent is None or extent.first_step > last:
                continue
            # Most times the whole segment, dead end included, is enough, and no row is read for it.
            for end in dict.fromkeys((extent.last_step, min(extent.last_step, last))):
                past = self._store.aggregates(there, extent.first_step, end, ONE_BLOCK)
                if share * _largest(past) <= _FORGOTTEN * size:
                    break
            else:
                return False
            since += max(int(past["count"].sum()) - max(end - last, 0), 0)
        return True

    def _finite_rows(self, key: SeriesKey, first: int, last: int) -> int:
        return int(self._store.aggregates(key, first, last, ONE_BLOCK)["count"].sum())


def _largest(aggs: Aggs) -> float:
    """Return the greatest magnitude of a finite value, 0 where there is none."""
    some = aggs[aggs["count"] > 0]
    return max((float(np.abs(some[name]).max()) for name in ("min", "max")), default=0.0) if len(some) else 0.0
