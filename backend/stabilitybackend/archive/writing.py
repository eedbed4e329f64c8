"""Writes a part: one pass over its series, bounded memory however many rows they have."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from stabilitybackend.archive.aggregates import (
    AGG,
    EMPTY_AGGS,
    LEVEL_STEP,
    Aggs,
    aggregate,
    base_level,
    regroup,
)
from stabilitybackend.archive.layout import (
    FRAMES_SCHEMA,
    LEVELS_CHUNK,
    LEVELS_SCHEMA,
    POINTS_CHUNK,
    POINTS_SCHEMA,
    Files,
    Part,
    file_checksum,
    levels_sum,
    row_words,
)
from stabilitybackend.archive.location import Location
from stabilitybackend.archive.series import Rows, SeriesKey, join_rows
from stabilitybackend.errors import ArchiveError

__all__ = ["write_from", "write_part"]

#: Rows that go to Polars in one frame: large enough that 25,000 series of a few rows cost no frame each.
BATCH_ROWS = 16 * POINTS_CHUNK
#: Bytes of messages that are held at a time, and about the size of a row group of the frames file.
FRAMES_BATCH_BYTES = 8 * 2**20
FRAMES_BATCH = 8_192


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
) -> Part:
    """Write the files of a part and return it. Until somebody lists the part its files are orphans.

    Args:
        from_id, to_id: the range of the stream, from exclusive, to inclusive.
        series: in the order in which the series first appeared. A series that comes twice is joined, the later
            rows standing.
        frames: stream id and message, in the order of the stream.
        state: the fold's state at ``to_id``.
        created: unix seconds.

    Raises:
        ArchiveError: a file could not be written. What was written before it stays behind as orphans.
    """
    found: dict[SeriesKey, Rows] = {}
    for key, rows in series:
        if len(rows):
            found[key] = join_rows([found[key], rows]) if key in found else rows
    return write_from(
        location, run_id, stem, from_id=from_id, to_id=to_id, keys=list(found), rows_of=found.__getitem__,
        frames=frames, state=state, created=created,
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
) -> Part:
    """Write a part as ``write_part`` does, fetching each series' rows when its turn comes."""
    files = Files.of(run_id, stem)
    contents = _Contents(keys, rows_of)
    size = _write(location, files.points, contents.frames(), POINTS_SCHEMA, POINTS_CHUNK)
    levels, level_lists, level_sums = contents.levels()
    size += location.write(files.levels, levels.lazy(), row_group_rows=LEVELS_CHUNK)
    messages = _Messages(frames)
    size += _write(location, files.frames, messages.frames(), FRAMES_SCHEMA, messages.group_rows)
    size += location.write_bytes(files.state, state)
    table = contents.table(level_lists, level_sums, messages.group_rows)
    size += location.write_bytes(files.series, table)
    steps = [(first, last) for first, last, _ in contents.extents]
    return Part(
        stem=stem, from_id=from_id, to_id=to_id, rows=contents.rows, frames=messages.count, bytes=size,
        series=len(contents.keys), created=created,
        first_step=min((first for first, _ in steps), default=None),
        last_step=max((last for _, last in steps), default=None),
        series_sum=file_checksum(table), state_sum=file_checksum(state),
    )  # fmt: skip


