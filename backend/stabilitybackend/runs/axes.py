"""Where drawn points stand on an x axis that is not the step: log time, or the value of another metric.

Between two known points x is interpolated, and a bucket is read row by row only where its x spans more than a pixel
would show: so an axis costs about as much as the curve itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.archive.aggregates import Aggs
from stabilitybackend.archive.series import Rows, SeriesKey
from stabilitybackend.lineage.tree import PathRange
from stabilitybackend.runs.grid import ONE_BLOCK, Drawn, SeriesReader
from stabilitybackend.runs.lineage_view import LineageView

__all__ = ["metric_line", "time_line"]

#: A bucket whose x spans more than this part of the line's whole x is read row by row: half a pixel of a wide chart.
_FINE_PART = 1 / 4_000
#: Buckets of a series that are read one by one; where more of them are wide, all rows of the window are.
_MAX_SINGLE_READS = 32


@dataclass(frozen=True, slots=True)
class _Known:
    """Steps, rising, at which x is known."""

    steps: NDArray[np.int64]
    xs: NDArray[np.float64]

    def at(self, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return x at ``steps``, NaN outside of what is known."""
        if not len(self.steps):
            return np.full(len(steps), np.nan)
        return np.interp(steps, self.steps, self.xs, left=np.nan, right=np.nan)


def time_line(store: SeriesReader, line: Sequence[Drawn]) -> list[NDArray[np.float64]]:
    """Return the log times (unix seconds) of the drawn points of each piece of one line."""
    spans = [drawn.aggs for drawn in line if drawn.aggs is not None]
    whole = max((float(a["last_time"].max()) for a in spans), default=0.0)
    whole -= min((float(a["first_time"].min()) for a in spans), default=0.0)
    return [_times(store, drawn, whole * _FINE_PART) for drawn in line]


def _times(store: SeriesReader, drawn: Drawn, fine_s: float) -> NDArray[np.float64]:
    if drawn.rows is not None or drawn.aggs is None:
        return Rows.EMPTY.times if drawn.rows is None else drawn.rows.times
    aggs = drawn.aggs
    steps = np.stack((aggs["first_step"], aggs["last_step"]), axis=1).ravel()
    times = np.stack((aggs["first_time"], aggs["last_time"]), axis=1).ravel()
    key, piece = drawn.piece.key, drawn.piece
    wide = np.flatnonzero(np.abs(aggs["last_time"] - aggs["first_time"]) > fine_s)
    if len(wide) and piece.held is not None:
        return _Known(piece.held.steps, piece.held.times).at(drawn.steps)
    for rows in _read_wide(store, key, aggs, wide, piece.first, piece.last):
        steps, times = np.append(steps, rows.steps), np.append(times, rows.times)
    order = np.argsort(steps, kind="stable")
    return _Known(steps[order], times[order]).at(drawn.steps)


def _read_wide(
    store: SeriesReader, key: SeriesKey, aggs: Aggs, wide: NDArray[np.intp], first: int, last: int
) -> list[Rows]:
    if len(wide) > _MAX_SINGLE_READS:
        return [store.rows(key, first, last)]
    return [store.rows(key, int(aggs["first_step"][i]), int(aggs["last_step"][i])) for i in wide]


def metric_line(
    store: SeriesReader, lineage: LineageView, metric: str, level: int, line: Sequence[Drawn]
) -> list[NDArray[np.float64]]:
    """Return the value of ``metric`` at the drawn points of each piece of one line, NaN where it is not known.

    It is that of the same rank, or of the lowest rank that logs it where this one never does (a job often counts tokens
    on rank 0 only). Between two of its rows it is interpolated, across a fork too: the new segment went on from there.

    Args:
        store: all of the run, also where only new points are drawn.
        level: of the curve's grid.
    """
    keys = [key for key in store.keys(metric) if not key.stray]
    own = [key for drawn in line[:1] for key in keys if _same_rank(key, drawn.piece.key)]
    chosen = (own or sorted(keys, key=lambda k: (k.rank is None, k.rank or 0, k.node)))[:1]
    if not chosen:
        return [np.full(len(drawn.steps), np.nan) for drawn in line]
    return [_values(store, lineage, chosen[0], level, drawn) for drawn in line]


