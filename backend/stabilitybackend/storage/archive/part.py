"""Reads a part: any rows and any aggregates of any series, exactly, touching only the chunks it needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from stabilitybackend.storage.archive.aggregates import AGG, EMPTY_AGGS, Aggs, aggregate, join_aggs, regroup, row_counts
from stabilitybackend.storage.archive.cache import ByteCache
from stabilitybackend.storage.archive.layout import Files, Part, file_checksum, levels_sum, messages_sum, rows_sum
from stabilitybackend.storage.archive.location import Location
from stabilitybackend.storage.archive.series import Extent, Rows, SeriesKey, chain_rows
from stabilitybackend.storage.archive.table import Entry, SeriesTable, read_table
from stabilitybackend.storage.archive.trouble import damaged
from stabilitybackend.storage.archive.writing import write_part

__all__ = ["Part", "PartReader", "write_part"]

#: Bytes of a decoded row: step, value and time.
ROW_BYTES = 24
#: Chunks of points of one read: 25 MB.
BULK_CHUNKS = 64
#: A read of more than this share of the cache passes by it: one long export must not evict the data of charts.
BULK_SHARE = 0.25
#: A block that is cut is made from its rows where it has no more than these: a finer level would cost a read of
#: its own, and so many rows lie in one chunk or two.
EDGE_ROWS = 8_192


class PartReader:
    """Reads one part. Safe to call from any thread; results are shared and must not be written to.

    Args:
        cache: of decoded arrays, shared by all readers.

    Raises:
        ArchiveError: from every method. A file is missing, damaged or can't be reached; the message names it.
    """

    def __init__(self, location: Location, run_id: str, part: Part, cache: ByteCache) -> None:
        self.part = part
        self._location = location
        self._files = Files.of(run_id, part.stem)
        self._cache = cache
        self._at = (location.base, run_id, part.stem)

    def keys(self) -> dict[SeriesKey, Extent]:
        """Return all series and their extents, in the order in which they first appeared."""
        return self._table().extents()

    def rows(self, key: SeriesKey, first: int | None = None, last: int | None = None) -> Rows:
        """Return the rows of ``first <= step <= last`` by step; none where there is no such series."""
        table = self._table()
        entry = table.entry(key)
        if entry is None:
            return Rows.EMPTY
        low = entry.first_step if first is None else max(first, entry.first_step)
        high = entry.last_step if last is None else min(last, entry.last_step)
        return self._rows(table, entry, low, high)

    def aggregates(self, key: SeriesKey, first: int, last: int, level: int) -> Aggs:
        """Return one AGG for each block of ``2**level`` steps over exactly the rows of ``first <= step <= last``.

        Requested ranges stay in the cache: a part never changes, and a chart of fifty segments requests the same again
        each time it is drawn (10 M points, 48 segments: 5.4 ms without, 1.5 ms with it).
        """

        def gather() -> tuple[Aggs, int]:
            aggs = self._gathered(key, first, last, level)
            aggs = aggs if aggs.base is None else aggs.copy()  # a slice would hold its whole chunk
            return _read_only(aggs), aggs.nbytes

        return self._cache.load((*self._at, "asked", key, first, last, level), gather)

    def _gathered(self, key: SeriesKey, first: int, last: int, level: int) -> Aggs:
        """Return the same: whole blocks from the levels that were stored, cut ones from finer levels or the rows."""
        table = self._table()
        entry = table.entry(key)
        if entry is None or first > last or last < entry.first_step or first > entry.last_step:
            return EMPTY_AGGS
        finest = sum(stored.level <= level for stored in entry.levels) - 1
        pieces: list[Aggs] = []
        self._gather(table, entry, max(first, entry.first_step), min(last, entry.last_step), level, finest, pieces)
        if not pieces:
            return EMPTY_AGGS
        aggs = join_aggs(pieces)
        blocks = aggs["block"]
        # A block that a rollback cut is stored in two: one of its sides alone, or both to be joined here.
        if len(pieces) == 1 and bool(
            (blocks == aggs["first_step"] >> level).all() and (blocks[1:] > blocks[:-1]).all()
        ):
            return aggs
        return regroup(aggs, level)

    def frames(self) -> Iterator[tuple[str, bytes]]:
        """Yield the messages with their stream ids, in the order of the stream, some MiB in memory at a time."""
        table = self._table()
        for number, expected in enumerate(table.frames_sums):
            begin = number * table.frames_group
            count = min(table.frames_group, self.part.frames - begin)
            frame = self._read(self._files.frames, ["id", "frame"], begin, count)
            ids, messages = frame["id"].to_list(), frame["frame"].to_list()
            if messages_sum(ids, messages) != expected:
                path = self._location.path(self._files.frames)
                raise damaged(path, f"row group {number} has another checksum than what was written")
            yield from zip(ids, messages, strict=True)

    def state(self) -> bytes:
        """Return the fold's state at the end of the part."""
        return self._read_whole(self._files.state, self.part.state_sum)

    # --- aggregates --------------------------------------------------------------------------------------------------

    def _gather(
        self, table: SeriesTable, entry: Entry, first: int, last: int, level: int, i: int, pieces: list[Aggs]
    ) -> None:
        """Append the blocks of ``[first, last]``, ascending, from the i-th stored level (0 the finest, -1 the rows)."""
        if i < 0:
            rows = self._rows(table, entry, first, last)
            if len(rows):
                pieces.append(aggregate(rows, level))
            return
        aggs = self._level(table, entry, i, first, last)
        begin = int(np.searchsorted(aggs["first_step"], first, side="left"))
        end = int(np.searchsorted(aggs["last_step"], last, side="right"))
        if begin >= end:  # no whole block
            finer = _finer(aggs[max(0, end - 1) : begin + 1], i)
            self._gather(table, entry, first, last, level, finer, pieces)
            return
        if begin > 0 and aggs["last_step"][begin - 1] >= first:
            cut = aggs[begin - 1 : begin]
            self._gather(table, entry, first, int(cut["last_step"][0]), level, _finer(cut, i), pieces)
        pieces.append(aggs[begin:end])
        if end < len(aggs) and aggs["first_step"][end] <= last:
            cut = aggs[end : end + 1]
            self._gather(table, entry, int(cut["first_step"][0]), last, level, _finer(cut, i), pieces)

    def _level(self, table: SeriesTable, entry: Entry, i: int, first: int, last: int) -> Aggs:
        """Return the blocks of one stored level of a series that touch ``[first, last]``, and some neighbours."""
        stored = entry.levels[i]
        pieces = []
        for chunk in table.levels.holding(stored.offset, stored.blocks, first, last):
            at = chunk * table.levels.rows
            aggs = self._level_chunk(table, chunk)
            pieces.append(aggs[max(0, stored.offset - at) : stored.offset + stored.blocks - at])
        return join_aggs(pieces)

    def _level_chunk(self, table: SeriesTable, chunk: int) -> Aggs:
        def read() -> tuple[Aggs, int]:
            names = AGG.names or ()
            frame = self._read(self._files.levels, names, chunk * table.levels.rows, table.levels.rows, whole=False)
            aggs = np.empty(frame.height, AGG)
            for name in names:
                aggs[name] = frame[name].to_numpy()
            self._check(self._files.levels, chunk, levels_sum(aggs), table.levels.sums)
            return _read_only(aggs), aggs.nbytes

        return self._cache.load((*self._at, "levels", chunk), read)

    # --- rows --------------------------------------------------------------------------------------------------------

    def _rows(self, table: SeriesTable, entry: Entry, first: int, last: int) -> Rows:
        """Return the rows of ``[first, last]``, which lies within the series' extent."""
        if first > last:
            return Rows.EMPTY
        wanted = table.points.holding(entry.offset, entry.rows, first, last)
        pieces = self._points_chunks(table, wanted)
        at = wanted.start * table.points.rows
        low, high = max(0, entry.offset - at), entry.offset + entry.rows - at
        return chain_rows(pieces)[low:high].between(first, last)

    def _points_chunks(self, table: SeriesTable, wanted: range) -> list[Rows]:
        """Return adjacent chunks as pieces that follow one another."""
        if len(wanted) == 1:
            key = (*self._at, "points", wanted.start)
            return [self._cache.load(key, lambda: self._points_chunk(table, wanted.start))]
        keep = len(wanted) * table.points.rows * ROW_BYTES <= BULK_SHARE * self._cache.max_bytes
        pieces: list[Rows] = []
        missing = wanted[:0]
        for chunk in wanted:
            found = self._cache.get((*self._at, "points", chunk))
            if found is None and len(missing) < BULK_CHUNKS:
                missing = range(missing.start if len(missing) else chunk, chunk + 1)
                continue
            if missing:
                pieces += self._bulk(table, missing, keep)
                missing = wanted[:0]
            if found is not None:
                pieces.append(found)
            else:
                missing = range(chunk, chunk + 1)
        return pieces + self._bulk(table, missing, keep) if missing else pieces

    def _points_chunk(self, table: SeriesTable, chunk: int) -> tuple[Rows, int]:
        rows = self._bulk(table, range(chunk, chunk + 1), keep=False)[0]
        return rows, len(rows) * ROW_BYTES

    def _bulk(self, table: SeriesTable, chunks: range, keep: bool) -> list[Rows]:
        """Read adjacent chunks together; retain copies of the requested ones."""
        size = table.points.rows
        columns = ["step", "value", "time"]
        frame = self._read(self._files.points, columns, chunks.start * size, len(chunks) * size, whole=False)
        rows = Rows(*(_read_only(frame[name].to_numpy()) for name in columns))
        for i, chunk in enumerate(chunks):
            piece = rows[i * size : (i + 1) * size]
            self._check(self._files.points, chunk, rows_sum(piece), table.points.sums)
            if keep:
                # A copy: a view would hold the memory of all chunks for as long as one of them is in the cache.
                copy = Rows(*(_read_only(column.copy()) for column in (piece.steps, piece.values, piece.times)))
                self._cache.put((*self._at, "points", chunk), copy, len(copy) * ROW_BYTES)
        return [rows]

    # --- files -------------------------------------------------------------------------------------------------------

    def _table(self) -> SeriesTable:
        def read() -> tuple[SeriesTable, int]:
            data = self._read_whole(self._files.series, self.part.series_sum)
            try:
                table = read_table(data)
            except msgspec.MsgspecError as error:
                raise damaged(self._location.path(self._files.series), str(error)) from error
            return table, table.bytes

        return self._cache.load((*self._at, "series"), read)

    def _read_whole(self, name: str, expected: int) -> bytes:
        data = self._location.read_bytes(name)
        if file_checksum(data) != expected:
            raise damaged(
                self._location.path(name), f"its {len(data)} bytes have another checksum than what was written"
            )
        return data

    def _read(
        self, name: str, columns: list[str] | tuple[str, ...], offset: int, count: int, whole: bool = True
    ) -> pl.DataFrame:
        frame = self._location.read(name, columns, offset, count)
        if frame.height == 0 or (whole and frame.height != count):
            path = self._location.path(name)
            raise damaged(path, f"expected {count} rows from row {offset} on, found {frame.height}")
        return frame

    def _check(self, name: str, chunk: int, found: int, expected: list[int]) -> None:
        if found != expected[chunk]:
            raise damaged(self._location.path(name), f"chunk {chunk} has another checksum than what was written")


def _finer(cut: Aggs, i: int) -> int:
    """Return the stored level for rows of blocks that are cut: the rows themselves (-1) where these are few."""
    return -1 if int(row_counts(cut).sum()) <= EDGE_ROWS else i - 1


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
