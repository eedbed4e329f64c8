"""``GET /api/v1/runs/{id}/export``: a whole run as one file, streamed. Shapes: README of the importers."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Generator
from itertools import chain
from typing import Annotated, Any, Literal

import anyio
import anyio.to_thread
from fastapi import APIRouter, Query, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from stabilitybackend.base.errors import NotFound
from stabilitybackend.runs.annotations import AnnotationBook
from stabilitybackend.schema.series import ExportProgress
from stabilitybackend.server.api.access import Reader, RedisClients, StartOptions, Worker
from stabilitybackend.server.api.answers import answer, answers
from stabilitybackend.server.api.compare import scores_of
from stabilitybackend.server.api.reading import ReadingPart
from stabilitybackend.storage.export.export import Export, ExportView
from stabilitybackend.storage.export.jsonl import jsonl_export
from stabilitybackend.storage.export.parquet import parquet_export
from stabilitybackend.storage.points.store import StoreView
from stabilitybackend.storage.query.lineage_view import LineageView

__all__ = ["EXPORT_ID_HEADER", "router"]

#: Header of the answer: id for the progress and the problems of the export.
EXPORT_ID_HEADER = "X-Export-Id"
#: Longest read of the newest points, seconds.
REFRESH_TIMEOUT_S = 10.0
_TYPES = {"jsonl": "application/x-ndjson", "parquet": "application/vnd.apache.parquet"}

router = APIRouter(prefix="/api/v1/runs/{run_id}/export", tags=["export"])


class _FileResponse(StreamingResponse):
    """Ends the making of the file when the reader is gone, and not when its memory happens to be collected."""

    def __init__(self, first: bytes, chunks: Generator[bytes, None, None], **options: Any) -> None:
        super().__init__(chain([first], chunks), **options)
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._chunks.close)


@router.get("", response_class=Response, responses=answers(None, media_types=tuple(_TYPES.values())))
async def export(
    options: StartOptions,
    clients: RedisClients,
    reading: ReadingPart,
    reader: Reader,
    worker: Worker,
    format: Literal["jsonl", "parquet"] = "jsonl",
    view: Annotated[ExportView, Query(description="effective: without discarded points")] = "all",
    metric: Annotated[list[str] | None, Query(description="metric names; repeat it; all without")] = None,
) -> Response:
    """The points of a run as one file, made while it is read."""
    await worker.points.wait()
    state, cursor = worker.state, worker.cursor
    stored, lineage = state.store.view(metric), LineageView.of(state.fold)
    settings = options.settings
    run, segments = worker.run(), worker.state.fold.tree.view().segments
    noted = await AnnotationBook(worker.run_id, clients.redis, state.fold.tree).all()

    scores = scores_of(worker)
    loop = asyncio.get_running_loop()

    async def view_now() -> StoreView:
        return worker.state.store.view(metric)

    def refresh() -> StoreView:
        """Called in the thread that makes the file; the points are read where they change."""
        return asyncio.run_coroutine_threadsafe(view_now(), loop).result(REFRESH_TIMEOUT_S)

    def begin() -> tuple[Export, bytes, Generator[bytes, None, None]]:
        made = Export(
            stored,
            lineage,
            run,
            segments,
            view=view,
            metrics=metric or [],
            cursor=cursor,
            now=time.time(),
            refresh=refresh,
            annotations=noted,
            spike_scores=scores(),
        )
        if format == "jsonl":
            chunks = jsonl_export(made)
        else:
            settings.make_data_dir()
            chunks = parquet_export(made, settings.data_dir)
        # A failure at the begin, as on a full disk, is answered by an error, and not by a file that breaks off.
        return made, next(chunks, b""), chunks

    made, first, chunks = await asyncio.to_thread(begin)
    name = uuid.uuid4().hex
    reading.remember_export(name, made.progress)
    headers = {
        EXPORT_ID_HEADER: name,
        "Content-Disposition": f'attachment; filename="{made.run_id}.{format}"',
    }
    return _FileResponse(first, chunks, media_type=_TYPES[format], headers=headers)


@router.get("/{export_id}", responses=answers(ExportProgress))
async def progress(reading: ReadingPart, export_id: str, reader: Reader) -> Response:
    """Progress of an export: points in all (about) and written, and unreadable files."""
    found = reading.exports.get(export_id)
    if found is None:
        raise NotFound(f"there is no export {export_id!r}", hint="only the newest ones of this server are remembered")
    return answer(found)
