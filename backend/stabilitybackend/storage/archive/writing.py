"""Writes a part: one pass over its series, bounded memory however many rows they have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import polars as pl
from polars.io.plugins import register_io_source

from stabilitybackend.base.errors import ArchiveError
from stabilitybackend.storage.archive.contents import NO_CUTS, Contents, Cuts, Messages
from stabilitybackend.storage.archive.layout import (
    FORMAT_VERSION,
    FRAMES_SCHEMA,
    LEVELS_CHUNK,
    POINTS_CHUNK,
    POINTS_SCHEMA,
    Files,
    Part,
    file_checksum,
)
from stabilitybackend.storage.archive.location import Location
from stabilitybackend.storage.archive.series import Rows, SeriesKey, join_rows
from stabilitybackend.storage.archive.trouble import READ_TROUBLE

__all__ = ["write_from", "write_part"]


def write_part(
    location: Location,
    run_id: str,
    stem: str,
    *,
    from_id: str,
    to_id: str,
    series: Iterable[tuple[SeriesKey, Rows]],
    frames: Iterable[tuple[str, bytes]],
    state: bytes,
    created: float,
    cuts: Cuts = NO_CUTS,
) -> Part:
    """Write the files of a part and return it. Until the part is listed its files are orphans.

    Args:
        from_id, to_id: the range of the stream, from exclusive, to inclusive.
        series: in the order in which the series first appeared. A series that comes twice is joined, the later
            rows standing.
        frames: stream id and message, in the order of the stream.
        state: the fold's state at ``to_id``.
        created: unix seconds.
        cuts: segment -> steps after which a rollback left it, as far as the fold has them: charts end a segment there.
            Any others are answered as exactly, a little later.

    Raises:
        ArchiveError: a file could not be written. Files written before it stay behind as orphans.
    """
    found: dict[SeriesKey, list[Rows]] = {}
    for key, rows in series:
        if len(rows):
            found.setdefault(key, []).append(rows)
    return write_from(
        location, run_id, stem, from_id=from_id, to_id=to_id, keys=list(found),
        rows_of=lambda key: join_rows(found[key]), frames=frames, state=state, created=created, cuts=cuts,
    )  # fmt: skip


def write_from(
    location: Location,
    run_id: str,
    stem: str,
    *,
    from_id: str,
    to_id: str,
    keys: Sequence[SeriesKey],
    rows_of: Callable[[SeriesKey], Rows],
    frames: Iterable[tuple[str, bytes]],
    state: bytes,
    created: float,
    cuts: Cuts = NO_CUTS,
) -> Part:
    """Write a part as ``write_part`` does, fetching each series' rows when its turn comes."""
    files = Files.of(run_id, stem)
    contents = Contents(keys, rows_of, cuts)
    size = _write(location, files.points, contents.frames(), POINTS_SCHEMA, POINTS_CHUNK, statistics=True)
    size += location.write(files.levels, contents.levels().lazy(), row_group_rows=LEVELS_CHUNK)
    messages = Messages(frames)
    size += _write(location, files.frames, messages.frames(), FRAMES_SCHEMA, messages.group_rows, statistics=False)
    size += location.write_bytes(files.state, state)
    table = contents.table(messages)
    size += location.write_bytes(files.series, table)
    return Part(
        stem=stem, from_id=from_id, to_id=to_id, rows=contents.rows, frames=messages.count, bytes=size,
        series=len(contents.keys), created=created,
        first_step=min((extent.first_step for extent in contents.extents), default=None),
        last_step=max((extent.last_step for extent in contents.extents), default=None),
        series_sum=file_checksum(table), state_sum=file_checksum(state), version=FORMAT_VERSION,
    )  # fmt: skip


def _write(
    location: Location, name: str, frames: Iterator[pl.DataFrame], schema: pl.Schema, group_rows: int, statistics: bool
) -> int:
    """Write frames as they come and return the file's bytes."""
    failed: list[BaseException] = []

    def source(*_: object) -> Iterator[pl.DataFrame]:
        try:
            yield from frames
        except READ_TROUBLE as error:
            failed.append(error)  # Polars would hand on its text only
            raise

    try:
        lazy = register_io_source(source, schema=schema)
        return location.write(name, lazy, row_group_rows=group_rows, statistics=statistics)
    except ArchiveError:
        if failed:
            raise failed[0] from None
        raise
