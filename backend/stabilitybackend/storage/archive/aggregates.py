"""A block of steps in 19 numbers, and blocks of blocks: any zoom level from the same few laws.

A block of level L holds the rows whose ``step >> L`` is the same, so blocks are absolute: two parts or two segments are
cut at the same steps. A block keeps its extremes with their steps, so a single spike among ten
million rows is on the screen at every zoom, and NaN, +Inf and -Inf are counted apart, each with its first step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.storage.archive.series import Rows

__all__ = [
    "AGG",
    "EMPTY_AGGS",
    "LEVEL_STEP",
    "MIN_LEVEL",
    "SHORT_ROWS",
    "Aggs",
    "aggregate",
    "aggregate_short",
    "base_level",
    "join_aggs",
    "means",
    "regroup",
    "row_counts",
]

#: One block. ``first`` and ``last`` are the values of the first and the last row, finite or not; min, max and sum are
#: over the finite values only (NaN, step -1 and sum 0.0 where there are none) and ``count`` counts these. Where the
#: extreme is there more than once its first step is named. ``nan_step``, ``pinf_step``, ``ninf_step``: the first such
#: step, -1 for none. Times: unix seconds at first_step and last_step. The sum is a float sum: two ways of grouping the
#: same rows agree to rounding, and it overflows as floats do.
AGG = np.dtype(
    [
        ("block", "<i8"),
        ("first_step", "<i8"),
        ("last_step", "<i8"),
        ("first", "<f8"),
        ("last", "<f8"),
        ("min", "<f8"),
        ("min_step", "<i8"),
        ("max", "<f8"),
        ("max_step", "<i8"),
        ("sum", "<f8"),
        ("count", "<i8"),
        ("nan", "<i8"),
        ("nan_step", "<i8"),
        ("pinf", "<i8"),
        ("pinf_step", "<i8"),
        ("ninf", "<i8"),
        ("ninf_step", "<i8"),
        ("first_time", "<f8"),
        ("last_time", "<f8"),
    ]
)
#: An array of AGG.
Aggs = NDArray[np.void]
EMPTY_AGGS: Aggs = np.empty(0, AGG)

#: Finest level worth keeping: 256 steps. Below it a block costs as much as its rows.
MIN_LEVEL = 8
#: Rows that a block of the base level holds on average at least; with 152 bytes a block this keeps aggregates near a
#: tenth of the rows' own size however sparse the rows are.
MIN_BLOCK_ROWS = 64
#: A series with fewer rows is one block at its base level: no finer one has MIN_BLOCK_ROWS rows a block.
SHORT_ROWS = 2 * MIN_BLOCK_ROWS
#: Levels between two that are kept: base, base + 2, ... A factor of 4 costs a third on top of the base level.
LEVEL_STEP = 2
#: Steps are below 2**53, so at this level every series is one block. Shifts of an int64 end at 63.
MAX_LEVEL = 62

#: Rows that are aggregated at a time: temporary arrays of 256 KB.
TILE_ROWS = 32_768

#: Counted kinds of non-finite values: field of the count, field of the first step.
_KINDS = (("nan", "nan_step"), ("pinf", "pinf_step"), ("ninf", "ninf_step"))


def base_level(steps: NDArray[np.int64]) -> int:
    """Return the finest level worth keeping for rows at these steps, by step: 8, or more where logging is sparse."""
    if not len(steps):
        return MIN_LEVEL
    span = int(steps[-1]) - int(steps[0])
    if len(steps) >= MIN_BLOCK_ROWS * ((span >> MIN_LEVEL) + 2):  # the usual case, without a look at every step
        return MIN_LEVEL
    # Neighbours share a block of level L exactly if they differ in no bit from L upwards; below 2**53 a float knows
    # the highest one.
    _, bits = np.frexp((steps[1:] ^ steps[:-1]).astype(np.float64))
    cuts = np.bincount(np.maximum(bits, MIN_LEVEL), minlength=MAX_LEVEL + 1)
    blocks = 1 + np.cumsum(cuts[::-1])[::-1]  # blocks[b]: how many there are at level b - 1
    for level in range(MIN_LEVEL, MAX_LEVEL):
        if blocks[level + 1] == 1 or len(steps) >= MIN_BLOCK_ROWS * blocks[level + 1]:
            return level
    return MAX_LEVEL


def aggregate(rows: Rows, level: int) -> Aggs:
    """Return one AGG for each block of ``2**level`` steps that has a row, ascending.

    Args:
        rows: by step.
        level: 0 to 62; 0 gives one block a step.
    """
    if not len(rows):
        return EMPTY_AGGS
    level = min(level, MAX_LEVEL)
    return _blocks(rows, _block_starts(rows.steps, level), level)


def aggregate_short(rows: Rows, starts: NDArray[np.int64]) -> tuple[NDArray[np.int64], Aggs]:
    """Return the results of ``base_level`` and ``aggregate`` for many series with fewer than SHORT_ROWS rows each.

    At its base level such a series is one block, so that all of them are computed together.

    Args:
        rows: of all of them, one series after the other.
        starts: where each begins.

    Returns:
        The level and the one block of each.
    """
    differ = (rows.steps[1:] ^ rows.steps[:-1]).astype(np.float64)
    differ[starts[1:] - 1] = 0.0  # neighbours of two series
    _, bits = np.frexp(np.append(0.0, differ))
    levels = np.maximum(np.maximum.reduceat(bits, starts).astype(np.int64), MIN_LEVEL)
    return levels, _blocks(rows, starts, levels)


def _blocks(rows: Rows, starts: NDArray[np.int64], levels: int | NDArray[np.int64]) -> Aggs:
    """Return the blocks that begin at ``starts``, each of its level."""
    ends = np.append(starts[1:], len(rows))
    aggs = np.empty(len(starts), AGG)
    aggs["block"] = rows.steps[starts] >> levels
    # Some blocks at a time: temporary arrays that fit the processor's cache make it 3 times faster on a million rows.
    begin = 0
    while begin < len(starts):
        end = max(begin + 1, int(np.searchsorted(ends, starts[begin] + TILE_ROWS, side="right")))
        low, high = starts[begin], ends[end - 1]
        _fill(aggs[begin:end], rows[low:high], starts[begin:end] - low, ends[begin:end] - low)
        begin = end
    return aggs


def regroup(aggs: Aggs, level: int) -> Aggs:
    """Return one AGG for each block of ``2**level`` steps, from finer ones.

    Args:
        aggs: ascending and disjoint; each must lie within one block of ``level``. Their own extents may differ, so
            whole blocks and aggregates of the rows at a cut edge go together.
        level: 0 to 62.
    """
    if not len(aggs):
        return EMPTY_AGGS
    blocks = aggs["first_step"] >> min(level, MAX_LEVEL)
    starts, ends = _groups(blocks)
    result: Aggs = np.empty(len(starts), AGG) if len(starts) < len(aggs) else aggs.copy()
    result["block"] = blocks[starts]
    if len(starts) == len(aggs):
        return result
    last = ends - 1
    for name, at in (("first_step", starts), ("first", starts), ("first_time", starts)):
        result[name] = aggs[name][at]
    for name, at in (("last_step", last), ("last", last), ("last_time", last)):
        result[name] = aggs[name][at]
    for name in ("count", "nan", "pinf", "ninf"):
        result[name] = np.add.reduceat(aggs[name], starts)
    with np.errstate(over="ignore", invalid="ignore"):
        result["sum"] = np.add.reduceat(aggs["sum"], starts)
    sizes = ends - starts
    some = aggs["count"] > 0
    low, high = np.where(some, aggs["min"], np.inf), np.where(some, aggs["max"], -np.inf)
    _put_extreme(result, "min", "min_step", low, aggs["min_step"], starts, sizes, np.minimum)
    _put_extreme(result, "max", "max_step", high, aggs["max_step"], starts, sizes, np.maximum)
    for count, step in _KINDS:
        result[step] = -1
        where = np.flatnonzero(aggs[count] > 0)
        if len(where):
            at = np.searchsorted(where, starts)
            has = result[count] > 0
            result[step][has] = aggs[step][where[at[has]]]
    return result


def join_aggs(pieces: Sequence[Aggs]) -> Aggs:
    """Return blocks one piece after the other."""
    if len(pieces) == 1:
        return pieces[0]
    # As words: NumPy compares structured types field by field, 20 us for each piece.
    words = [np.ascontiguousarray(piece).view(np.int64) for piece in pieces]
    return np.concatenate(words).view(AGG) if words else EMPTY_AGGS


def row_counts(aggs: Aggs) -> NDArray[np.int64]:
    """Return the number of rows of each block, finite or not."""
    counts: NDArray[np.int64] = aggs["count"] + aggs["nan"] + aggs["pinf"] + aggs["ninf"]
    return counts


def means(aggs: Aggs) -> NDArray[np.float64]:
    """Return the mean of the finite values of each block; NaN where it has none or where their sum overflowed.

    It is never outside of the block's extremes, as rounding alone could put it.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(np.isfinite(aggs["sum"]), aggs["sum"] / aggs["count"], np.nan)
    return np.where(np.isnan(mean), mean, np.minimum(np.maximum(mean, aggs["min"]), aggs["max"]))


