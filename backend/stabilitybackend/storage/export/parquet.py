"""Writes a run as one long Parquet table, in a stream of a few row groups in memory."""

from __future__ import annotations

import io
import json
import os
import tempfile
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from stabilitybackend.base.errors import StabilityBoardError, Unavailable
from stabilitybackend.storage.export.export import Export

__all__ = ["EXPORT_KEY", "SCHEMA", "parquet_export"]

#: Key in the file's metadata: JSON that names the run and connects its segments.
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
#: Bytes handed to the network at a time.
CHUNK_BYTES = 1 << 20


def parquet_export(export: Export, folder: Path | None = None) -> Generator[bytes, None, None]:
    """Yield the file in chunks while a thread makes it, into a temporary file.

    There is a file between the two because Polars writes in the threads that read charts and archive as well: two
    clients on slow lines would otherwise hold all of them on a machine with two cores.

    Args:
        folder: of the temporary file, None for the system's. The file has no name and is gone with the process.

    Raises:
        StabilityBoardError: there is no room for the file (code ``no_room``).
        Exception: whatever else went wrong while the file was made; then it is not whole.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        spool = _Spool(file.fileno())
        thread = threading.Thread(target=_write, args=(export, spool), name="parquet-export", daemon=True)
        thread.start()
        try:
            yield from spool.chunks()
        finally:
            spool.abandoned.set()
            thread.join()
        if spool.error is not None:
            export.progress.finish([str(spool.error)], done=False)
            raise spool.error
    export.progress.finish(list(export.store.problems))


class _Spool(io.RawIOBase):
    """A file to write to, which another thread reads as it grows."""

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file = file
        self._size = 0
        self._whole = False
        self._grown = threading.Condition()
        self.abandoned = threading.Event()
        self.error: BaseException | None = None

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        """Write all of ``data``. Raises Unavailable where the reader has gone."""
        if self.abandoned.is_set():
            raise Unavailable("nobody takes the export any more", code="export_abandoned")
        rest = memoryview(bytes(data))
        size, at = len(rest), self._size
        while rest:
            try:
                written = os.pwrite(self._file, rest, at)
            except OSError as error:
                self.error = StabilityBoardError(
                    f"the server can't write the file that becomes the export: {error.strerror}",
                    hint="make room on the disk of its data folder, or take format=jsonl, which needs none",
                    code="no_room", status=503,
                )  # fmt: skip
                raise self.error from error
            rest, at = rest[written:], at + written
        with self._grown:
            self._size = at
            self._grown.notify_all()
        return size

    def end(self) -> None:
        """Say that nothing more comes."""
        with self._grown:
            self._whole = True
            self._grown.notify_all()

    def chunks(self) -> Iterator[bytes]:
        """Yield the written chunks, up to the end."""
        at = 0
        while True:
            with self._grown:
                self._grown.wait_for(lambda at=at: self._size > at or self._whole)  # type: ignore[misc]
                size = min(self._size - at, CHUNK_BYTES)
            if not size:
                return
            chunk = os.pread(self._file, size, at)
            at += len(chunk)
            yield chunk


def _write(export: Export, spool: _Spool) -> None:
    def source(with_columns: Any, predicate: Any, n_rows: Any, batch_size: Any) -> Iterator[pl.DataFrame]:
        for frame in _frames(export):
            yield frame if with_columns is None else frame.select(with_columns)

    try:
        register_io_source(source, schema=SCHEMA, is_pure=False).sink_parquet(
            cast(IO[bytes], spool),
            compression="zstd",
            compression_level=1,
            row_group_size=ROW_GROUP_ROWS,
            metadata={EXPORT_KEY: json.dumps(export.header)},
            maintain_order=True,
        )
    except BaseException as error:  # raised again where the file is read
        spool.error = spool.error or error
    finally:
        spool.end()


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
        export.progress.add(points=size, rows=size)
        if count >= ROW_GROUP_ROWS:
            yield pl.concat(waiting)
            waiting, count = [], 0
    if waiting:
        yield pl.concat(waiting)
