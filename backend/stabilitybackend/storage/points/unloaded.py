"""The newest points of a run that are stored and not in memory yet: which series, and where these begin and end.

After a takeover a worker continues immediately from a snapshot of the fold, and reads the points before it afterwards
(``runs/archiving/points_loading.py``). Meanwhile an ``UnloadedPoints`` has their place in the store: a chart
gets the loaded ones with a note; a judge whose findings depend on the rest has to wait.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NoReturn, TypeVar

import msgspec
from msgspec.structs import replace

from stabilitybackend.base.errors import ArchiveError
from stabilitybackend.storage.archive.aggregates import Aggs
from stabilitybackend.storage.archive.series import Extent, Rows, SeriesKey
from stabilitybackend.storage.points.memtable import Generation, RowPlace
from stabilitybackend.storage.points.row_table import TableOutline

if TYPE_CHECKING:
    from stabilitybackend.lineage.batch import Placed
    from stabilitybackend.storage.points.store import RunStore

__all__ = ["LOADING", "Outline", "PointsMissing", "StillLoading", "UnloadedPoints", "merged", "outline", "strictly"]

T = TypeVar("T")

#: For users.
LOADING = (
    "Another worker has just taken the run over, and is still loading its older points: they are shown when they are "
    "there; all that is new is judged."
)


class StillLoading(ArchiveError):
    """Some points that a chart would show are not in memory yet."""

    default_code = "still_loading"


class PointsMissing(BaseException):
    """A verdict depends on points that are not in memory yet: judge it again when they are.

    No error: nothing on its way may take it for one and go on.
    """


class Outline(msgspec.Struct, array_like=True):
    """Entries after the stream id ``begin`` up to ``end``: frames, their bytes, rows in their tables.

    Attributes:
        values: numbers placed. order: rows of the run up to ``end``, by the writer's count.
    """

    begin: str
    end: str
    frames: int
    bytes: int
    values: int
    order: int
    tables: list[TableOutline]


def outline(generation: Generation) -> Outline:
    """Return the present outline of a generation."""
    one = generation
    return Outline(one.from_id, one.to_id, one.frames, one.bytes, one.values, one.order, one.outlines())


def merged(outlines: Sequence[Outline]) -> Outline:
    """Return the outline of adjacent generations, oldest first, as if they were one."""
    tables: dict[tuple[object, ...], TableOutline] = {}
    for table in chain.from_iterable(one.tables for one in outlines):
        at = (table.segment, table.rank, table.node, table.stray, tuple(table.names))
        if (known := tables.get(at)) is not None:
            table = replace(
                table,
                first_step=min(known.first_step, table.first_step),
                last_step=max(known.last_step, table.last_step),
                rows=known.rows + table.rows,
            )
        tables[at] = table
    first, last = outlines[0], outlines[-1]
    return Outline(
        first.begin, last.end, sum(one.frames for one in outlines), sum(one.bytes for one in outlines),
        sum(one.values for one in outlines), last.order, list(tables.values()),
    )  # fmt: skip


def strictly(store: RunStore, work: Generator[None, None, T]) -> Generator[None, None, T]:
    """Do ``work`` as in ``store.strictly()``; between its slices others read the loaded points."""
    while True:
        with store.strictly():
            try:
                next(work)
            except StopIteration as end:
                found: T = end.value
                return found
        yield


class UnloadedPoints(Generation):
    """A generation with an outline only.

    Args:
        state: the frozen fold at its end.
    """

    loaded = False

    def __init__(self, known: Outline, state: bytes) -> None:
        super().__init__(known.begin, known.order)
        self.to_id, self.state = known.end, state
        self.frames, self.bytes, self.values = known.frames, known.bytes, known.values
        self.start = RowPlace(known.begin, 0, 0, known.order)
        self.known = known
        self._extents: dict[SeriesKey, Extent] = {}
        for table in known.tables:
            for key in table.series():
                low, high, rows = table.first_step, table.last_step, table.rows
                if (there := self._extents.get(key)) is not None:
                    low, high, rows = min(low, there.first_step), max(high, there.last_step), rows + there.rows
                self._extents[key] = Extent(low, high, rows)

    def outlines(self) -> list[TableOutline]:
        """Return its contents."""
        return self.known.tables

    def keys(self) -> list[SeriesKey]:
        """Return the series of this generation, in the order in which they appeared."""
        return list(self._extents)

    def series(self, key: SeriesKey) -> _UnloadedSeries | None:  # type: ignore[override]
        """Return the outline of a series, None where there is none."""
        extent = self._extents.get(key)
        return None if extent is None else _UnloadedSeries(extent)

    def contents(self) -> NoReturn:
        """Raise StillLoading."""
        raise _loading()

    def since(self, frame_id: str) -> list[Placed]:
        """Raise StillLoading."""
        raise _loading()


class _UnloadedSeries:
    """One series of which the rows are not in memory."""

    def __init__(self, extent: Extent) -> None:
        self.extent = extent

    def rows(self, first: int | None = None, last: int | None = None) -> Rows:
        """Raise StillLoading where it has rows of these steps; else return none."""
        low, high = self.extent.first_step, self.extent.last_step
        if (last is None or low <= last) and (first is None or high >= first):
            raise _loading()
        return Rows.EMPTY

    def aggregates(self, first: int, last: int, level: int) -> Aggs:
        """Raise StillLoading."""
        raise _loading()


def _loading() -> StillLoading:
    return StillLoading(LOADING)
