"""The bucket grid of charts: absolute buckets of a power of two of steps, each with its extremes at their true steps.

The grid is the same for all segments and ranks of a metric, and a bucket ends where its segment does: no bucket reaches
across a fork, no spike and no NaN can vanish, and zooming or going on in time moves no bucket's edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.storage.archive.aggregates import Aggs, aggregate, join_aggs, row_counts
from stabilitybackend.storage.archive.series import Extent, Rows, SeriesKey

__all__ = [
    "ONE_BLOCK",
    "Drawn",
    "PathPiece",
    "SeriesReader",
    "StoreReader",
    "draw_line",
    "expected_rows",
    "grid_level",
]

#: A level at which any series is a single block.
ONE_BLOCK = 62
#: Fewest points a bounded line may ask for: first, last, one minimum and one maximum.
MIN_POINTS = 4
#: Fields of an aggregate that are points of their own: (where it is, its value or the field with it).
_ODD = (("nan_step", np.nan), ("pinf_step", np.inf), ("ninf_step", -np.inf))


class SeriesReader(Protocol):
    """Source of a query: ``StoreView``, or the rows after a cursor."""

    def keys(self, metric: str) -> list[SeriesKey]:
        """Return the series of one metric."""

    def extent(self, key: SeriesKey) -> Extent | None:
        """Return first and last step of a series and about how many rows it has; None for no such series."""

    def rows(self, key: SeriesKey, first: int | None = None, last: int | None = None) -> Rows:
        """Return the rows with ``first <= step <= last`` by step, those of one step in order of arrival."""

    def aggregates(self, key: SeriesKey, first: int, last: int, level: int) -> Aggs:
        """Return one aggregate per block of ``2**level`` steps over exactly the rows of ``first <= step <= last``."""


class StoreReader(SeriesReader, Protocol):
    """All of a run: ``StoreView``."""

    @property
    def problems(self) -> list[str]:
        """Files that could not be read, with the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class PathPiece:
    """One entry of an answer: the steps ``first..last`` (inclusive) of one series.

    Attributes:
        extent: of the whole series.
        held: the rows themselves where they are in no store yet (nothing is decided about them).
        source: the process that logged the held rows, "" of all others.
    """

    key: SeriesKey
    first: int
    last: int
    dead: bool
    extent: Extent
    held: Rows | None = None
    source: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """The points of one piece by step, and the rows they were chosen from.

    Attributes:
        rows: all rows of the piece where these are the points; none where ``aggs`` is there.
        aggs: the buckets from which they were chosen, None where they are all rows.
    """

    piece: PathPiece
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    rows: Rows
    aggs: Aggs | None


def expected_rows(pieces: Iterable[PathPiece]) -> float:
    """Return about how many rows the pieces have, as if each series logged evenly over its extent."""
    total = 0.0
    for piece in pieces:
        span = piece.extent.last_step - piece.extent.first_step + 1
        total += piece.extent.rows * ((piece.last - piece.first + 1) / span)
    return total


def grid_level(pieces: Sequence[PathPiece], points: int) -> int:
    """Return the smallest level at which the pieces of one line together take up no more than ``points / 2`` buckets.

    A bucket that a fork cuts counts once, so a line of many short segments is not drawn more coarsely for them.
    """
    firsts = np.array([piece.first for piece in pieces], np.int64)
    lasts = np.array([piece.last for piece in pieces], np.int64)
    room = max(points // 2 - 1, 1)
    level = max((int((lasts - firsts).sum()) // room).bit_length() - 2, 0)
    while int(((lasts >> level) - (firsts >> level)).sum()) > room:
        level += 1
    return level


def draw_line(
    store: SeriesReader, pieces: Sequence[PathPiece], level: int, points: int | None
) -> tuple[list[Drawn], int]:
    """Return the points of one line (a metric of one rank) and the level of its buckets, 0 for every row.

    Args:
        level: of the metric's grid.
        points: at most about this many (and a few a piece); None for all rows. Where there are no more rows than that
            all of them are drawn.
    """
    if points is None or level == 0:
        return _raw(store, pieces), 0
    if expected_rows(pieces) <= points:
        raw = _raw(store, pieces)
        if sum(len(drawn.steps) for drawn in raw) <= points:
            return raw, 0
        pieces, aggs = [drawn.piece for drawn in raw], [aggregate(drawn.rows, level) for drawn in raw]
    else:
        aggs = [_buckets(store, piece, level) for piece in pieces]
        if sum(int(row_counts(agg).sum()) for agg in aggs) <= points:
            return _raw(store, pieces), 0
    return _extremes(pieces, aggs), level


def _raw(store: SeriesReader, pieces: Sequence[PathPiece]) -> list[Drawn]:
    found = []
    for piece in pieces:
        rows = store.rows(piece.key, piece.first, piece.last) if piece.held is None else piece.held
        if len(rows):
            found.append(Drawn(piece, rows.steps, rows.values, rows, None))
    return found


def _buckets(store: SeriesReader, piece: PathPiece, level: int) -> Aggs:
    if piece.held is not None:
        return aggregate(piece.held, level)
    return store.aggregates(piece.key, piece.first, piece.last, level)


def _extremes(pieces: Sequence[PathPiece], aggs: Sequence[Aggs]) -> list[Drawn]:
    """Return of each piece the extremes and the first of each kind of non-finite values by bucket, and both ends.

    All pieces in one go: a line may have hundreds, and each call into NumPy costs more than its work.
    """
    sizes = np.array([len(agg) for agg in aggs])
    if not sizes.sum():
        return []
    every = join_aggs(aggs)
    owner = np.repeat(np.arange(len(aggs)), sizes)
    ends = np.cumsum(sizes)
    firsts, lasts = (ends - sizes)[sizes > 0], (ends - 1)[sizes > 0]
    some = np.flatnonzero(every["count"] > 0)
    picks: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = [
        (owner[some], every["min_step"][some], every["min"][some]),
        (owner[some], every["max_step"][some], every["max"][some]),
        (owner[firsts], every["first_step"][firsts], every["first"][firsts]),
        (owner[lasts], every["last_step"][lasts], every["last"][lasts]),
    ]
    for field, value in _ODD:
        where = np.flatnonzero(every[field] >= 0)
        if len(where):
            picks.append((owner[where], every[field][where], np.full(len(where), value)))
    who, steps, values = (np.concatenate(column) for column in zip(*picks, strict=True))
    order = np.lexsort((values, steps, who))
    who, steps, values = who[order], steps[order], values[order]
    # The newest row may be the highest one, too; another value of the same step is another point.
    same = (values[1:] == values[:-1]) | (np.isnan(values[1:]) & np.isnan(values[:-1]))
    keep = np.append(True, ~same | (steps[1:] != steps[:-1]) | (who[1:] != who[:-1]))
    who, steps, values = who[keep], steps[keep], values[keep]
    bounds = np.searchsorted(who, np.arange(len(aggs) + 1))
    return [
        Drawn(piece, steps[bounds[i] : bounds[i + 1]], values[bounds[i] : bounds[i + 1]], Rows.EMPTY, aggs[i])
        for i, piece in enumerate(pieces)
        if sizes[i]
    ]
