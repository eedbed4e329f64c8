"""What the lineage fold says of a frame: rows that found their segment, new segments, everything else that happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stabilitybackend.lineage.tree import FoldedSegment
from stabilityclient.wire import SourceInfo

__all__ = ["Change", "Forked", "LineageEvent", "Placed", "PlacedInStep"]


class Placed(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Rows that found their segment. A Struct: three are made of each frame, a dataclass takes eight times as long.

    Thousands of them are kept for a while: the garbage collector need not look at them, for they hold no others.

    Attributes:
        source, rank, node: who logged them; rank None for an agent.
        names: the m metric names.
        steps: int64 (n,). times: float64 (n,), unix seconds. values: float64 (m, n).
        stray: low steps that nothing followed: kept, shown as dead, never part of a curve.
        aside: they are of metrics that do not tell where the run is, at steps behind it.
        more: the next change holds other metrics of the same stretch of steps, logged in turn with these.
    """

    segment: int
    source: str
    rank: int | None
    node: str
    names: list[str]
    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    values: NDArray[np.float64]
    stray: bool = False
    more: bool = False
    aside: bool = False

    @property
    def low(self) -> int:
        """The smallest step of the rows, of which there must be any."""
        steps = self.steps  # most frames have one row, and a reduction of numpy costs as much as the rest of it
        return int(steps[0] if len(steps) == 1 else steps.min())

    @property
    def high(self) -> int:
        """The greatest step of the rows, of which there must be any."""
        steps = self.steps
        return int(steps[0] if len(steps) == 1 else steps.max())

    @property
    def sets(self) -> int:
        """How many sets of rows ``each`` returns."""
        return 1

    def each(self) -> list[Placed]:
        """Return these rows, as ``PlacedInStep.each``."""
        return [self]

    def at(self, segment: int, part: slice = slice(None), *, stray: bool = False) -> Placed:
        """Return some of these rows (default: all) in ``segment``."""
        steps, times, values = self.steps, self.times, self.values
        if part != slice(None):
            steps, times, values = steps[part], times[part], values[:, part]
        return Placed(segment, self.source, self.rank, self.node, self.names, steps, times, values, stray)


class PlacedInStep(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A row of each of some ranks, all at one step and of the same metrics, as nodes send them.

    Attributes:
        infos: who logged them, the ranks rising.
        names: the m metric names.
        steps: int64 (k,), all the same. times: float64 (k,), unix seconds. values: float64 (m, k).
    """

    segment: int
    infos: Sequence[SourceInfo]
    names: list[str]
    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    values: NDArray[np.float64]

    @property
    def sets(self) -> int:
        """How many rows there are."""
        return len(self.infos)

    def row(self, at: int) -> Placed:
        """Return one of the rows."""
        info, part = self.infos[at], slice(at, at + 1)
        steps, times, values = self.steps[part], self.times[part], self.values[:, part]
        return Placed(self.segment, info.source, info.rank, info.node, self.names, steps, times, values)

    def each(self) -> list[Placed]:
        """Return the rows, one after the other."""
        return [self.row(at) for at in range(len(self.infos))]


@dataclass(frozen=True)
class Forked:
    """A new segment was added; ``is_head`` says whether the effective timeline changed with it."""

    segment: FoldedSegment
    is_head: bool


@dataclass(frozen=True)
class LineageEvent:
    """Any other event, with the segment that its source was in."""

    source: SourceInfo
    segment: int
    type: str
    time: float
    step: int | None
    data: dict[str, Any]


Change = Placed | Forked | LineageEvent