class _Contents:
    """The rows of a part on their way to the file; remembers what the other files say about them."""

    def __init__(self, keys: Sequence[SeriesKey], rows_of: Callable[[SeriesKey], Rows]) -> None:
        self._rows_of = rows_of
        self._ordinal = {key: i for i, key in enumerate(keys)}
        metrics = {metric: i for i, metric in enumerate(dict.fromkeys(key.metric for key in keys))}
        #: One metric's series lie side by side, a rank's segments among them, as a chart reads them.
        self._wanted = sorted(keys, key=lambda k: (metrics[k.metric], k.stray, _rank(k), k.node, k.segment))
        self.keys: list[SeriesKey] = []
        self.extents: list[tuple[int, int, int]] = []
        self.rows = 0
        self._sums: list[int] = []
        self._summed = 0
        #: Level -> (series, aggregates), in the order of the series.
        self._levels: dict[int, list[tuple[int, Aggs]]] = {}

    def frames(self) -> Iterator[pl.DataFrame]:
        """Yield the rows of the points file."""
        batch: list[tuple[SeriesKey, Rows]] = []
        size = 0
        for key in self._wanted:
            rows = self._rows_of(key)
            if not len(rows):
                continue
            self._note(key, rows)
            batch.append((key, rows))
            size += len(rows)
            if size >= BATCH_ROWS:
                yield self._frame(batch)
                batch, size = [], 0
        yield self._frame(batch)

    def levels(self) -> tuple[pl.DataFrame, list[list[tuple[int, int, int]]], list[int]]:
        """Return the levels file, for each series its (level, offset, blocks), finest first, and the chunks' sums."""
        lists: list[list[tuple[int, int, int]]] = [[] for _ in self.keys]
        pieces: list[Aggs] = []
        series: list[int] = []
        levels: list[int] = []
        offset = 0
        for level in sorted(self._levels, reverse=True):
            for number, aggs in self._levels[level]:
                lists[number].insert(0, (level, offset, len(aggs)))
                pieces.append(aggs)
                series.append(number)
                levels.append(level)
                offset += len(aggs)
        aggs = np.concatenate(pieces) if pieces else EMPTY_AGGS
        sizes = [len(piece) for piece in pieces]
        columns = {
            "series": np.repeat(np.array(series, np.int32), sizes),
            "level": np.repeat(np.array(levels, np.int8), sizes),
            **{name: np.ascontiguousarray(aggs[name]) for name in AGG.names or ()},
        }
        sums = [levels_sum(aggs[i : i + LEVELS_CHUNK]) for i in range(0, len(aggs), LEVELS_CHUNK)]
        return pl.DataFrame(columns, schema=LEVELS_SCHEMA), lists, sums

    def table(self, lists: list[list[tuple[int, int, int]]], level_sums: list[int], frames_group: int) -> bytes:
        """Return the series file."""
        sizes = [rows for _, _, rows in self.extents]
        frame = pl.DataFrame(
            {
                "metric": [key.metric for key in self.keys],
                "segment": [key.segment for key in self.keys],
                "rank": [key.rank for key in self.keys],
                "node": [key.node for key in self.keys],
                "stray": [key.stray for key in self.keys],
                "ordinal": [self._ordinal[key] for key in self.keys],
                "offset": np.cumsum([0, *sizes])[:-1],
                "rows": sizes,
                "first_step": [first for first, _, _ in self.extents],
                "last_step": [last for _, last, _ in self.extents],
                "level": [[level for level, _, _ in levels] for levels in lists],
                "level_offset": [[offset for _, offset, _ in levels] for levels in lists],
                "level_blocks": [[blocks for _, _, blocks in levels] for levels in lists],
            },
            schema={
                "metric": pl.String, "segment": pl.Int32, "rank": pl.Int32, "node": pl.String, "stray": pl.Boolean,
                "ordinal": pl.Int32, "offset": pl.Int64, "rows": pl.Int64, "first_step": pl.Int64,
                "last_step": pl.Int64, "level": pl.List(pl.Int8), "level_offset": pl.List(pl.Int64),
                "level_blocks": pl.List(pl.Int64),
            },
        )  # fmt: skip
        facts = {"points_sums": self._sums, "levels_sums": level_sums, "frames_group": frames_group}
        target = io.BytesIO()
        frame.write_parquet(target, compression="zstd", compression_level=1, metadata={"stability": json.dumps(facts)})
        return target.getvalue()

    def _note(self, key: SeriesKey, rows: Rows) -> None:
        number = len(self.keys)
        self.keys.append(key)
        self.extents.append((int(rows.steps[0]), int(rows.steps[-1]), len(rows)))
        self.rows += len(rows)
        level = base_level(rows.steps)
        aggs = aggregate(rows, level)
        self._levels.setdefault(level, []).append((number, aggs))
        while len(aggs) > 1:
            level += LEVEL_STEP
            coarse = regroup(aggs, level)
            # A level that saves nothing is not worth its place: readers regroup the one below.
            if 2 * len(coarse) <= len(aggs) or len(coarse) == 1:
                self._levels.setdefault(level, []).append((number, coarse))
                aggs = coarse

    def _frame(self, batch: list[tuple[SeriesKey, Rows]]) -> pl.DataFrame:
        """Return the rows of some series as the file has them."""
        keys = pl.DataFrame(
            [(k.metric, k.segment, k.rank, k.node, k.stray) for k, _ in batch],
            schema={name: POINTS_SCHEMA[name] for name in ("metric", "segment", "rank", "node", "stray")},
            orient="row",
        )
        if len(batch) == 1:
            rows = batch[0][1]
            named = pl.DataFrame([column.new_from_index(0, len(rows)) for column in keys])
        else:
            rows = Rows(
                np.concatenate([r.steps for _, r in batch]) if batch else Rows.EMPTY.steps,
                np.concatenate([r.values for _, r in batch]) if batch else Rows.EMPTY.values,
                np.concatenate([r.times for _, r in batch]) if batch else Rows.EMPTY.times,
            )
            named = keys[np.repeat(np.arange(len(batch)), [len(r) for _, r in batch])]
        self._sum(rows)
        return named.with_columns(
            pl.Series("step", rows.steps), pl.Series("time", rows.times), pl.Series("value", rows.values)
        )

    def _sum(self, rows: Rows) -> None:
        """Add the rows that come next in the file to the checksums of its chunks."""
        if not len(rows):
            return
        begin = self._summed % POINTS_CHUNK
        cuts = np.arange(-begin, len(rows), POINTS_CHUNK)
        cuts[0] = 0
        sums = np.add.reduceat(row_words(rows), cuts)
        if begin:
            self._sums[-1] = (self._sums[-1] + int(sums[0])) % 2**64
            sums = sums[1:]
        self._sums.extend(int(total) for total in sums)
        self._summed += len(rows)


