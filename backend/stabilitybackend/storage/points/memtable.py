"""The newest points of one run in memory: the contents of the run's stream in Redis, cut into generations.

A generation lies between two stream ids. The open one grows; a sealed one waits for the archiver, which turns
it into a part (``stabilitybackend.storage.archive``) and takes it out of Redis and of memory at the same moment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import attrgetter
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.name_sets import key_of
from stabilitybackend.base.streams import stream_order
from stabilitybackend.lineage.batch import Batch, Placed, Source, Table
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
    """Size of a generation at one moment: its newest frame, and its contents."""

    to_id: str
    frames: int
    bytes: int
    order: int


@dataclass(frozen=True, slots=True)
class RowRange:
    """Frames between two places of one generation. ``marks``: ms, number and first row of each frame, as int64."""

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
        """Return the rows of ``first <= step <= last`` by step, those of one step in order of arrival."""
        if len(self._parts) == 1 and self._parts[0].in_order:
            return self._parts[0].rows.between(first, last)
        parts = [part.between(first, last) for part in self._parts]  # sorting a whole run for a window would be dear
        came = np.argsort(np.concatenate([part.order for part in parts]), kind="stable")
        return by_step(chain_rows([part.rows for part in parts])[came]).between(first, last)

    def aggregates(self, first: int, last: int, level: int) -> Aggs:
        """Return one aggregate per block of ``2**level`` steps over the rows of ``first <= step <= last``."""
        return aggregate(self.rows(first, last), level)


class Generation:
    """Frames after ``from_id``.

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
        #: (segment, rank, node, stray) -> number of tables, and those whose series have not been requested yet.
        self._counts: dict[tuple[object, ...], int] = {}
        self._unasked: dict[tuple[object, ...], list[RowTable]] = {}
        #: Series -> its place in the tables: of requested ones, since a hundred thousand take their time.
        self._by_key: dict[SeriesKey, list[tuple[RowTable, int]]] = {}
        self._marks: list[tuple[tuple[int, int], int]] = []
        self._order = order
        #: Where it began.
        self.start = RowPlace(from_id, 0, 0, order)

    @property
    def order(self) -> int:
        """Rows of the run up to here."""
        return self._order

    def begin(self, frame_id: str, size: int, ahead: int = 0) -> None:
        """Note that the rows behind the next ``ahead`` ones are of a frame that takes ``size`` bytes of the stream."""
        self.to_id = frame_id
        self.frames += 1
        self.bytes += size
        self._marks.append((stream_order(frame_id), self._order + ahead))

    def add(self, batch: Batch) -> list[RowTable]:
        """Take rows; return the tables that are new with them."""
        new = list[RowTable]()
        for table in batch.tables:
            if not table.names:
                continue
            order = table.order + self._order
            if len(table.sources) == 1:
                new += self._put_each(batch, table, order, slice(None))
                continue
            at = 0
            for _, some in groupby(table.sources, attrgetter("node")):
                # Rows of the ranks of a node, at one step again and again, share a table.
                members = slice(at, at := at + len(list(some)))
                steps, own = table.steps[:, members], order[:, members]
                in_step = steps.shape[1] > 1 and not np.count_nonzero(steps != steps[:, :1])
                if in_step and int(own[0, -1] - own[0, 0]) == steps.shape[1] - 1:
                    new += self._put_together(batch, table, order, members)
                else:
                    new += self._put_each(batch, table, order, members)
        self._order += batch.count
        return new

    def _put_each(self, batch: Batch, table: Table, order: NDArray[np.int64], members: slice) -> list[RowTable]:
        """Take rows of some processes, each in a table of its own."""
        new = list[RowTable]()
        for at in range(*members.indices(len(table.sources))):
            new += self.put(
                batch.segment, table.sources[at], table.names, table.steps[:, at], table.times[:, at],
                table.values[:, :, at], order[:, at], stray=batch.stray,
            )  # fmt: skip
        return new

    def _put_together(self, batch: Batch, table: Table, order: NDArray[np.int64], members: slice) -> list[RowTable]:
        """Take rows of ranks that log in step, in one table; others where another set of ranks comes each time."""
        ranks, names = tuple([source.rank for source in table.sources[members]]), key_of(table.names)
        rows, new = self._table((batch.segment, ranks[0], names), batch.segment, ranks, "", batch.stray)
        if rows.ranks != ranks:
            return self._put_each(batch, table, order, members)
        values = table.values[:, :, members].swapaxes(1, 2).reshape(len(names) * len(ranks), -1)
        rows.take(
            table.steps[:, members.start], table.times[:, members].T, values, order[:, members.start], self._gather
        )
        self.values += values.size
        return new

    def put(
        self, segment: int, source: Source, names: list[str], steps: NDArray[np.int64], times: NDArray[np.float64],
        values: NDArray[np.float64], order: NDArray[np.int64], *, stray: bool,
    ) -> list[RowTable]:  # fmt: skip
        """Take the rows ``order`` of the run, of one process; return the tables that are new with them."""
        rank, row = source.rank, key_of(names)
        node = "" if rank is not None else source.node
        table, new = self._table((segment, rank, node, stray, row), segment, (rank,), node, stray)
        table.take(steps, times[None], values, order, self._gather)
        self.values += values.size
        return new

    def _table(
        self, at: tuple[Any, ...], segment: int, ranks: tuple[int | None, ...], node: str, stray: bool
    ) -> tuple[RowTable, list[RowTable]]:
        """Return the table under ``at``, which ends with its metrics, and a list with it where it is new."""
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

    # --- parts, for a file ---------------------------------------------------------------------------------------

    @property
    def place(self) -> RowPlace:
        """How far it has come."""
        return RowPlace(self.to_id, self.frames, self.bytes, self._order)

    def stretch(self, begin: RowPlace) -> RowRange:
        """Return the stretch after ``begin``, a place of this generation. Nothing is copied; a thread may read it."""
        marks = [(*at, order) for at, order in self._marks[begin.frames :]]
        return RowRange(
            begin, self.place, np.array(marks, dtype=np.int64).reshape(-1, 3), list(self._after(begin.order))
        )

    def put_back(self, stretch: RowRange) -> list[RowTable]:
        """Take the next stretch of this generation's former contents; return the tables that are new with it."""
        new = []
        for rows in stretch.tables:
            one = rows.placed
            new += self.put(one.segment, one, one.names, one.steps, one.times, one.values, rows.order, stray=one.stray)
        self._marks += [((ms, number), order) for ms, number, order in stretch.marks.tolist()]
        self.to_id, self._order = stretch.end.to_id, stretch.end.order
        self.frames += stretch.end.frames - stretch.begin.frames
        self.bytes += stretch.end.bytes - stretch.begin.bytes
        return new

    def outlines(self) -> list[TableOutline]:
        """Return the contents of its tables, without the points."""
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
        """Return the present state of one series, None where there is none."""
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
        """Return the rows of the frames after ``frame_id``."""
        at = bisect_right(self._marks, stream_order(frame_id), key=lambda mark: mark[0])
        if at == len(self._marks):
            return []
        return [rows.placed for rows in self._after(self._marks[at][1])]

    def _after(self, order: int) -> Iterator[TableRows]:
        # A job may have a table a row, of which few have anything new.
        return chain.from_iterable([one.after(order) for one in list(self._tables.values()) if one.newest >= order])
