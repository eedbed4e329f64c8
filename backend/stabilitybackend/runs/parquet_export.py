"""Writes a run as one long Parquet table, in a stream: nobody holds more than a few row groups."""

from __future__ import annotations

import io
import json
import queue
import threading
from collections.abc import Iterator
from typing import IO, Any, cast

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from stabilitybackend.errors import Unavailable
from stabilitybackend.runs.export import Export

__all__ = ["EXPORT_KEY", "SCHEMA", "parquet_export"]

#: Key in the file's metadata under which it says, as JSON, which run it is and how its segments hang together.
EXPORT_KEY = "stabilityboard.export"
#: One row a point; sorted by segment, metric (in order of appearance), rank (a node's own metrics last), node, step.
#: rank is null and node set for a node's own metrics; value holds NaN and the infinities as they were logged, never
#: null.
SCHEMA = pl.Schema(
    {
        "run_id": pl.String, "metric": pl.String, "segment": pl.Int32, "dead": pl.Boolean, "stray": pl.Boolean,
        "rank": pl.Int32, "node": pl.String, "step": pl.Int64, "time": pl.Float64, "value": pl.Float64,
    }
)  # fmt: skip
#: Rows in one row group, and rows gathered before they are handed to Polars.
ROW_GROUP_ROWS = 131_072
#: Chunks of the file that wait for the network, at most; one is up to about 1 MiB.
QUEUED_CHUNKS = 16
#: A reader that takes nothing for so long is gone, seconds.
ABANDONED_S = 120.0


def parquet_export(export: Export) -> Iterator[bytes]:
    """Yield the file in chunks as they are made, by a thread that ends when nobody takes them any more.

    Raises:
        Exception: whatever went wrong while the file was made; then it is not whole.
    """
    pipe = _Pipe()
    thread = threading.Thread(target=_write, args=(export, pipe), name="parquet-export", daemon=True)
    thread.start()
    try:
        while (chunk := pipe.chunks.get()) is not None:
            yield chunk
        if pipe.error is not None:
            raise pipe.error
    finally:
        pipe.abandoned.set()
    export.progress.problems = list(export.store.problems)
    export.progress.done = True


class _Pipe(io.RawIOBase):
    """A file to write to, whose bytes another thread takes."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks: queue.Queue[bytes | None] = queue.Queue(QUEUED_CHUNKS)
        self.abandoned = threading.Event()
        self.error: BaseException | None = None
        self._at = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        chunk = bytes(data)
        self.put(chunk)
        self._at += len(chunk)
        return len(chunk)

    def put(self, chunk: bytes | None) -> None:
        """Hand on a chunk, None at the end; wait for room.

        Raises:
            Unavailable: nobody takes the file any more.
        """
        waited = 0.0
        while True:
            if self.abandoned.is_set() or waited > ABANDONED_S:
                raise Unavailable("nobody takes the export any more", code="export_abandoned")
            try:
                self.chunks.put(chunk, timeout=0.5)
                return
            except queue.Full:
                waited += 0.5


def _write(export: Export, pipe: _Pipe) -> None:
    def source(with_columns: Any, predicate: Any, n_rows: Any, batch_size: Any) -> Iterator[pl.DataFrame]:
        for frame in _frames(export):
            yield frame if with_columns is None else frame.select(with_columns)

    try:
        register_io_source(source, schema=SCHEMA, is_pure=False).sink_parquet(
            cast(IO[bytes], pipe),
            compression="zstd",
            compression_level=1,
            row_group_size=ROW_GROUP_ROWS,
            metadata={EXPORT_KEY: json.dumps(export.header)},
            maintain_order=True,
        )
    except BaseException as error:  # raised again where the file is read
        pipe.error = error
    try:
        pipe.put(None)
    except Unavailable:
        pass  # the reader is gone: nobody to tell


def _frames(export: Export) -> Iterator[pl.DataFrame]:
    """Yield the table in pieces of at least ROW_GROUP_ROWS rows; a run of 10,000 names with one point each is not
    slow."""
    waiting: list[pl.DataFrame] = []
    count = 0
    for piece in export.by_series():
        key = piece.keys[0]
        rows = export.rows(key, piece)
        if not len(rows):
            continue
        size = len(rows)
        waiting.append(
            pl.DataFrame(
                {
                    "run_id": pl.repeat(export.run_id, size, dtype=pl.String, eager=True),
                    "metric": pl.repeat(key.metric, size, dtype=pl.String, eager=True),
                    "segment": np.full(size, key.segment, np.int32),
                    "dead": export.dead(key, rows.steps),
                    "stray": np.full(size, key.stray),
                    "rank": pl.repeat(key.rank, size, dtype=pl.Int32, eager=True),
                    "node": pl.repeat(key.node or None, size, dtype=pl.String, eager=True),
                    "step": rows.steps,
                    "time": rows.times,
                    "value": rows.values,
                },
                schema=SCHEMA,
            )
        )
        count += size
        export.progress.points += size
        export.progress.rows += size
        if count >= ROW_GROUP_ROWS:
            yield pl.concat(waiting)
            waiting, count = [], 0
    if waiting:
        yield pl.concat(waiting)
