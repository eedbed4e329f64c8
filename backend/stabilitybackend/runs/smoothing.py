"""Smooths a curve over what was logged, never over what is drawn: the debiased moving average that TensorBoard shows.

It runs along the path of segments: a new segment goes on from the average at its fork step, so a dead branch and the
one that took its place leave the shared past in the same direction. NaN and the infinities are passed over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.archive.series import SeriesKey
from stabilitybackend.runs.grid import ONE_BLOCK, Drawn, SeriesReader
from stabilitybackend.runs.lineage_view import LineageView

__all__ = ["MAX_WEIGHT", "scan", "smooth_line"]

#: Greatest weight of the past. At 0.9999 a value is remembered for some 10,000 rows.
MAX_WEIGHT = 0.9999
#: Rows that one matrix product takes at once. 16 was the fastest of 8 to 64: 2.5 ms for a million rows, where a loop
#: takes 160 ms and Polars' ewm_mean 4.7 ms.
_BLOCK_ROWS = 16
#: What came before is left out once its share of the average is below this part of it; rounding alone costs 1e-16.
_FORGOTTEN = 1e-14
#: Where rows are dense in one place and sparse in another: this many times the expected stretch is read.
_STRETCH = 1.5


@dataclass(slots=True)
class _Wanted:
    """The steps of one segment at which its average is asked for; ``read_from`` None: read it from its first step."""

    first: int
    last: int
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

    Blocks of rows are one product with a triangle of powers of ``weight`` (none above 1, so nothing overflows); what
    each block hands to the next is the same recurrence, 16 times shorter.
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
    still counts is read. NaN stands before the first finite row.

    Args:
        store: all of the run, also where only new points are drawn.
        weight: of the past, > 0 and <= MAX_WEIGHT.
    """
    curves = [drawn for drawn in line if not drawn.piece.key.stray]
    if not curves:
        return [None] * len(line)
    key = curves[0].piece.key
    wanted: dict[int, _Wanted] = {}
    for drawn in curves:
        _extend(wanted, drawn.piece.key.segment, int(drawn.steps[0]), int(drawn.steps[-1]))
    for segment in range(max(wanted), -1, -1):  # children before their parents
        if segment in wanted:
            _plan(store, lineage, weight, replace(key, segment=segment), wanted)
    averages: dict[int, _Average] = {}
    for segment in sorted(wanted):
        averages[segment] = _average(store, lineage, weight, replace(key, segment=segment), wanted[segment], averages)
    return [
        None if drawn.piece.key.stray else averages[drawn.piece.key.segment].debiased(drawn.steps, weight)
        for drawn in line
    ]


def _extend(wanted: dict[int, _Wanted], segment: int, first: int, last: int) -> None:
    known = wanted.setdefault(segment, _Wanted(first, last))
    known.first, known.last = min(known.first, first), max(known.last, last)


def _plan(store: SeriesReader, lineage: LineageView, weight: float, key: SeriesKey, wanted: dict[int, _Wanted]) -> None:
    """Say from where on a segment is read, and what its parent is needed for."""
    here = wanted[key.segment]
    here.read_from = _forgets_before(store, lineage, weight, key, here)
    parent = lineage.parents[key.segment]
    if here.read_from is None and parent is not None:
        _extend(wanted, parent, lineage.forks[key.segment], lineage.forks[key.segment])


def _average(
    store: SeriesReader,
    lineage: LineageView,
    weight: float,
    key: SeriesKey,
    here: _Wanted,
    averages: dict[int, _Average],
) -> _Average:
    rows = store.rows(key, here.read_from, here.last)
    finite = np.isfinite(rows.values)
    steps, values = (rows.steps, rows.values) if finite.all() else (rows.steps[finite], rows.values[finite])
    start, before = 0.0, 0
    parent = lineage.parents[key.segment]
    if here.read_from is not None:
        start, before = float(values[0]), _memory_rows(weight)
    elif parent is not None:
        start, before = averages[parent].at(lineage.forks[key.segment])
    return _Average(steps, scan(values * (1.0 - weight), weight, start), start, before)


def _memory_rows(weight: float) -> int:
    """Return after how many rows the past is forgotten, if it was no greater than what came later."""
    return math.ceil(math.log(_FORGOTTEN) / math.log(weight))


def _forgets_before(
    store: SeriesReader, lineage: LineageView, weight: float, key: SeriesKey, here: _Wanted
) -> int | None:
    """Return a step from which on reading is enough for the averages that are wanted; None: all of the past counts.

    The rows from there to the first wanted step must outweigh all that was before, whatever its size: a spike of 1e30
    is remembered longer than a loss of 2.
    """
    extent = store.extent(key)
    memory_rows = _memory_rows(weight)
    if extent is None or extent.rows <= memory_rows:
        return None
    first = min(here.first, extent.last_step)
    stride = (extent.last_step - extent.first_step + 1) / extent.rows
    read_from = math.floor(first - _STRETCH * stride * memory_rows)
    if read_from - extent.first_step < here.last - read_from:
        return None  # it would spare less than half of the rows
    near = store.aggregates(key, read_from, first, ONE_BLOCK)
    rows = int(near["count"].sum())
    if rows < memory_rows:
        return None
    size = max(abs(float(near["min"][0])), abs(float(near["max"][0])))
    share = math.exp(rows * math.log(weight))  # 0 where that is very small
    for exactly in (False, True):
        if share * _largest_before(store, lineage, key, read_from, exactly) <= _FORGOTTEN * size:
            return read_from
    return None


def _largest_before(store: SeriesReader, lineage: LineageView, key: SeriesKey, step: int, exactly: bool) -> float:
    """Return the greatest finite magnitude on the path of a segment before ``step``.

    Args:
        exactly: else that of whole segments, dead ends included: more than enough most times, and no row is read.
    """
    largest = 0.0
    for part in lineage.path_of(key.segment):
        there = replace(key, segment=part.segment)
        extent = store.extent(there)
        last = step - 1 if part.last is None else part.last
        if extent is None or extent.first_step > last:
            continue
        last = min(extent.last_step, last) if exactly else extent.last_step
        whole = store.aggregates(there, extent.first_step, last, ONE_BLOCK)
        some = whole[whole["count"] > 0]
        if len(some):
            largest = max(largest, float(np.abs(some["min"]).max()), float(np.abs(some["max"]).max()))
    return largest