def _same_rank(one: SeriesKey, other: SeriesKey) -> bool:
    return (one.rank, one.node) == (other.rank, other.node)


def _values(
    store: SeriesReader, lineage: LineageView, like: SeriesKey, level: int, drawn: Drawn
) -> NDArray[np.float64]:
    piece = drawn.piece
    key = replace(like, segment=piece.key.segment)
    first, last = int(drawn.steps[0]), int(drawn.steps[-1])
    known = _knots(store, key, first, last, level)
    path = lineage.path_of(key.segment) if piece.dead else lineage.path
    if not len(known.steps) or known.steps[0] > first:
        before = _row_before(store, path, key, first)
        if before is not None:
            known = _Known(np.append(before[0], known.steps), np.append(before[1], known.xs))
    if not len(known.steps) or known.steps[-1] < last:
        after = _row_after(store, path, key, last)
        if after is not None:
            known = _Known(np.append(known.steps, after[0]), np.append(known.xs, after[1]))
    return known.at(drawn.steps)


def _knots(store: SeriesReader, key: SeriesKey, first: int, last: int, level: int) -> _Known:
    """Return points of the x metric between which a straight line is right to less than a pixel."""
    extent = store.extent(key)
    if extent is None or extent.last_step < first or extent.first_step > last:
        return _Known(Rows.EMPTY.steps, Rows.EMPTY.values)
    if level == 0:
        rows = store.rows(key, first, last)
        return _finite(rows.steps, rows.values)
    aggs = store.aggregates(key, first, last, level)
    aggs = aggs[aggs["count"] > 0]
    if not len(aggs):
        return _Known(Rows.EMPTY.steps, Rows.EMPTY.values)
    with np.errstate(over="ignore"):
        fine = (aggs["max"].max() - aggs["min"].min()) * _FINE_PART
        wide = np.flatnonzero(aggs["max"] - aggs["min"] > fine)
    steps = [aggs[name] for name in ("first_step", "min_step", "max_step", "last_step")]
    xs = [aggs[name] for name in ("first", "min", "max", "last")]
    for rows in _read_wide(store, key, aggs, wide, first, last):
        steps.append(rows.steps)
        xs.append(rows.values)
    every, values = np.concatenate(steps), np.concatenate(xs)
    order = np.argsort(every, kind="stable")
    return _finite(every[order], values[order])


def _finite(steps: NDArray[np.int64], xs: NDArray[np.float64]) -> _Known:
    finite = np.isfinite(xs)
    return _Known(steps[finite], xs[finite])


def _row_before(store: SeriesReader, path: Sequence[PathRange], key: SeriesKey, step: int) -> tuple[int, float] | None:
    """Return step and value of the last row before ``step`` on the path; None where none is, or it is not finite."""
    for part in reversed(path):
        there = replace(key, segment=part.segment)
        extent = store.extent(there)
        if extent is None:
            continue
        last = min(step - 1, extent.last_step, extent.last_step if part.last is None else part.last)
        if last >= extent.first_step:
            whole = store.aggregates(there, extent.first_step, last, ONE_BLOCK)
            if len(whole):
                return _finite_row(int(whole["last_step"][-1]), float(whole["last"][-1]))
    return None


def _row_after(store: SeriesReader, path: Sequence[PathRange], key: SeriesKey, step: int) -> tuple[int, float] | None:
    """Return step and value of the first row after ``step`` on the path; None where none is, or it is not finite."""
    for part in path:
        there = replace(key, segment=part.segment)
        extent = store.extent(there)
        if extent is None:
            continue
        last = extent.last_step if part.last is None else min(extent.last_step, part.last)
        first = max(step + 1, extent.first_step)
        if last >= first:
            whole = store.aggregates(there, first, last, ONE_BLOCK)
            if len(whole):
                return _finite_row(int(whole["first_step"][0]), float(whole["first"][0]))
    return None


def _finite_row(step: int, value: float) -> tuple[int, float] | None:
    return (step, value) if math.isfinite(value) else None
