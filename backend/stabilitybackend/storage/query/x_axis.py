"""Where drawn points lie on an x axis that is not the step: log time, or the value of another metric.

Between two measured points x is interpolated. A bucket in which that would be visibly wrong, because the job paused
there or because x goes up and down, is read row by row; so an axis usually costs about as much as the curve itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from stabilitybackend.lineage.tree import PathRange
from stabilitybackend.storage.archive.aggregates import Aggs, join_aggs
from stabilitybackend.storage.archive.series import Rows, SeriesKey
from stabilitybackend.storage.query.downsampling import ONE_BLOCK, Drawn, SeriesReader
from stabilitybackend.storage.query.lineage_view import LineageView

__all__ = ["metric_line", "row_before", "time_line"]

#: Part of the line's whole x by which an interpolated point may be off: half a pixel of a wide chart.
_FINE_PART = 1 / 4_000
#: Buckets of a line that are read one by one, the worst ones first.
_MAX_SINGLE_READS = 32
#: Buckets on whose usual pace a bucket is judged, itself in the middle.
_NEIGHBOURS = 9


#: Rows of the x metric that are asked for: series, first and last step.
_Window = tuple[SeriesKey, int, int]


@dataclass(frozen=True, slots=True)
class _Known:
    """Steps, rising, that have an x."""

    steps: NDArray[np.int64]
    xs: NDArray[np.float64]

    @classmethod
    def of(cls, steps: Sequence[NDArray[np.int64]], xs: Sequence[NDArray[np.float64]]) -> _Known:
        """Return the x of several sources, in any order; x that is not finite is left out."""
        every, values = np.concatenate(steps), np.concatenate(xs)
        finite = np.flatnonzero(np.isfinite(values))
        order = finite[np.argsort(every[finite], kind="stable")]
        return cls(every[order], values[order])

    def at(self, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return x at ``steps``, NaN outside of the range."""
        if not len(self.steps):
            return np.full(len(steps), np.nan)
        return np.interp(steps, self.steps, self.xs, left=np.nan, right=np.nan)


def time_line(store: SeriesReader, line: Sequence[Drawn]) -> list[NDArray[np.float64]]:
    """Return the log times (unix seconds) of the drawn points of each piece of one line.

    In a bucket they are interpolated between its first and its last row, unless the job took longer there than around
    it: the 32 longest pauses of a line are read, the rest is less than a pixel or the 33rd pause.
    """
    thinned = [i for i, drawn in enumerate(line) if drawn.aggs is not None]
    extra: dict[int, list[Rows]] = {i: [] for i in thinned}
    if thinned:
        every = join_aggs([aggs for drawn in line if (aggs := drawn.aggs) is not None])
        owner = np.repeat(thinned, [len(aggs) for drawn in line if (aggs := drawn.aggs) is not None])
        whole_s = float(every["last_time"].max() - every["first_time"].min())
        for at in _uneven(every, every["first_time"], every["last_time"], whole_s * _FINE_PART):
            piece = line[owner[at]].piece
            first, last = int(every["first_step"][at]), int(every["last_step"][at])
            held = piece.held
            extra[int(owner[at])].append(
                store.rows(piece.key, first, last) if held is None else held.between(first, last)
            )
    return [_times(drawn, extra.get(i, [])) for i, drawn in enumerate(line)]


def _times(drawn: Drawn, extra: Sequence[Rows]) -> NDArray[np.float64]:
    if drawn.aggs is None:
        return drawn.rows.times
    ends = [drawn.aggs["first_step"], drawn.aggs["last_step"], *(rows.steps for rows in extra)]
    times = [drawn.aggs["first_time"], drawn.aggs["last_time"], *(rows.times for rows in extra)]
    return _Known.of(ends, times).at(drawn.steps)