class _Messages:
    """The frames of a part on their way to the file, a batch at a time."""

    def __init__(self, frames: Iterable[tuple[str, bytes]]) -> None:
        self._frames = iter(frames)
        self._ahead = self._batch()
        self.count = 0
        #: Rows of a row group: as many as the first batch has, so that reading a group takes about as much memory.
        self.group_rows = max(1, len(self._ahead))

    def frames(self) -> Iterator[pl.DataFrame]:
        """Yield the rows of the frames file, at least one (empty) frame."""
        batch = self._ahead
        while True:
            self.count += len(batch)
            yield pl.DataFrame(batch, schema=FRAMES_SCHEMA, orient="row")
            batch = self._batch()
            if not batch:
                return

    def _batch(self) -> list[tuple[str, bytes]]:
        batch: list[tuple[str, bytes]] = []
        size = 0
        for item in islice(self._frames, FRAMES_BATCH):
            batch.append(item)
            size += len(item[1])
            if size >= FRAMES_BATCH_BYTES:
                break
        return batch


def _write(location: Location, name: str, frames: Iterator[pl.DataFrame], schema: pl.Schema, group_rows: int) -> int:
    """Write frames as they come and return the file's bytes."""
    failed: list[BaseException] = []

    def source(*_: object) -> Iterator[pl.DataFrame]:
        try:
            yield from frames
        except BaseException as error:
            failed.append(error)  # Polars would hand on its text only
            raise

    try:
        return location.write(name, register_io_source(source, schema=schema), row_group_rows=group_rows)
    except ArchiveError:
        if failed:
            raise failed[0] from None
        raise


def _rank(key: SeriesKey) -> int:
    """Return the rank for sorting, an agent's series last."""
    return key.rank if key.rank is not None else 2**31
