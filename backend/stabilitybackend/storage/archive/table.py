"""The table of a part: the location of each series in its files, and the checksum of each chunk."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from stabilitybackend.storage.archive.series import Extent, SeriesKey

__all__ = ["Chunks", "Entry", "SeriesTable", "StoredLevel", "TableFile", "read_table", "write_table"]

#: Bytes of memory that a series of the table takes: measured with 24,576 of them (tracemalloc), 575.
SERIES_BYTES = 600
#: The same of a chunk.
CHUNK_BYTES = 80


class Chunks(msgspec.Struct, frozen=True):
    """The chunks of a file, each of the same number of rows but for the last.

    Attributes:
        rows: of a chunk.
        sums: checksum of each. steps: (first) step of the first row of each; of a series that spans several chunks
            these say which of them hold a step, so that a window costs no more reads than it has chunks.
    """

    rows: int
    sums: list[int]
    steps: list[int]

    def holding(self, offset: int, count: int, first: int, last: int) -> range:
        """Return the chunks where a series' rows of steps ``first`` to ``last`` are, if it has them.

        Args:
            offset, count: the series' rows in the file.
        """
        begin, end = offset // self.rows, (offset + count - 1) // self.rows
        # Not bisect_right: the rows of a step may begin in the chunk before the one that begins with it.
        low = bisect_left(self.steps, first, begin + 1, end + 1) - 1
        high = bisect_right(self.steps, last, begin + 1, end + 1) - 1
        return range(low, high + 1)


class StoredLevel(NamedTuple):
    """Blocks of one level of one series: rows ``offset`` to ``offset + blocks`` of the levels file."""

    level: int
    offset: int
    blocks: int


class Entry(NamedTuple):
    """One series: rows ``offset`` to ``offset + rows`` of the points file, and its levels, finest first."""

    offset: int
    rows: int
    first_step: int
    last_step: int
    levels: Sequence[StoredLevel]


class TableFile(msgspec.Struct, frozen=True):
    """The series file: JSON, a column a field, series in the order of the points file.

    Attributes:
        metrics, nodes: the names, each once. metric, node: by their place in these.
        ordinal: place of the series in the order of first appearance.
        levels: (level, offset, blocks) of each stored level, finest first.
        frames_group: messages in a row group of the frames file. frames_sums: checksum of each group.
    """

    metrics: list[str]
    nodes: list[str]
    metric: list[int]
    segment: list[int]
    rank: list[int | None]
    node: list[int]
    stray: list[bool]
    ordinal: list[int]
    rows: list[int]
    first_step: list[int]
    last_step: list[int]
    levels: list[list[tuple[int, int, int]]]
    points_chunks: Chunks
    levels_chunks: Chunks
    frames_group: int
    frames_sums: list[int]


class SeriesTable:
    """All series of a part.

    Attributes:
        points, levels: the chunks of these files.
        frames_group, frames_sums: of the frames file, see TableFile.
        bytes: approximate size in memory.
    """

    def __init__(self, file: TableFile) -> None:
        self._file = file
        self.points, self.levels = file.points_chunks, file.levels_chunks
        self.frames_group, self.frames_sums = file.frames_group, file.frames_sums
        self._keys = [
            SeriesKey(file.metrics[metric], segment, rank, file.nodes[node], stray)
            for metric, segment, rank, node, stray in zip(
                file.metric, file.segment, file.rank, file.node, file.stray, strict=True
            )
        ]
        self._number = {key: i for i, key in enumerate(self._keys)}
        self._offsets = list(accumulate(file.rows, initial=0))
        self.bytes = SERIES_BYTES * len(self._keys) + CHUNK_BYTES * (len(self.points.sums) + len(self.levels.sums))

    def entry(self, key: SeriesKey) -> Entry | None:
        """Return where a series is, None where there is no such series."""
        i = self._number.get(key)
        if i is None:
            return None
        file = self._file
        levels = [StoredLevel(*stored) for stored in file.levels[i]]
        return Entry(self._offsets[i], file.rows[i], file.first_step[i], file.last_step[i], levels)

    def extents(self) -> dict[SeriesKey, Extent]:
        """Return all series with their extents, in the order in which they first appeared."""
        file = self._file
        order = sorted(range(len(self._keys)), key=file.ordinal.__getitem__)
        return {self._keys[i]: Extent(file.first_step[i], file.last_step[i], file.rows[i]) for i in order}


def write_table(file: TableFile) -> bytes:
    """Return the bytes of a series file."""
    return msgspec.json.encode(file)


def read_table(data: bytes) -> SeriesTable:
    """Return the table in the bytes of a series file. Raises msgspec.MsgspecError where they are none."""
    return SeriesTable(msgspec.json.decode(data, type=TableFile))
