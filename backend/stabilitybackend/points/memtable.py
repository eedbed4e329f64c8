"""The newest points of one run in memory: what the run's stream in Redis still holds, cut into generations.

A generation is what came between two stream ids. The open one grows; a sealed one waits for the archiver, which turns
it into a part (``stabilitybackend.archive``) and takes it out of Redis and of memory at the same moment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

import msgspec
import numpy as np
from numpy.typing import NDArray

from stabilitybackend.archive.aggregates import Aggs, aggregate
from stabilitybackend.archive.series import Extent, Rows, SeriesKey, chain_rows, rising_rows
from stabilitybackend.lineage.changes import Placed
from stabilitybackend.streams import stream_order

__all__ = ["Generation", "HotSeries", "RowPlace", "RowRange", "TableOutline", "TablePart", "TableRows", "series_key"]

#: Rows of a new table. Small, because jobs make up 10,000 names that hold a single point each; it doubles.
_FIRST_CAPACITY = 16
#: Sets of rows that a table gathers before it puts them into its columns, which costs as much for many as for one; and
#: how many all tables of a generation gather, so that those of a large job take some ten MiB.
_GATHERED, _ALL_GATHERED = 16, 32_768
#: Held while rows are put into columns: the archiver and queries read in threads.
_COLUMNS = Lock()


class TablePart(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Some rows of one metric in one table, as they came; ``order`` counts rows of the run."""

    rows: Rows
    order: NDArray[np.int64]
    rising: bool

    def between(self, first: int | None, last: int | None) -> TablePart:
        """Return a part without rows outside ``first <= step <= last``; one that does not rise comes whole."""
        if not self.rising:
            return self
        part = self.rows.places(first, last)
        return TablePart(self.rows[part], self.order[part], True)


@dataclass(frozen=True, slots=True)
class TableRows:
    """Some rows of one table, as they came: what a file keeps of them (``runs/archiving/restart_files.py``).

    ``order`` counts rows of the run, one entry a row.
    """

    placed: Placed
    order: NDArray[np.int64]


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


