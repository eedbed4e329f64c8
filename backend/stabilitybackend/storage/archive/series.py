"""One series and its rows: shared types of the hot and the cold half of a run's store.

Structs, out of the garbage collector's sight: a large job has a hundred thousand series, and a dataclass takes eight
times as long to make and three times as long to look up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["Extent", "Rows", "SeriesKey", "by_step", "chain_rows", "join_rows", "paired"]


class SeriesKey(msgspec.Struct, frozen=True, gc=False):
    """Names one series: rank is None for an agent's metrics, distinguished by ``node``."""

    metric: str
    segment: int
    rank: int | None
    node: str
    stray: bool = False

    @property
    def who(self) -> tuple[bool, int, str]:
        """Whose it is, as something that sorts: rank 0, rank 1, ..., agents by node."""
        return (self.rank is None, self.rank or 0, self.node)


class Extent(msgspec.Struct, frozen=True, gc=False):
    """First and last step of a series (inclusive) and how many rows it has there."""

    first_step: int
    last_step: int
    rows: int


class Rows(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Rows of one series by step, those of one step in order of arrival, unless noted otherwise.

    The arrays are shared: do not write to them.

    Attributes:
        steps: int64[n], 0 to 2**53 - 1, never falling. A job that logs each micro-batch has several rows a step.
        values: float64[n]; NaN and the infinities are logged values, never "missing".
        times: float64[n], when it was logged, unix seconds.
    """

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    times: NDArray[np.float64]

    EMPTY: ClassVar[Rows]

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, at: slice | NDArray[np.bool_] | NDArray[np.intp]) -> Rows:
        """Return some of the rows; those of a slice are views."""
        return Rows(self.steps[at], self.values[at], self.times[at])

    def between(self, first: int | None, last: int | None) -> Rows:
        """Return the rows with ``first <= step <= last`` as views; None for no bound. Steps must not fall."""
        part = self.places(first, last)
        return self if part.stop - part.start == len(self) else self[part]

    def places(self, first: int | None, last: int | None) -> slice:
        """Return where the rows with ``first <= step <= last`` are."""
        begin = 0 if first is None else int(np.searchsorted(self.steps, first, side="left"))
        end = len(self.steps) if last is None else int(np.searchsorted(self.steps, last, side="right"))
        return slice(begin, end)


Rows.EMPTY = Rows(np.empty(0, np.int64), np.empty(0, np.float64), np.empty(0, np.float64))


def chain_rows(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts, one part after the other, whatever their steps."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*((part.steps, part.values, part.times) for part in parts), strict=True)
    return Rows(*map(np.concatenate, columns)) if parts else Rows.EMPTY


def join_rows(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts in one, by step; those of one step part after part.

    The parts themselves may be in any order. A single part is returned unchanged, so its steps must not fall.
    """
    parts = [part for part in parts if len(part)]
    rows = chain_rows(parts)
    return rows if len(parts) <= 1 else by_step(rows)


def by_step(rows: Rows) -> Rows:
    """Return rows by step; those of one step stay in their order, for each of them was logged."""
    if bool((rows.steps[1:] >= rows.steps[:-1]).all()):
        return rows
    return rows[np.argsort(rows.steps, kind="stable")]


def paired(columns: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int64], list[NDArray[np.intp]]]:
    """Pair the rows of several series of which the steps never fall: the k-th row of a step with the k-th.

    Where a series has fewer rows at a step its last one there fills in for the missing ones, so no row of another
    series at a common step is left out.

    Returns:
        The steps that all series have, each as often as the series with the most rows there, and of each series the
        places of its rows.
    """
    first = columns[0]
    if all(one is first or np.array_equal(one, first) for one in columns[1:]):
        return first, [np.arange(len(first))] * len(columns)
    common = first
    for one in columns[1:]:
        common = np.intersect1d(common, one)
    begins = [np.searchsorted(one, common, side="left") for one in columns]
    counts = [np.searchsorted(one, common, side="right") - begin for one, begin in zip(columns, begins, strict=True)]
    most: NDArray[np.intp] = np.maximum.reduce(counts)
    number = np.arange(int(most.sum())) - np.repeat(np.cumsum(most) - most, most)
    places = [
        np.repeat(begin, most) + np.minimum(number, np.repeat(count - 1, most))
        for begin, count in zip(begins, counts, strict=True)
    ]
    return np.repeat(common, most), places
