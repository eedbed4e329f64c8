"""A part: its files, their columns, and the checksums that tell a flipped bit from a value.

A part holds the frames of a run in the half-open range ``(from_id, to_id]`` of its stream, in five files:

    <stem>.points.parquet   metric, segment, rank, node, stray, step, time, value: the placed rows, all series one after
                            the other, steps rising within each. It needs no other file to be understood.
    <stem>.levels.parquet   series, level and the fields of AGG: aggregates, coarsest level first
    <stem>.frames.parquet   id, frame: the messages as they were stored. They are the truth: all else follows from them
    <stem>.state            the fold's state at to_id, bytes that only the fold understands
    <stem>.series.json      which series lies where in the first two, and their checksums (``table.py``)

Parquet has no checksum that Polars writes or reads, so a flipped bit may come back as another number. Points and levels
are therefore read in chunks of a fixed number of rows, frames a row group at a time, and each of these has a checksum
that is compared whenever it is read.
"""

from __future__ import annotations

import builtins
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import polars as pl

from stabilitybackend.base.errors import ArchiveError
from stabilitybackend.storage.archive.aggregates import AGG, Aggs
from stabilitybackend.storage.archive.series import Rows

if TYPE_CHECKING:
    from stabilitybackend.storage.archive.location import Location

__all__ = [
    "FORMAT_VERSION",
    "FRAMES_SCHEMA",
    "LEVELS_CHUNK",
    "LEVELS_SCHEMA",
    "POINTS_CHUNK",
    "POINTS_SCHEMA",
    "Files",
    "Part",
    "file_checksum",
    "levels_sum",
    "messages_sum",
    "rows_sum",
]

#: Changes when an older server could not read the files.
FORMAT_VERSION = 1
#: Rows of a chunk of points, also of a row group: 393 KB decoded. Small enough that the two cut edges of a zoomed chart
#: cost a millisecond each; four times larger saves 0.1 ms of footer and costs 1 ms a read.
POINTS_CHUNK = 16_384
#: Blocks of a chunk of aggregates, also of a row group: 311 KB decoded. One read serves a chart of 12 metrics.
LEVELS_CHUNK = 2_048

#: Odd, so that no bit is lost; different, so that two columns that change places are seen.
_WEIGHTS = (1, 3, 5)


class Files(NamedTuple):
    """The names of a part's files within a location."""

    points: str
    levels: str
    frames: str
    state: str
    series: str

    @classmethod
    def of(cls, run_id: str, stem: str) -> Files:
        """Return the names for a run and a stem."""
        ends = ("points.parquet", "levels.parquet", "frames.parquet", "state", "series.json")
        return cls(*(f"{run_id}/{stem}.{end}" for end in ends))


@dataclass(frozen=True, slots=True)
class Part:
    """One part as the list of parts knows it.

    Attributes:
        stem: begins the names of its files; unique within the run.
        from_id, to_id: stream ids; the part holds the range after the first up to and including the second.
        rows: placed rows, all series together. frames: messages. bytes: of all files. series: how many.
        created: unix seconds. version: FORMAT_VERSION of the server that wrote it.
        first_step, last_step: over all series; None where there is no row.
        series_sum, state_sum: CRC-32 of these two files.
    """

    stem: str
    from_id: str
    to_id: str
    rows: int
    frames: int
    bytes: int
    series: int
    created: float
    first_step: int | None
    last_step: int | None
    series_sum: int
    state_sum: int
    version: int

    def as_json(self) -> str:
        """Return it as one JSON object."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, data: str | builtins.bytes) -> Part:
        """Return the part of ``as_json``; fields that a newer server added are passed over.

        Raises:
            ArchiveError: it is none, or its files are of a newer format.
        """
        try:
            part = msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise ArchiveError(
                f"an entry of the list of parts can't be read ({error}): expected the JSON of a part, "
                f"got {str(data)[:200]!r}",
                hint="Another program wrote to this Redis, or the entry is of a version that was never released.",
                code="archive_damaged",
            ) from error
        if part.version > FORMAT_VERSION:
            raise ArchiveError(
                f"part {part.stem} has format {part.version}: this server reads up to {FORMAT_VERSION}",
                hint="Start the newer server again, or update this one.",
                code="archive_newer",
            )
        return part

    @staticmethod
    def delete_files(location: Location, run_id: str, stem: str) -> None:
        """Delete whatever files of a part are there, those of a write that was cut off included."""
        found = {name for name in location.names(run_id) if name.startswith(f"{run_id}/{stem}.")}
        location.delete(sorted(found.union(Files.of(run_id, stem))))


def rows_sum(rows: Rows) -> int:
    """Return the checksum of rows: the sum of their 64-bit words modulo 2**64, each column with its own weight.

    It moves with every single bit, and costs one pass over memory. Sums of pieces add up to the sum of the whole.
    """
    columns = zip(_WEIGHTS, (rows.steps, rows.values, rows.times), strict=True)
    return sum(weight * int(column.view(np.uint64).sum(dtype=np.uint64)) for weight, column in columns) % 2**64


def levels_sum(aggs: Aggs) -> int:
    """Return the checksum of aggregates."""
    return int(np.ascontiguousarray(aggs).view(np.uint64).sum(dtype=np.uint64))


def messages_sum(ids: Sequence[str], messages: Sequence[bytes]) -> int:
    """Return the checksum of messages and their stream ids, a CRC-32."""
    return zlib.crc32(b"".join(messages), zlib.crc32("\n".join(ids).encode()))


def file_checksum(data: bytes) -> int:
    """Return the CRC-32 of a small file."""
    return zlib.crc32(data)


#: Columns of the points file.
POINTS_SCHEMA = pl.Schema(
    {
        "metric": pl.Categorical(),
        "segment": pl.Int32(),
        "rank": pl.Int32(),
        "node": pl.Categorical(),
        "stray": pl.Boolean(),
        "step": pl.Int64(),
        "time": pl.Float64(),
        "value": pl.Float64(),
    }
)
#: Columns of the levels file: the series' number in the series file, the level, then AGG's own fields.
LEVELS_SCHEMA = pl.Schema(
    {
        "series": pl.Int32(),
        "level": pl.Int8(),
        **{name: pl.Int64() if AGG[name].kind == "i" else pl.Float64() for name in AGG.names or ()},
    }
)
#: Columns of the frames file.
FRAMES_SCHEMA = pl.Schema({"id": pl.String(), "frame": pl.Binary()})