class _NameSetTable:
    """Rows of one set of names by one rank in one segment: columns that grow together."""

    def __init__(self, placed: Placed) -> None:
        self.segment, self.rank, self.stray = placed.segment, placed.rank, placed.stray
        self.node = "" if placed.rank is not None else placed.node
        self.names = list(placed.names)
        self._steps = np.empty(_FIRST_CAPACITY, dtype=np.int64)
        self._times = np.empty(_FIRST_CAPACITY, dtype=np.float64)
        self._order = np.empty(_FIRST_CAPACITY, dtype=np.int64)
        self._values = np.empty((len(self.names), _FIRST_CAPACITY), dtype=np.float64)
        self._size = 0
        #: Whether the steps in its columns rise.
        self.rising = True
        self._gathered: list[tuple[Placed, int]] = []
        #: The smallest and greatest step in its columns.
        self.low, self.high = 0, -1

    def take(self, placed: Placed, order: int, gather: int) -> None:
        """Append rows, which are those from ``order`` on of the run, now or when ``gather`` sets of rows have come."""
        with _COLUMNS:
            self._gathered.append((placed, order))
            if len(self._gathered) >= gather or len(placed.steps) > gather:
                self._settle()

    def extend(self, placed: Placed, order: NDArray[np.int64]) -> None:
        """Append rows, which are the rows ``order`` of the run. What was read before stays as it was."""
        with _COLUMNS:
            self._settle()
            self._extend(placed.steps, placed.times, placed.values, order)

    def settle(self) -> None:
        """Put what was gathered into the columns."""
        if self._gathered:
            with _COLUMNS:
                self._settle()

    def _settle(self) -> None:
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return
        orders = [np.arange(first, first + len(placed.steps)) for placed, first in gathered]
        if len(gathered) == 1:
            placed, _ = gathered[0]
            self._extend(placed.steps, placed.times, placed.values, orders[0])
            return
        self._extend(
            np.concatenate([placed.steps for placed, _ in gathered]),
            np.concatenate([placed.times for placed, _ in gathered]),
            np.concatenate([placed.values for placed, _ in gathered], axis=1),
            np.concatenate(orders),
        )

    def _extend(
        self, steps: NDArray[np.int64], times: NDArray[np.float64], values: NDArray[np.float64],
        order: NDArray[np.int64],
    ) -> None:  # fmt: skip
        count, size = len(steps), self._size
        if size + count > len(self._steps):
            self._grow(max(2 * len(self._steps), size + count))
        low, high = (int(steps[0]),) * 2 if count == 1 else (int(steps.min()), int(steps.max()))
        if self.rising:
            joined = size == 0 or int(steps[0]) > self.high
            self.rising = bool(joined and (count == 1 or (steps[1:] > steps[:-1]).all()))
        self.low, self.high = (low, high) if size == 0 else (min(low, self.low), max(high, self.high))
        self._steps[size : size + count] = steps
        self._times[size : size + count] = times
        self._order[size : size + count] = order
        self._values[:, size : size + count] = values
        self._size = size + count

    def _grow(self, capacity: int) -> None:
        size = self._size
        for name in ("_steps", "_times", "_order"):
            old = getattr(self, name)
            new = np.empty(capacity, dtype=old.dtype)
            new[:size] = old[:size]
            setattr(self, name, new)
        values = np.empty((len(self.names), capacity), dtype=np.float64)
        values[:, :size] = self._values[:, :size]
        self._values = values

    def part(self, row: int) -> TablePart:
        """Return the metric ``row`` as it is now."""
        rows = self.rows(row)
        return TablePart(rows, self._order[: len(rows)], self.rising)

    def rows(self, row: int) -> Rows:
        """Return the rows of the metric ``row`` as they came."""
        self.settle()
        size = self._size
        return Rows(self._steps[:size], self._values[row, :size], self._times[:size])

    def outline(self) -> TableOutline:
        """Return what it holds, without the points."""
        self.settle()
        return TableOutline(self.segment, self.rank, self.node, self.stray, self.names, self.low, self.high, self._size)

    def after(self, order: int) -> TableRows | None:
        """Return the rows that came as row ``order`` of the run or later.

        Nothing is copied, and nothing changes it: a thread may read it.
        """
        self.settle()
        size = self._size
        first = int(np.searchsorted(self._order[:size], order))
        if first == size:
            return None
        part = slice(first, size)
        placed = Placed(
            self.segment, "", self.rank, self.node, self.names,
            self._steps[part], self._times[part], self._values[:, part], self.stray,
        )  # fmt: skip
        return TableRows(placed, self._order[part])


class TableOutline(msgspec.Struct, array_like=True):
    """The rows of one set of metrics by one process in one segment, without the points.

    Attributes:
        rank: None for readings of an agent, which has a node. stray: as of ``Placed``.
        first_step, last_step: the smallest and greatest one. rows: repeated steps count again.
    """

    segment: int
    rank: int | None
    node: str
    stray: bool
    names: list[str]
    first_step: int
    last_step: int
    rows: int

    def series(self) -> Iterator[SeriesKey]:
        """Yield the series of these rows."""
        for name in self.names:
            yield SeriesKey(name, self.segment, self.rank, self.node, self.stray)


