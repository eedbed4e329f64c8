"""Reads a part: any rows and any aggregates of any series, exactly, touching only the chunks it needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stabilitybackend.archive.aggregates import AGG, EMPTY_AGGS, Aggs, aggregate, regroup, row_counts
from stabilitybackend.archive.cache import ByteCache
from stabilitybackend.archive.layout import (
    LEVELS_CHUNK,
    POINTS_CHUNK,
    Files,
    Part,
    file_checksum,
    levels_sum,
    rows_sum,
)
from stabilitybackend.archive.location import Location
from stabilitybackend.archive.series import Extent, Rows, SeriesKey
from stabilitybackend.archive.table import Entry, SeriesTable, read_table
from stabilitybackend.archive.trouble import READ_TROUBLE, damaged, trouble
from stabilitybackend.archive.writing import write_part

__all__ = ["Part", "PartReader", "write_part"]

#: Bytes of a decoded row: step, value and time.
ROW_BYTES = 24
#: A read of more than this share of the cache passes by it: one long export must not turn out what charts need.
BULK_SHARE = 0.25


class PartReader:
    """Reads one part. Any thread may ask at any time; what it returns is shared and must not be written to.

    Args:
        location: where the files are.
        run_id: the run.
        part: as ``write_part`` returned it.
        cache: of decoded arrays, shared by all readers.
    """

    def __init__(self, location: Location, run_id: str, part: Part, cache: ByteCache) -> None:
        self.part = part
        self._location = location
        self._files = Files.of(run_id, part.stem)
        self._cache = cache
        self._at = (location.base, run_id, part.stem)

    def keys(self) -> dict[SeriesKey, Extent]:
        """Return all series and their extents, in the order in which they first appeared."""
        return self._table().extents

    def rows(self, key: SeriesKey, first: int | None = None, last: int | None = None) -> Rows:
        """Return the rows of ``first <= step <= last``, steps strictly rising; none where there is no such series."""
        table = self._table()
        entry = table.entries.get(key)
        return Rows.EMPTY if entry is None else self._rows(table, entry, first, last)

    def aggregates(self, key: SeriesKey, first: int, last: int, level: int) -> Aggs:
        """Return one AGG for each block of ``2**level`` steps over exactly the rows of ``first <= step <= last``.

        Whole blocks come from the levels that were stored, cut ones from finer levels and at last from the rows.
        """
        table = self._table()
        entry = table.entries.get(key)
        if entry is None or last < entry.first_step or first > entry.last_step:
            return EMPTY_AGGS
        usable = sum(stored.level <= level for stored in entry.levels)
        pieces: list[Aggs] = []
        self._gather(table, entry, first, last, level, usable - 1, pieces)
        if len(pieces) == 1:
            only = pieces[0]
            if bool((only["block"] == only["first_step"] >> level).all()):
                return only
            return regroup(only, level)
        return regroup(np.concatenate(pieces), level) if pieces else EMPTY_AGGS

    def frames(self) -> Iterator[tuple[str, bytes]]:
        """Yield the messages with their stream ids, in the order of the stream, some MiB in memory at a time."""
        table = self._table()
        path = self._location.path(self._files.frames)
        for begin in range(0, self.part.frames, table.frames_group):
            count = min(table.frames_group, self.part.frames - begin)
            frame = self._slice(self._files.frames, ["id", "frame"], begin, count)
            if frame.height != count:
                raise damaged(path, f"expected {self.part.frames} messages, found {begin + frame.height}")
            yield from frame.iter_rows()

    def state(self) -> bytes:
        """Return the fold's state at the end of the part."""
        data = self._location.read_bytes(self._files.state)
        if file_checksum(data) != self.part.state_sum:
            raise damaged(self._location.path(self._files.state), "its checksum is not the one of what was written")
        return data

    def scan(self) -> pl.LazyFrame:
        """Return the points file as Polars sees it; checksums are not looked at."""
        return self._location.scan(self._files.points)

    # --- aggregates --------------------------------------------------------------------------------------------------

    def _gather(
        self, table: SeriesTable, entry: Entry, first: int, last: int, level: int, i: int, pieces: list[Aggs]
    ) -> None:
        """Append what ``[first, last]`` holds, ascending, from the i-th stored level (0 the finest, -1 the rows)."""
        if i < 0:
            finest = entry.levels[0].level
            rows = self._rows(table, entry, first, last)
            if len(rows):
                pieces.append(aggregate(rows, min(level, finest)))
            return
        aggs = self._level(table, entry, i)
        begin = int(np.searchsorted(aggs["first_step"], first, side="left"))
        end = int(np.searchsorted(aggs["last_step"], last, side="right"))
        if begin >= end:
            self._gather(table, entry, first, last, level, i - 1, pieces)
            return
        if begin > 0 and aggs["last_step"][begin - 1] >= first:
            self._gather(table, entry, first, int(aggs["last_step"][begin - 1]), level, i - 1, pieces)
        pieces.append(aggs[begin:end])
        if end < len(aggs) and aggs["first_step"][end] <= last:
            self._gather(table, entry, int(aggs["first_step"][end]), last, level, i - 1, pieces)

    def _level(self, table: SeriesTable, entry: Entry, i: int) -> Aggs:
        """Return all blocks of one stored level of a series."""
        stored = entry.levels[i]
        pieces = []
        for chunk in range(stored.offset // LEVELS_CHUNK, (stored.offset + stored.blocks - 1) // LEVELS_CHUNK + 1):
            begin = chunk * LEVELS_CHUNK
            aggs = self._level_chunk(table, chunk)
            pieces.append(aggs[max(0, stored.offset - begin) : stored.offset + stored.blocks - begin])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _level_chunk(self, table: SeriesTable, chunk: int) -> Aggs:
        def read() -> tuple[Aggs, int]:
            frame = self._slice(self._files.levels, list(AGG.names or ()), chunk * LEVELS_CHUNK, LEVELS_CHUNK)
            aggs = np.empty(frame.height, AGG)
            for name in AGG.names or ():
                aggs[name] = frame[name].to_numpy()
            if levels_sum(aggs) != table.levels_sums[chunk]:
                path = self._location.path(self._files.levels)
                raise damaged(path, f"chunk {chunk} has another checksum than was written")
            aggs.flags.writeable = False
            return aggs, aggs.nbytes

        return self._cache.load((*self._at, "levels", chunk), read)

    # --- rows --------------------------------------------------------------------------------------------------------

    def _rows(self, table: SeriesTable, entry: Entry, first: int | None, last: int | None) -> Rows:
        low = entry.first_step if first is None else max(first, entry.first_step)
        high = entry.last_step if last is None else min(last, entry.last_step)
        if low > high:
            return Rows.EMPTY
        begin, end = 0, entry.rows
        if low > entry.first_step or high < entry.last_step:
            begin, end = self._rows_around(table, entry, low, high)
        return self._read(table, entry.offset + begin, entry.offset + end).between(low, high)

    def _rows_around(self, table: SeriesTable, entry: Entry, low: int, high: int) -> tuple[int, int]:
        """Return a range of rows within the series that holds all of ``[low, high]`` and little more."""
        aggs = self._level(table, entry, 0)
        ends = np.cumsum(row_counts(aggs))
        a = int(np.searchsorted(aggs["last_step"], low, side="left"))
        b = int(np.searchsorted(aggs["first_step"], high, side="right"))
        return (int(ends[a - 1]) if a else 0), (int(ends[b - 1]) if b else 0)

    def _read(self, table: SeriesTable, begin: int, end: int) -> Rows:
        """Return rows by their place in the file."""
        if begin >= end:
            return Rows.EMPTY
        pieces = []
        for chunk in range(begin // POINTS_CHUNK, (end - 1) // POINTS_CHUNK + 1):
            rows = self._points_chunk(table, chunk)
            at = chunk * POINTS_CHUNK
            low, high = max(0, begin - at), end - at
            pieces.append(Rows(rows.steps[low:high], rows.values[low:high], rows.times[low:high]))
        if len(pieces) == 1:
            return pieces[0]
        return Rows(
            np.concatenate([piece.steps for piece in pieces]),
            np.concatenate([piece.values for piece in pieces]),
            np.concatenate([piece.times for piece in pieces]),
        )

    def _points_chunk(self, table: SeriesTable, chunk: int) -> Rows:
        def read() -> tuple[Rows, int]:
            frame = self._slice(self._files.points, ["step", "value", "time"], chunk * POINTS_CHUNK, POINTS_CHUNK)
            rows = Rows(frame["step"].to_numpy(), frame["value"].to_numpy(), frame["time"].to_numpy())
            if rows_sum(rows) != table.points_sums[chunk]:
                path = self._location.path(self._files.points)
                raise damaged(path, f"chunk {chunk} has another checksum than was written")
            return rows, len(rows) * ROW_BYTES

        return self._cache.load((*self._at, "points", chunk), read)

    # --- files -------------------------------------------------------------------------------------------------------

    def _table(self) -> SeriesTable:
        def read() -> tuple[SeriesTable, int]:
            path = self._location.path(self._files.series)
            data = self._location.read_bytes(self._files.series)
            if file_checksum(data) != self.part.series_sum:
                raise damaged(path, "its checksum is not the one of what was written")
            try:
                table = read_table(data)
            except READ_TROUBLE as error:
                raise trouble(error, "read", path) from error
            return table, table.bytes

        return self._cache.load((*self._at, "series"), read)

    def _slice(self, name: str, columns: list[str], offset: int, count: int) -> pl.DataFrame:
        try:
            return self._location.scan(name).select(columns).slice(offset, count).collect()
        except READ_TROUBLE as error:
            raise trouble(error, "read", self._location.path(name)) from error
