"""Turns decoded lines with the same keys into columns of numbers: what is a value, what is missing, what is neither."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.importers.cells import MAX_RANK, TIME_UNITS, NotAStep, as_number, as_rank, as_step, as_time
from stabilitybackend.importers.troubles import Reading, shown
from stabilityclient.wire import MAX_NAME_CHARS, MAX_STEP

__all__ = ["FINGERPRINT", "PHASE", "RANK", "SIDE_BY_SIDE_ROWS", "TIME", "LogRows", "columns_of"]

#: Keys that are no metrics.
TIME, RANK, PHASE, FINGERPRINT = "t", "rank", "phase", "batch_fp"
#: Rows of one rank that come before those of the next one, where several ranks log side by side: what compares ranks
#: forgets a step some hundred steps later.
SIDE_BY_SIDE_ROWS = 64
#: Most characters of a batch's fingerprint that are kept.
FINGERPRINT_CHARS = 1_000


class _ColumnSource(Protocol):
    path: Path
    reading: Reading


@dataclass(slots=True)
class LogRows:
    """Consecutive rows of one rank with the same metrics.

    Attributes:
        rank: whose they are. names: m metric names. steps: int64[n]. values: float64[m, n], NaN where NaN was logged.
        times: float64[n], unix seconds, NaN where the row names none.
        batches: (row, fingerprint) of the rows that name their data.
    """

    rank: int
    names: tuple[str, ...]
    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    values: NDArray[np.float64]
    batches: list[tuple[int, str]]


def columns_of(
    source: _ColumnSource,
    keys: tuple[str, ...],
    numbers: Sequence[int],
    rows: Sequence[dict[str, Any]],
    step_key: str,
    *,
    plain: bool = False,
) -> Iterator[LogRows]:
    """Yield rows that all have ``keys``, cut where the rank or the set of missing values changes.

    Args:
        source: names the file in what is noted. numbers: of the lines, for messages.
        step_key: name of the step's column.
        plain: whether all values are floats.
    """
    count = len(rows)
    columns: dict[str, Any] = {}
    if plain:
        flat = np.fromiter(chain.from_iterable(map(dict.values, rows)), np.float64, count * len(keys))
        columns = dict(zip(keys, np.ascontiguousarray(flat.reshape(count, -1).T), strict=True)) if keys else {}
    elif keys:
        columns = dict(zip(keys, zip(*(row.values() for row in rows), strict=True), strict=True))
    good = np.ones(count, bool)
    steps = _steps(source, columns.pop(step_key, (None,) * count), numbers, good, step_key)
    ranks = _ranks(source, columns.pop(RANK, None), numbers, good, count)
    times = _times(columns.pop(TIME, None), count)
    columns.pop(PHASE, None)
    fingerprints: Sequence[Any] | None = columns.pop(FINGERPRINT, None)
    names: list[str] = []
    values = np.empty((len(columns), count))
    present = np.ones((len(columns), count), bool)
    for name, column in columns.items():
        if not 1 <= len(name) <= MAX_NAME_CHARS:
            what = f"the metric name {shown(name)} has {len(name)} characters, expected 1 to {MAX_NAME_CHARS}"
            source.reading.trouble(source.path, f"line {numbers[0]}", what)
            continue
        at = len(names)
        try:
            values[at] = column if plain else array("d", column)
        except (TypeError, OverflowError):
            _one_by_one(source, name, column, numbers, values[at], present[at])
            if not present[at].any():
                present[at] = True  # the next column takes its place
                continue
        names.append(name)
    values, present = values[: len(names)], present[: len(names)]
    if count and ranks.min() != ranks.max():
        order = _rank_by_rank(ranks)
        good, ranks, steps, times = good[order], ranks[order], steps[order], times[order]
        values, present = values[:, order], present[:, order]
        fingerprints = None if fingerprints is None else [fingerprints[i] for i in order]
    for first, last in _stretches(good, ranks, present):
        part = slice(first, last)
        there = present[:, first]
        batches = [
            (i, str(fingerprints[first + i])[:FINGERPRINT_CHARS])
            for i in range(last - first)
            if fingerprints is not None and fingerprints[first + i] is not None
        ]
        if there.all():
            kept, block = tuple(names), values[:, part]
        else:
            kept, block = tuple(n for n, is_there in zip(names, there, strict=True) if is_there), values[there, part]
        yield LogRows(int(ranks[first]), kept, steps[part], times[part], block, batches)


def _rank_by_rank(ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return an order with some rows of each rank together, else as they are: a block for each row would be slow."""
    window = SIDE_BY_SIDE_ROWS * len(np.unique(ranks))
    return np.lexsort((ranks, np.arange(len(ranks)) // window))


def _stretches(
    good: NDArray[np.bool_], ranks: NDArray[np.int64], present: NDArray[np.bool_]
) -> Iterator[tuple[int, int]]:
    """Yield (first, last + 1) of good rows that follow each other with one rank and the same values missing."""
    changes = (ranks[1:] != ranks[:-1]) | (present[:, 1:] != present[:, :-1]).any(axis=0) | (good[1:] != good[:-1])
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(good)]
    for first, last in pairwise(edges):
        if good[first]:
            yield first, last


def _steps(
    source: _ColumnSource, column: Any, numbers: Sequence[int], good: NDArray[np.bool_], key: str
) -> NDArray[np.int64]:
    if isinstance(column, np.ndarray):
        if bool(((column >= 0) & (column <= MAX_STEP) & (column == np.floor(column))).all()):
            return column.astype(np.int64)
        column = column.tolist()
    if set(map(type, column)) == {int} and min(column) >= 0 and max(column) <= MAX_STEP:
        return np.array(column, np.int64)
    steps = np.zeros(len(column), np.int64)
    for i, value in enumerate(column):
        try:
            steps[i] = as_step(value)
        except NotAStep as error:
            good[i] = False
            why = f"no key {key}: every row needs its step" if value is None else str(error)
            source.reading.trouble(source.path, f"line {numbers[i]}", why)
    return steps


def _ranks(
    source: _ColumnSource, column: Any, numbers: Sequence[int], good: NDArray[np.bool_], count: int
) -> NDArray[np.int64]:
    ranks = np.zeros(count, np.int64)
    if isinstance(column, np.ndarray):
        if bool(((column >= 0) & (column <= MAX_RANK) & (column == np.floor(column))).all()):
            return column.astype(np.int64)
        column = column.tolist()
    for i, value in enumerate(column or ()):
        if value is None:
            continue
        try:
            ranks[i] = as_rank(value)
        except NotAStep as error:
            good[i] = False
            source.reading.trouble(source.path, f"line {numbers[i]}", str(error))
    return ranks


def _times(column: Any, count: int) -> NDArray[np.float64]:
    if column is None:
        return np.full(count, np.nan)
    try:
        times = np.array(column if isinstance(column, np.ndarray) else array("d", column))
    except (TypeError, OverflowError):
        times = np.full(count, np.nan)
        usual = False
    else:
        usual = bool(((times >= 0.0) & (times < TIME_UNITS[-1][0])).all())
    if not usual:
        found = (as_time(value) for value in column)
        times = np.array([np.nan if time is None else time for time in found])
    return times


def _one_by_one(
    source: _ColumnSource,
    name: str,
    column: Sequence[Any],
    numbers: Sequence[int],
    values: NDArray[np.float64],
    present: NDArray[np.bool_],
) -> None:
    """Fill a column that holds more than numbers: null is missing, a text is passed over and noted."""
    for i, value in enumerate(column):
        number = as_number(value)
        if number is not None:
            values[i] = number
            continue
        present[i] = False
        if value is not None:
            source.reading.odd_value(source.path, f"line {numbers[i]}", name, value)