class HotSeries:
    """One series of one generation as it was when this was made. Nothing changes it, so a thread may read it.

    Args:
        parts: one of each table that has the metric.
        extent: its smallest and greatest step, and rows (a step that was logged twice counts twice).
    """

    def __init__(self, parts: Sequence[TablePart], extent: Extent) -> None:
        self._parts = parts
        self.extent = extent

    def rows(self, first: int | None = None, last: int | None = None) -> Rows:
        """Return the rows of ``first <= step <= last``, steps strictly rising.

        If a step was logged more than once the last value counts: that is what a training loop means when
        it logs again.
        """
        if len(self._parts) == 1 and self._parts[0].rising:
            return self._parts[0].rows.between(first, last)
        parts = [part.between(first, last) for part in self._parts]  # sorting a whole run for a window would be dear
        came = np.argsort(np.concatenate([part.order for part in parts]), kind="stable")
        return rising_rows(chain_rows([part.rows for part in parts])[came]).between(first, last)

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
        self._tables: dict[tuple[object, ...], _NameSetTable] = {}
        self._gather = _GATHERED
        self._by_key: dict[SeriesKey, list[tuple[_NameSetTable, int]]] = {}
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

    def add(self, placed: Placed) -> list[SeriesKey]:
        """Take rows; return the series that are new here."""
        table, new = self._table_of(placed, tuple(placed.names))
        table.take(placed, self._order, self._gather)
        self._order += len(placed.steps)
        self.values += len(placed.names) * len(placed.steps)
        return new

    def add_in_step(self, rows: Sequence[Placed]) -> list[SeriesKey]:
        """Do the same with rows, one each, of the same metrics."""
        names, new = tuple(rows[0].names), list[SeriesKey]()
        for order, placed in enumerate(rows, self._order):
            table, made = self._table_of(placed, names)
            table.take(placed, order, self._gather)
            new += made
        self._order += len(rows)
        self.values += len(names) * len(rows)
        return new

    def _extend(self, placed: Placed, order: NDArray[np.int64]) -> list[SeriesKey]:
        table, new = self._table_of(placed, tuple(placed.names))
        table.extend(placed, order)
        self.values += placed.values.size
        return new

    def _table_of(self, placed: Placed, names: tuple[str, ...]) -> tuple[_NameSetTable, list[SeriesKey]]:
        """Return the table for some rows, of metrics ``names``, and the series that are new with it."""
        node = "" if placed.rank is not None else placed.node
        at = (placed.segment, placed.rank, node, placed.stray, names)
        table = self._tables.get(at)
        new: list[SeriesKey] = []
        if table is None:
            table = self._tables[at] = _NameSetTable(placed)
            self._gather = max(1, min(_GATHERED, _ALL_GATHERED // len(self._tables)))
            for row, name in enumerate(names):
                key = series_key(placed, name)
                tables = self._by_key.get(key)
                if tables is None:
                    self._by_key[key] = [(table, row)]
                    new.append(key)
                else:
                    tables.append((table, row))
        return table, new

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

    def put_back(self, stretch: RowRange) -> list[SeriesKey]:
        """Take the next stretch of what this generation held before; return the series that are new here."""
        new = [key for rows in stretch.tables for key in self._extend(rows.placed, rows.order)]
        self._marks += [((ms, number), order) for ms, number, order in stretch.marks.tolist()]
        self.to_id, self._order = stretch.end.to_id, stretch.end.order
        self.frames += stretch.end.frames - stretch.begin.frames
        self.bytes += stretch.end.bytes - stretch.begin.bytes
        return new

    def outlines(self) -> list[TableOutline]:
        """Return what its tables hold, without the points."""
        return [table.outline() for table in self._tables.values()]

    def keys(self) -> list[SeriesKey]:
        """Return the series of this generation, in the order in which they appeared."""
        return list(self._by_key)

    def series(self, key: SeriesKey) -> HotSeries | None:
        """Return one series as it is now, None where there is none."""
        tables = self._by_key.get(key)
        if tables is None:
            return None
        parts = [table.part(row) for table, row in tables]
        low, high = min(table.low for table, _ in tables), max(table.high for table, _ in tables)
        return HotSeries(parts, Extent(low, high, sum(len(part.rows) for part in parts)))

    def contents(self) -> Iterator[tuple[SeriesKey, Rows]]:
        """Yield every series with its rows, steps strictly rising."""
        for key, tables in self._by_key.items():
            table, row = tables[0]
            rows = table.rows(row)
            if len(tables) > 1 or not table.rising:
                series = self.series(key)
                assert series is not None
                rows = series.rows()
            yield key, rows

    def since(self, frame_id: str) -> list[Placed]:
        """Return the rows that came with frames after ``frame_id``."""
        at = bisect_right(self._marks, stream_order(frame_id), key=lambda mark: mark[0])
        if at == len(self._marks):
            return []
        return [rows.placed for rows in self._after(self._marks[at][1])]

    def _after(self, order: int) -> Iterator[TableRows]:
        return filter(None, [table.after(order) for table in list(self._tables.values())])
