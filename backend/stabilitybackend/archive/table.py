"""The table of a part: which series lies where in its files."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from stabilitybackend.archive.series import Extent, SeriesKey

__all__ = ["Entry", "SeriesTable", "StoredLevel", "read_table"]

#: Bytes of memory that a series of the table takes, measured with 25,000 of them (tracemalloc), names shared.
ENTRY_BYTES = 700


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
    levels: list[StoredLevel]


@dataclass(frozen=True, slots=True)
class SeriesTable:
    """All series of a part.

    Attributes:
        entries: where each series is.
        extents: the same as people ask for it, in the order of first appearance.
        points_sums, levels_sums: checksum of each chunk. frames_group: messages in a row group of the frames file.
        bytes: about what it takes in memory.
    """

    entries: dict[SeriesKey, Entry]
    extents: dict[SeriesKey, Extent]
    points_sums: list[int]
    levels_sums: list[int]
    frames_group: int
    bytes: int


def read_table(data: bytes) -> SeriesTable:
    """Return the table in the bytes of a series file."""
    frame = pl.read_parquet(io.BytesIO(data))
    facts = json.loads(pl.read_parquet_metadata(io.BytesIO(data))["stability"])
    columns = [frame[name].to_list() for name in ("metric", "segment", "rank", "node", "stray")]
    keys = [SeriesKey(*values) for values in zip(*columns, strict=True)]
    places = [frame[name].to_list() for name in ("offset", "rows", "first_step", "last_step")]
    stored = [frame[name].to_list() for name in ("level", "level_offset", "level_blocks")]
    entries = {
        key: Entry(offset, rows, first, last, [StoredLevel(*one) for one in zip(*levels, strict=True)])
        for key, (offset, rows, first, last), levels in zip(
            keys, zip(*places, strict=True), zip(*stored, strict=True), strict=True
        )
    }
    order = sorted(zip(frame["ordinal"].to_list(), keys, strict=True), key=lambda item: item[0])
    extents = {key: Extent(e.first_step, e.last_step, e.rows) for _, key in order if (e := entries[key])}
    sums = facts["points_sums"], facts["levels_sums"]
    size = ENTRY_BYTES * len(keys) + 40 * (len(sums[0]) + len(sums[1]))
    return SeriesTable(entries, extents, *sums, facts["frames_group"], size)