def _uneven(aggs: Aggs, first: NDArray[np.float64], last: NDArray[np.float64], fine: float) -> NDArray[np.intp]:
    """Return the buckets, worst first, in which x moves by more than ``fine`` beyond the pace around them."""
    if len(aggs) < _NEIGHBOURS:
        return np.arange(len(aggs))  # too few to tell, and few to read
    span = np.maximum(aggs["last_step"] - aggs["first_step"], 1)
    moved = np.abs(last - first)
    half = _NEIGHBOURS // 2
    around = np.lib.stride_tricks.sliding_window_view(np.pad(moved / span, half, mode="edge"), _NEIGHBOURS)
    usual = np.partition(around, half // 2, axis=1)[:, half // 2]  # the lower quartile: several pauses may be near
    excess = moved - usual * span
    worst = np.flatnonzero(excess > fine)
    return worst[np.argsort(-excess[worst], kind="stable")][:_MAX_SINGLE_READS]


def metric_line(
    store: SeriesReader, lineage: LineageView, metric: str, level: int, line: Sequence[Drawn]
) -> list[NDArray[np.float64]]:
    """Return the value of ``metric`` at the drawn points of each piece of one line, NaN where it has none.

    It is that of the same rank, or of the lowest rank that logs it where this one never does (a job often counts tokens
    on rank 0 only). Between two of its rows it is interpolated, across a fork too: the new segment went on from there.

    Args:
        store: all of the run, also where only new points are drawn.
        level: of the curve's grid.
    """
    like = _chosen(store.keys(metric), line)
    if like is None:
        return [np.full(len(drawn.steps), np.nan) for drawn in line]
    windows = [
        (replace(like, segment=drawn.piece.key.segment), int(drawn.steps[0]), int(drawn.steps[-1])) for drawn in line
    ]
    return [
        _reach(store, lineage, key, drawn, known).at(drawn.steps)
        for (key, _, _), drawn, known in zip(windows, line, _knots(store, windows, level), strict=True)
    ]


def _chosen(keys: Sequence[SeriesKey], line: Sequence[Drawn]) -> SeriesKey | None:
    """Return any key of the rank whose x counts for the line; None where no rank logs it."""
    logged = [key for key in keys if not key.stray]
    own = [key for drawn in line[:1] for key in logged if _same_rank(key, drawn.piece.key)]
    return next(iter(own or sorted(logged, key=lambda k: k.who)), None)


def _same_rank(one: SeriesKey, other: SeriesKey) -> bool:
    return (one.rank, one.node) == (other.rank, other.node)


def _knots(store: SeriesReader, windows: Sequence[_Window], level: int) -> list[_Known]:
    """Return of each window points of the x metric between which a straight line is good enough."""
    if level == 0:
        return [_all_rows(store, window) for window in windows]
    aggs = [_buckets(store, window, level) for window in windows]
    every = join_aggs(aggs)
    owner = np.repeat(np.arange(len(aggs)), [len(each) for each in aggs])
    extra: dict[int, list[Rows]] = {}
    if len(every):
        with np.errstate(over="ignore", invalid="ignore"):
            fine = float(every["max"].max() - every["min"].min()) * _FINE_PART
            inside = (every["max"] - every["min"]) - np.abs(every["last"] - every["first"])
            bent = np.flatnonzero(~(inside <= fine))
            if len(bent) > _MAX_SINGLE_READS:  # it goes up and down all the time
                return [_all_rows(store, window) for window in windows]
            uneven = _uneven(every, every["min"], every["max"], fine)
        for at in np.union1d(uneven, bent):
            key = windows[owner[at]][0]
            rows = store.rows(key, int(every["first_step"][at]), int(every["last_step"][at]))
            extra.setdefault(int(owner[at]), []).append(rows)
    return [_ends(each, extra.get(i, [])) for i, each in enumerate(aggs)]


def _all_rows(store: SeriesReader, window: _Window) -> _Known:
    rows = store.rows(*window)
    return _Known.of([rows.steps], [rows.values])


def _buckets(store: SeriesReader, window: _Window, level: int) -> Aggs:
    aggs = store.aggregates(*window, level)
    return aggs if aggs["count"].all() else aggs[aggs["count"] > 0]


def _ends(aggs: Aggs, extra: Sequence[Rows]) -> _Known:
    steps = [*(aggs[name] for name in ("first_step", "min_step", "max_step", "last_step")), *(r.steps for r in extra)]
    return _Known.of(steps, [*(aggs[name] for name in ("first", "min", "max", "last")), *(r.values for r in extra)])


def _reach(store: SeriesReader, lineage: LineageView, key: SeriesKey, drawn: Drawn, known: _Known) -> _Known:
    """Return ``known`` with the rows just before and after the drawn points, where it does not reach that far."""
    path = lineage.path_of(key.segment) if drawn.piece.dead else lineage.path
    first, last = int(drawn.steps[0]), int(drawn.steps[-1])
    if not len(known.steps) or known.steps[0] > first:
        before = row_before(store, path, key, first)
        if before is not None:
            known = _Known(np.append(before[0], known.steps), np.append(before[1], known.xs))
    if not len(known.steps) or known.steps[-1] < last:
        after = _row_after(store, path, key, last)
        if after is not None:
            known = _Known(np.append(known.steps, after[0]), np.append(known.xs, after[1]))
    return known


def row_before(store: SeriesReader, path: Sequence[PathRange], key: SeriesKey, step: int) -> tuple[int, float] | None:
    """Return step and value of the last finite row before ``step`` on the path, None where none is."""
    return _outermost(store, reversed(path), key, 0, step - 1, -1)


def _row_after(store: SeriesReader, path: Sequence[PathRange], key: SeriesKey, step: int) -> tuple[int, float] | None:
    """Return step and value of the first finite row after ``step`` on the path, None where none is."""
    return _outermost(store, path, key, step + 1, None, 0)


def _outermost(
    store: SeriesReader, parts: Iterable[PathRange], key: SeriesKey, first: int, last: int | None, at: Literal[0, -1]
) -> tuple[int, float] | None:
    """Return step and value of a finite row of ``first..last`` in the first part that has any: its first or last."""
    name = "last" if at else "first"
    for part in parts:
        there = replace(key, segment=part.segment)
        extent = store.extent(there)
        if extent is None:
            continue
        low = max(first, extent.first_step)
        high = min(end for end in (last, part.last, extent.last_step) if end is not None)
        if low > high:
            continue
        aggs = store.aggregates(there, low, high, ONE_BLOCK)
        if aggs["count"].any():
            if math.isfinite(aggs[name][at]):
                return int(aggs[f"{name}_step"][at]), float(aggs[name][at])
            known = _all_rows(store, (there, low, high))
            return int(known.steps[at]), float(known.xs[at])
    return None
