"""The newest points of one run in memory: what the run's stream in Redis still holds, cut into generations.

A generation is what came between two stream ids. The open one grows; a sealed one waits for the archiver, which turns
it into a part (``stabilitybackend.storage.archive``) and takes it out of Redis and of memory at the same moment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.name_sets import key_of
from stabilitybackend.base.streams import stream_order
from stabilitybackend.lineage.changes import Placed, PlacedInStep
from stabilitybackend.storage.archive.aggregates import Aggs, aggregate
from stabilitybackend.storage.archive.series import Extent, Rows, SeriesKey, by_step, chain_rows
from stabilitybackend.storage.points.row_table import RowTable, TableOutline, TablePart, TableRows

__all__ = ["Generation", "HotSeries", "RowPlace", "RowRange", "series_key"]

#: Sets of rows that a table gathers before it puts them into its columns, which costs as much for many as for one; and
#: how many all tables of a generation gather, so that those of a large job take some ten MiB.
_GATHERED, _ALL_GATHERED = 16, 32_768
#: Held while it is noted where series are: the archiver asks for that in a thread.
_PLACES = Lock()


@dataclass(frozen=True, slots=True)
class RowPlace:
    """How far a generation had come at one moment: its newest frame, and what it held."""

    to_id: str
    frames: int
    bytes: int
    order: int


@dataclass(frozen=True, slots=True)
class RowRange:
    """What came between two places of one generation. ``marks``: ms, number and first row of each frame, as int64."""

    begin: RowPlace
    end: RowPlace
    marks: NDArray[np.int64]
    tables: list[TableRows]


def series_key(placed: Placed, metric: str) -> SeriesKey:
    """Return the series to which the rows of ``metric`` belong."""
    node = "" if placed.rank is not None else placed.node
    return SeriesKey(metric, placed.segment, placed.rank, node, placed.stray)


class HotSeries:
    """One series of one generation as it was when this was made. Nothing changes it, so a thread may read it.

    Args:
        parts: one of each table that has the metric.
        extent: its smallest and greatest step, and rows.
    """

    def __init__(self, parts: Sequence[TablePart], extent: Extent) -> None:
        self._parts = parts
        self.extent = extent

    def rows(self, first: int | None = None, last: int | None = None) -> Rows:
        """Return the rows of ``first <= step <= last`` by step, those of one step as they came."""
        if len(self._parts) == 1 and self._parts[0].in_order:
            return self._parts[0].rows.between(first, last)
        parts = [part.between(first, last) for part in self._parts]  # sorting a whole run for a window would be dear
        came = np.argsort(np.concatenate([part.order for part in parts]), kind="stable")
        return by_step(chain_rows([part.rows for part in parts])[came]).between(first, last)

    def aggregates(self, first: int, last: int, level: int) -> Aggs:
        """Return one aggregate per block of ``2**level`` steps over the rows of ``first <= step <= last``."""
        return aggregate(self.rows(first, last), level)


class Generation:
    """What came after ``from_id``.

    Args:
        from_id: stream id before the first frame.
        order: rows of the run before it.

    Attributes:
        to_id: stream id of the last frame.
        state: the frozen fold at ``to_id`` (``snapshot.freeze``); None while the generation is open.
        frames, bytes: of the stream. values: numbers placed.
        loaded: whether its points are in memory (``points/unloaded.py``).
    """

    loaded = True

    def __init__(self, from_id: str, order: int) -> None:
        self.from_id = self.to_id = from_id
        self.state: bytes | None = None
        self.frames = self.bytes = self.values = 0
        self._tables: dict[tuple[object, ...], RowTable] = {}
        self._gather = _GATHERED
        #: (segment, rank, node, stray) -> how many tables there are, and those whose series nobody has asked for yet.
        self._counts: dict[tuple[object, ...], int] = {}
        self._unasked: dict[tuple[object, ...], list[RowTable]] = {}
        #: Series -> where in its tables: of those that somebody asked for, since a hundred thousand take their time.
        self._by_key: dict[SeriesKey, list[tuple[RowTable, int]]] = {}
        self._marks: list[tuple[tuple[int, int], int]] = []
        self._order = order
        #: Where it began.
        self.start = RowPlace(from_id, 0, 0, order)

    @property
    def order(self) -> int:
        """Rows of the run up to here."""
        return self._order

    def begin(self, frame_id: str, size: int) -> None:
        """Note that the next rows are of the frame ``frame_id``, ``size`` bytes in the stream."""
        self.to_id = frame_id
        self.frames += 1
        self.bytes += size
        self._marks.append((stream_order(frame_id), self._order))

    def add(self, placed: Placed) -> list[RowTable]:
        """Take rows; return the tables that are new with it."""
        table, new = self._table_of(placed, key_of(placed.names))
        table.take(placed, self._order, self._gather)
        self._order += len(placed.steps)
        self.values += len(placed.names) * len(placed.steps)
        return new

    def add_in_step(self, rows: PlacedInStep) -> list[RowTable]:
        """Do the same with a row of each of some ranks: where they come so again and again, all have one table."""
        ranks, names = tuple([info.rank or 0 for info in rows.infos]), key_of(rows.names)
        table, new = self._table((rows.segment, ranks[0], names), rows.segment, ranks, "", False)
        if table.ranks != ranks:  # another set of ranks each time must not have a table each
            return [table for placed in rows.each() for table in self.add(placed)]
        table.take_in_step(rows, self._order, self._gather)
        self._order += len(ranks)
        self.values += len(names) * len(ranks)
        return new

    def reserve(self, rows: int) -> int:
        """Note that so many rows of the newest frame come by ``put``; return which of the run the first one is."""
        self._order += rows
        return self._order - rows

    def put(self, placed: Placed, order: NDArray[np.int64]) -> list[RowTable]:
        """Take rows, which are the rows ``order`` of the run; return the tables that are new with them."""
        table, new = self._table_of(placed, key_of(placed.names))
        table.extend(placed.steps, placed.times[None], placed.values, order)
        self.values += placed.values.size
        return new

    def put_in_step(self, rows: Sequence[Placed], order: NDArray[np.int64]) -> list[RowTable]:
        """Do the same with rows of ranks that log in step; ``order`` is that of the first one's rows."""
        first, ranks, names = rows[0], tuple([placed.rank for placed in rows]), key_of(rows[0].names)
        table, new = self._table((first.segment, ranks[0], names), first.segment, ranks, "", False)
        if table.ranks != ranks:
            return [table for at, placed in enumerate(rows) for table in self.put(placed, order + at)]
        times, values = (
            np.stack([placed.times for placed in rows]),
            np.stack([placed.values for placed in rows], axis=1),
        )
        table.extend(first.steps, times, values.reshape(-1, len(order)), order)
        self.values += values.size
        return new

    def _table_of(self, placed: Placed, names: tuple[str, ...]) -> tuple[RowTable, list[RowTable]]:
        """Return the table for some rows, of metrics ``names``, and whether it is new, as a list of those that are."""
        segment, rank, stray, node = placed.segment, placed.rank, placed.stray, placed.node
        node = "" if rank is not None else node
        return self._table((segment, rank, node, stray, names), segment, (rank,), node, stray)

    def _table(
        self, at: tuple[Any, ...], segment: int, ranks: tuple[int | None, ...], node: str, stray: bool
    ) -> tuple[RowTable, list[RowTable]]:
        """Return the table under ``at``, which ends with its metrics, and the same as ``_table_of``."""
        table = self._tables.get(at)
        if table is not None:
            return table, []
        table = self._tables[at] = RowTable(at, segment, ranks, node, stray)
        self._gather = max(1, min(_GATHERED, _ALL_GATHERED // len(self._tables)))
        for rank in ranks:
            who = (segment, rank, node, stray)
            self._counts[who] = self._counts.get(who, 0) + 1
            self._unasked.setdefault(who, []).append(table)
        return table, [table]

    def has(self, table: RowTable) -> bool:
        """Return whether there is such a table here, too."""
        known = self._tables.get(table.at)
        return known is not None and known.ranks == table.ranks

    # --- parts of it, for a file ---------------------------------------------------------------------------------

    @property
    def place(self) -> RowPlace:
        """How far it has come."""
        return RowPlace(self.to_id, self.frames, self.bytes, self._order)

    def stretch(self, begin: RowPlace) -> RowRange:
        """Return what came after ``begin``, a place of this generation. Nothing is copied; a thread may read it."""
        marks = [(*at, order) for at, order in self._marks[begin.frames :]]
        return RowRange(
            begin, self.place, np.array(marks, dtype=np.int64).reshape(-1, 3), list(self._after(begin.order))
        )

    def put_back(self, stretch: RowRange) -> list[RowTable]:
        """Take the next stretch of what this generation held before; return the tables that are new with it."""
        new = [table for rows in stretch.tables for table in self.put(rows.placed, rows.order)]
        self._marks += [((ms, number), order) for ms, number, order in stretch.marks.tolist()]
        self.to_id, self._order = stretch.end.to_id, stretch.end.order
        self.frames += stretch.end.frames - stretch.begin.frames
        self.bytes += stretch.end.bytes - stretch.begin.bytes
        return new

    def outlines(self) -> list[TableOutline]:
        """Return what its tables hold, without the points."""
        return [outline for table in self._tables.values() for outline in table.outlines()]

    def keys(self) -> list[SeriesKey]:
        """Return the series of this generation, in the order in which they appeared."""
        return list(dict.fromkeys(key for table in self._tables.values() for key in table.series()))

    def _places(self, key: SeriesKey) -> list[tuple[RowTable, int]]:
        """Return the tables that have a series, and where."""
        with _PLACES:
            for table in self._unasked.pop((key.segment, key.rank, key.node, key.stray), ()):
                if not table.placed:
                    table.placed = True
                    for row, one in enumerate(table.series()):
                        self._by_key.setdefault(one, []).append((table, row))
            return self._by_key.get(key, [])

    def series(self, key: SeriesKey) -> HotSeries | None:
        """Return one series as it is now, None where there is none."""
        tables = self._places(key)
        if not tables:
            return None
        parts = [table.part(row) for table, row in tables]
        low, high = min(table.low for table, _ in tables), max(table.high for table, _ in tables)
        return HotSeries(parts, Extent(low, high, sum(len(part.rows) for part in parts)))

    def contents(self) -> Iterator[tuple[SeriesKey, Rows]]:
        """Yield every series with its rows by step."""
        yielded = set[SeriesKey]()
        for table in self._tables.values():
            alone = [self._counts[table.segment, rank, table.node, table.stray] == 1 for rank in table.ranks]
            for row, key in enumerate(table.series()):
                rows = table.rows(row)
                if alone[row % len(alone)] and table.in_order:
                    yield key, rows
                elif key not in yielded:
                    yielded.add(key)
                    series = self.series(key)
                    assert series is not None
                    yield key, series.rows()

    def since(self, frame_id: str) -> list[Placed]:
        """Return the rows that came with frames after ``frame_id``."""
        at = bisect_right(self._marks, stream_order(frame_id), key=lambda mark: mark[0])
        if at == len(self._marks):
            return []
        return [rows.placed for rows in self._after(self._marks[at][1])]

    def _after(self, order: int) -> Iterator[TableRows]:
        # A job may have a table a row, of which few have anything new.
        return chain.from_iterable([one.after(order) for one in list(self._tables.values()) if one.newest >= order])
