"""One series and its rows: what the hot and the cold half of a run's store share.

Structs, out of the garbage collector's sight: a large job has a hundred thousand series, and a dataclass takes eight
times as long to make and three times as long to look up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["Extent", "Rows", "SeriesKey", "chain_rows", "join_rows", "rising_rows"]


class SeriesKey(msgspec.Struct, frozen=True, gc=False):
    """Names one series: rank is None for an agent's metrics, then ``node`` tells them apart."""

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
    """Rows of one series, steps strictly rising unless noted otherwise. The arrays are shared: nobody writes to them.

    Attributes:
        steps: int64[n], 0 to 2**53 - 1.
        values: float64[n]; NaN and the infinities are what was logged, never "missing".
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
        """Return the rows with ``first <= step <= last`` as views; None for no bound. Steps must be rising."""
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
    """Return the rows of all parts in one, steps strictly rising.

    If a step is there more than once the last row counts: the later part, and within a part the later
    row. That is what a training loop means when it logs a step again. The parts themselves may be in any order.
    A single part is returned as it is, so it has to be rising already.
    """
    parts = [part for part in parts if len(part)]
    rows = chain_rows(parts)
    return rows if len(parts) <= 1 or bool((rows.steps[1:] > rows.steps[:-1]).all()) else rising_rows(rows)


def rising_rows(rows: Rows) -> Rows:
    """Return rows by step; of a step that is there more than once the last row."""
    order = np.argsort(rows.steps, kind="stable")
    ordered = rows.steps[order]
    return rows[order[np.append(ordered[1:] != ordered[:-1], True)]] if len(rows) else rows