def _block_starts(steps: NDArray[np.int64], level: int) -> NDArray[np.int64]:
    """Return where each block begins."""
    first, last = int(steps[0]) >> level, int(steps[-1]) >> level
    if last - first < len(steps) >> 4:  # few and long: look for the borders, not at every step
        starts = np.searchsorted(steps, np.arange(first, last + 1, dtype=np.int64) << level)
        some: NDArray[np.int64] = starts[np.append(starts[1:] != starts[:-1], True)]
        return some
    return _groups(steps >> level)[0]


def _fill(aggs: Aggs, rows: Rows, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
    """Fill in all fields but ``block``."""
    steps, values = rows.steps, rows.values
    last = ends - 1
    aggs["first_step"], aggs["last_step"] = steps[starts], steps[last]
    aggs["first"], aggs["last"] = values[starts], values[last]
    aggs["first_time"], aggs["last_time"] = rows.times[starts], rows.times[last]
    sizes = ends - starts
    finite = np.isfinite(values)
    if finite.all():
        aggs["count"] = sizes
        low, high, total = values, values, values
        for count, step in _KINDS:
            aggs[count], aggs[step] = 0, -1
    else:
        aggs["count"] = np.add.reduceat(finite.astype(np.int64), starts)
        low, high = np.where(finite, values, np.inf), np.where(finite, values, -np.inf)
        total = np.where(finite, values, 0.0)
        for (count, step), odd in zip(_KINDS, (np.isnan(values), values == np.inf, values == -np.inf), strict=True):
            _count_odd(aggs, count, step, np.flatnonzero(odd), steps, starts, ends)
    with np.errstate(over="ignore", invalid="ignore"):
        aggs["sum"] = np.add.reduceat(total, starts)
    _put_extreme(aggs, "min", "min_step", low, steps, starts, sizes, np.minimum)
    _put_extreme(aggs, "max", "max_step", high, steps, starts, sizes, np.maximum)


def _groups(blocks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each run of equal numbers begins, and where it ends (exclusive)."""
    starts = np.flatnonzero(blocks[1:] != blocks[:-1]) + 1
    return np.append(0, starts), np.append(starts, len(blocks))


def _put_extreme(
    aggs: Aggs,
    name: str,
    step_name: str,
    values: NDArray[np.float64],
    steps: NDArray[np.int64],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    extreme: np.ufunc,
) -> None:
    """Fill in the extreme and its first step; where ``count`` is 0 (``values`` then holds fillers) NaN and -1."""
    tops = extreme.reduceat(values, starts)
    where = np.flatnonzero(values == np.repeat(tops, sizes))
    at = where[np.searchsorted(where, starts)]
    # Not `tops`: among -0.0 and 0.0, which are equal, the value is the one at the named step.
    none = aggs["count"] == 0
    aggs[name] = np.where(none, np.nan, values[at])
    aggs[step_name] = np.where(none, -1, steps[at])


def _count_odd(
    aggs: Aggs,
    count: str,
    step: str,
    where: NDArray[np.intp],
    steps: NDArray[np.int64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> None:
    """Count the rows at ``where`` by block and name the first step of each."""
    begin = np.searchsorted(where, starts)
    counts = np.searchsorted(where, ends) - begin
    aggs[count], aggs[step] = counts, -1
    has = counts > 0
    aggs[step][has] = steps[where[begin[has]]]
