"""Writes a run as JSON lines: one object per step, rank and segment, in the dialect that ``backtest`` and ``import``
read."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.storage.archive.series import Rows, SeriesKey
from stabilitybackend.storage.export.export import Export, ExportPiece
from stabilitybackend.storage.query.query import json_numbers

__all__ = ["RESERVED", "jsonl_export"]

#: Keys of a line that are no metric.
RESERVED = ("step", "t", "rank", "node", "segment", "dead", "stray", "phase", "batch_fp", "export")
#: Bytes handed on at a time.
_CHUNK_BYTES = 256 * 1024


def _check_names(export: Export) -> None:
    """Raise BadRequest when a metric has the name of another key of a line."""
    taken = [metric for metric in export.metrics if metric in RESERVED]
    if taken:
        raise BadRequest(
            f"run {export.run_id} has a metric called {taken[0]!r}, which in JSONL is another key",
            hint="export to Parquet, or choose other metrics with --metric",
        )


def jsonl_export(export: Export) -> Generator[bytes, None, None]:
    """Yield the file in chunks of about 256 KiB.

    Each line: ``step``, ``t`` (unix seconds), ``rank`` (null: a node's own metrics, then ``node`` names it),
    ``segment``, ``dead``, ``stray`` where true, and the metrics; values that are not finite as "NaN", "Infinity",
    "-Infinity". Metrics of one step that were logged at different times are in lines of their own. The first line also
    has ``export``: the run and its segments.

    Raises:
        BadRequest: a metric has the name of another key of a line; before the first chunk.
    """
    _check_names(export)
    return _chunks(export)


def _chunks(export: Export) -> Generator[bytes, None, None]:
    header: dict[str, Any] | None = export.header
    waiting = bytearray()
    for piece in export.by_segment():
        for row in _lines(export, piece):
            if header is not None:
                row["export"], header = header, None
            waiting += msgspec.json.encode(row)
            waiting += b"\n"
            export.progress.add(rows=1)
            if len(waiting) >= _CHUNK_BYTES:
                yield bytes(waiting)
                waiting.clear()
    if waiting:
        yield bytes(waiting)
    export.progress.finish(list(export.store.problems))


def _lines(export: Export, piece: ExportPiece) -> Iterator[dict[str, Any]]:
    """Yield the rows of a piece by step; of one step, ranks in order and a node's own metrics after them."""
    lanes: dict[tuple[Any, ...], list[SeriesKey]] = {}
    for key in piece.keys:
        lanes.setdefault((*key.who, key.stray), []).append(key)
    tables = [table for lane in sorted(lanes) if len((table := _PieceTable(export, piece, lanes[lane])).steps)]
    if len(tables) == 1:
        yield from tables[0].rows()
    elif tables:
        streams = [table.rows() for table in tables]
        steps = np.concatenate([table.steps for table in tables])
        whose = np.concatenate([np.full(len(table.steps), at) for at, table in enumerate(tables)])
        for at in whose[np.argsort(steps, kind="stable")].tolist():
            yield next(streams[at])


class _PieceTable:
    """The rows of one rank in a piece: a row for each step and log time, more where a metric has more rows then."""

    def __init__(self, export: Export, piece: ExportPiece, keys: list[SeriesKey]) -> None:
        self._of = keys[0]
        found = [(key.metric, rows) for key in keys if len(rows := export.rows(key, piece))]
        self.steps: NDArray[np.int64] = np.empty(0, np.int64)
        if not found:
            return
        export.progress.add(points=sum(len(rows) for _, rows in found))
        self._names = [metric for metric, _ in found]
        first = found[0][1]
        self._whole = all(_same(rows, first) for _, rows in found)
        self._columns: list[list[Any]] = []
        if self._whole:
            self.steps, self._times = first.steps, first.times
            self._columns = [list(json_numbers(rows.values)) for _, rows in found]
        else:
            self._align([rows for _, rows in found])
        self._dead = export.dead(keys[0], self.steps)

    def _align(self, found: list[Rows]) -> None:
        """Put metrics that were logged at different steps or times into one table with holes."""
        steps = np.concatenate([rows.steps for rows in found])
        times = np.concatenate([rows.times for rows in found])
        numbers = np.concatenate([_numbers(rows) for rows in found])
        order = np.lexsort((numbers, times, steps))
        new = np.ones(len(order), np.bool_)
        new[1:] = np.logical_or.reduce([np.diff(each[order]) != 0 for each in (steps, times, numbers)])
        place = np.empty(len(order), np.int64)
        place[order] = np.cumsum(new) - 1
        self.steps, self._times = steps[order][new], times[order][new]
        start = 0
        for rows in found:
            column: list[Any] = [None] * len(self.steps)
            for at, value in zip(place[start : start + len(rows)].tolist(), json_numbers(rows.values), strict=True):
                column[at] = value
            self._columns.append(column)
            start += len(rows)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows, steps rising."""
        names, whole = self._names, self._whole
        own: dict[str, Any] = {"rank": self._of.rank, "segment": self._of.segment}
        if self._of.node:
            own["node"] = self._of.node
        if self._of.stray:
            own["stray"] = True
        lists = (self.steps.tolist(), self._times.tolist(), self._dead.tolist(), *self._columns)
        for step, time, dead, *values in zip(*lists, strict=True):
            row = {"step": step, "t": time, **own, "dead": dead}
            if whole:
                row.update(zip(names, values, strict=True))
            else:
                row.update((name, value) for name, value in zip(names, values, strict=True) if value is not None)
            yield row


def _numbers(rows: Rows) -> NDArray[np.intp]:
    """Return for each row the number of earlier rows of its step and time."""
    order = np.lexsort((rows.times, rows.steps))
    steps, times = rows.steps[order], rows.times[order]
    first = np.append(True, (steps[1:] != steps[:-1]) | (times[1:] != times[:-1]))[: len(rows)]
    begins = np.flatnonzero(first)
    numbers = np.empty(len(rows), np.intp)
    numbers[order] = np.arange(len(rows)) - begins[np.cumsum(first) - 1]
    return numbers


def _same(rows: Rows, other: Rows) -> bool:
    return np.array_equal(rows.steps, other.steps) and np.array_equal(rows.times, other.times)
