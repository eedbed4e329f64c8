"""Contents of a part's files, a batch at a time, and their entries in the part's table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stabilitybackend.storage.archive.aggregates import (
    AGG,
    LEVEL_STEP,
    SHORT_ROWS,
    Aggs,
    aggregate,
    aggregate_short,
    base_level,
    join_aggs,
    regroup,
)
from stabilitybackend.storage.archive.layout import (
    FRAMES_SCHEMA,
    LEVELS_CHUNK,
    LEVELS_SCHEMA,
    POINTS_CHUNK,
    POINTS_SCHEMA,
    levels_sum,
    messages_sum,
    rows_sum,
)
from stabilitybackend.storage.archive.series import Extent, Rows, SeriesKey, chain_rows
from stabilitybackend.storage.archive.table import Chunks, TableFile, write_table

__all__ = ["NO_CUTS", "Contents", "Cuts", "Messages"]

#: Segment -> steps after which a rollback left it.
Cuts = Mapping[int, Collection[int]]
NO_CUTS: Cuts = MappingProxyType({})

_KEY_COLUMNS = ("metric", "segment", "rank", "node", "stray")

#: Rows that go to Polars in one frame: large enough that 25,000 series of a few rows cost no frame each.
BATCH_ROWS = 16 * POINTS_CHUNK
#: Bytes of messages in the first row group of the frames file, and its most messages. The others get as many.
FRAMES_GROUP_BYTES = 8 * 2**20
FRAMES_GROUP = 8_192


class Contents:
    """The rows of a part on their way to the file, with the entries that the other files have about them.

    Args:
        keys: the series, in the order in which they first appeared.
        rows_of: their rows, asked for once.
        cuts: segment -> steps after which a rollback left it. No stored block reaches across one, so that a chart,
            which ends a segment there, needs no rows to cut a block.
    """

    def __init__(
        self,
        keys: Sequence[SeriesKey],
        rows_of: Callable[[SeriesKey], Rows],
        cuts: Cuts = NO_CUTS,
    ) -> None:
        self._rows_of = rows_of
        self._cuts = cuts
        self._ordinal = {key: i for i, key in enumerate(keys)}
        metrics = {metric: i for i, metric in enumerate(dict.fromkeys(key.metric for key in keys))}
        #: One metric's series lie side by side, a rank's segments among them, as a chart reads them.
        self._wanted = sorted(keys, key=lambda k: (metrics[k.metric], k.stray, *k.who, k.segment))
        self.keys: list[SeriesKey] = []
        self.extents: list[Extent] = []
        self.rows = 0
        self._sums: list[int] = []
        self._first_steps: list[int] = []
        #: For each series its stored levels, finest first: (level, offset, blocks).
        self._places: list[list[tuple[int, int, int]]] = []
        self._level_chunks = Chunks(LEVELS_CHUNK, [], [])
        #: Level -> whose each block is, and the blocks; those of one series in their order.
        self._levels: dict[int, list[tuple[NDArray[np.int32], Aggs]]] = {}

    def frames(self) -> Iterator[pl.DataFrame]:
        """Yield the rows of the points file."""
        batch: list[tuple[SeriesKey, Rows]] = []
        size = 0
        for key in self._wanted:
            rows = self._rows_of(key)
            if not len(rows):
                continue
            batch.append((key, rows))
            size += len(rows)
            if size >= BATCH_ROWS:
                yield self._batch(batch)
                batch, size = [], 0
        yield self._batch(batch)

    def levels(self) -> pl.DataFrame:
        """Return the levels file: coarsest level first, so that a chart of the whole run reads one chunk for all."""
        pieces: list[Aggs] = []
        owners: list[NDArray[np.int32]] = []
        levels: list[NDArray[np.int8]] = []
        offset = 0
        for level in sorted(self._levels, reverse=True):
            series = np.concatenate([of for of, _ in self._levels[level]])
            in_order = np.argsort(series, kind="stable")
            series = series[in_order]
            pieces.append(join_aggs([aggs for _, aggs in self._levels[level]])[in_order])
            owners.append(series)
            levels.append(np.full(len(series), level, np.int8))
            numbers, firsts, counts = np.unique(series, return_index=True, return_counts=True)
            for number, first, count in zip(numbers.tolist(), firsts.tolist(), counts.tolist(), strict=True):
                self._places[number].insert(0, (level, offset + first, count))
            offset += len(series)
        aggs = join_aggs(pieces)
        self._levels = {}
        chunks = range(0, len(aggs), LEVELS_CHUNK)
        sums = [levels_sum(aggs[i : i + LEVELS_CHUNK]) for i in chunks]
        self._level_chunks = Chunks(LEVELS_CHUNK, sums, [int(aggs["first_step"][i]) for i in chunks])
        return pl.DataFrame(
            {"series": _chained(owners, np.int32), "level": _chained(levels, np.int8)}
            | {name: np.ascontiguousarray(aggs[name]) for name in AGG.names or ()},
            schema=LEVELS_SCHEMA,
        )

    def table(self, messages: Messages) -> bytes:
        """Return the series file."""
        metrics = {metric: i for i, metric in enumerate(dict.fromkeys(key.metric for key in self.keys))}
        nodes = {node: i for i, node in enumerate(dict.fromkeys(key.node for key in self.keys))}
        return write_table(
            TableFile(
                metrics=list(metrics),
                nodes=list(nodes),
                metric=[metrics[key.metric] for key in self.keys],
                segment=[key.segment for key in self.keys],
                rank=[key.rank for key in self.keys],
                node=[nodes[key.node] for key in self.keys],
                stray=[key.stray for key in self.keys],
                ordinal=[self._ordinal[key] for key in self.keys],
                rows=[extent.rows for extent in self.extents],
                first_step=[extent.first_step for extent in self.extents],
                last_step=[extent.last_step for extent in self.extents],
                levels=self._places,
                points_chunks=Chunks(POINTS_CHUNK, self._sums, self._first_steps),
                levels_chunks=self._level_chunks,
                frames_group=messages.group_rows,
                frames_sums=messages.sums,
            )
        )

    def _batch(self, batch: list[tuple[SeriesKey, Rows]]) -> pl.DataFrame:
        """Return the next series in the file's own order of rows; note its entries for the other files."""
        every = chain_rows([rows for _, rows in batch])
        self._sum(every)
        self.rows += len(every)
        short = []
        for number, (key, rows) in enumerate(batch, len(self.keys)):
            self.keys.append(key)
            self.extents.append(Extent(int(rows.steps[0]), int(rows.steps[-1]), len(rows)))
            self._places.append([])
            stretches = self._stretches(key, rows) if key.segment in self._cuts else [rows]
            if len(rows) < SHORT_ROWS and len(stretches) == 1:
                short.append((number, rows))
            else:
                self._note(number, stretches, base_level(rows.steps))
        if short:
            rows = every if len(short) == len(batch) else chain_rows([rows for _, rows in short])
            starts = np.cumsum([0, *(len(rows) for _, rows in short[:-1])])
            levels, aggs = aggregate_short(rows, starts)
            numbers = np.array([number for number, _ in short], np.int32)
            for level in np.unique(levels).tolist():
                of_level = levels == level
                self._levels.setdefault(level, []).append((numbers[of_level], aggs[of_level]))
        return self._frame(batch, every)

    def _note(self, number: int, stretches: list[Rows], level: int) -> None:
        """Note the levels of a series, from ``level`` on."""
        aggs = [aggregate(stretch, level) for stretch in stretches]
        self._put(number, level, aggs)
        while (blocks := sum(map(len, aggs))) > len(aggs):
            level += LEVEL_STEP
            coarse = [regroup(each, level) for each in aggs]
            left = sum(map(len, coarse))
            # A level that saves nothing is not worth its place: readers regroup the one below.
            if 2 * left <= blocks or left == len(coarse):
                self._put(number, level, coarse)
                aggs = coarse

    def _put(self, number: int, level: int, aggs: list[Aggs]) -> None:
        joined = join_aggs(aggs)
        self._levels.setdefault(level, []).append((np.full(len(joined), number, np.int32), joined))

    def _stretches(self, key: SeriesKey, rows: Rows) -> list[Rows]:
        """Return the rows, parted where a rollback left the segment."""
        cuts = sorted(cut for cut in self._cuts.get(key.segment, ()) if rows.steps[0] <= cut < rows.steps[-1])
        edges = [None, *cuts, None]
        found = [rows.between(None if low is None else low + 1, high) for low, high in pairwise(edges)]
        return [stretch for stretch in found if len(stretch)]

    def _sum(self, rows: Rows) -> None:
        """Add the rows that come next in the file to the checksums of its chunks."""
        begin = 0
        while begin < len(rows):
            room = POINTS_CHUNK - (self.rows + begin) % POINTS_CHUNK
            end = begin + room
            total = rows_sum(rows[begin:end])
            if room == POINTS_CHUNK:
                self._sums.append(total)
                self._first_steps.append(int(rows.steps[begin]))
            else:
                self._sums[-1] = (self._sums[-1] + total) % 2**64
            begin = end

    @staticmethod
    def _frame(batch: list[tuple[SeriesKey, Rows]], every: Rows) -> pl.DataFrame:
        keys = pl.DataFrame(
            [(k.metric, k.segment, k.rank, k.node, k.stray) for k, _ in batch],
            schema={name: POINTS_SCHEMA[name] for name in _KEY_COLUMNS},
            orient="row",
        )
        if len(batch) == 1:
            columns = pl.DataFrame({"step": every.steps, "time": every.times, "value": every.values})
            # Literals: Polars then holds one value for the whole column.
            literals = [pl.lit(keys[name][0], dtype=POINTS_SCHEMA[name]).alias(name) for name in _KEY_COLUMNS]
            return columns.select(*literals, pl.all())
        named = keys[np.repeat(np.arange(len(batch)), [len(rows) for _, rows in batch])]
        return named.with_columns(
            pl.Series("step", every.steps), pl.Series("time", every.times), pl.Series("value", every.values)
        )


def _chained(columns: list[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate(columns) if columns else np.empty(0, dtype)


class Messages:
    """The frames of a part on their way to the file, a row group at a time."""

    def __init__(self, frames: Iterable[tuple[str, bytes]]) -> None:
        self._frames = iter(frames)
        self._group: list[tuple[str, bytes]] = []
        size = 0
        for item in islice(self._frames, FRAMES_GROUP):
            self._group.append(item)
            size += len(item[1])
            if size >= FRAMES_GROUP_BYTES:
                break
        self.count = 0
        #: Messages of a row group: as many as it takes to fill the first one, all have the same number.
        self.group_rows = max(1, len(self._group))
        self.sums: list[int] = []

    def frames(self) -> Iterator[pl.DataFrame]:
        """Yield the rows of the frames file, at least one (empty) frame."""
        group = self._group
        while True:
            self.count += len(group)
            ids, messages = [item[0] for item in group], [item[1] for item in group]
            if group:
                self.sums.append(messages_sum(ids, messages))
            yield pl.DataFrame({"id": ids, "frame": messages}, schema=FRAMES_SCHEMA)
            group = list(islice(self._frames, self.group_rows))
            if not group:
                return
