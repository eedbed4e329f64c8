"""What agents collected of a job that stands: ``GET /api/v1/runs/{run_id}/stacks``. Shapes: docs/api.md."""

from __future__ import annotations

import asyncio

import orjson
from fastapi import APIRouter, Response

from stabilitybackend.errors import NotFound
from stabilitybackend.routes.access import Reader, Worker

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/runs/{run_id}/stacks", tags=["runs"])


@router.get("")
async def stacks(reader: Reader, worker: Worker) -> Response:
    """The newest dumps of the run, newest first."""
    state = await worker.ready()
    dumps = [dump.as_dict() for dump in state.liveness.dumps.held()]
    return Response(await asyncio.to_thread(orjson.dumps, {"dumps": dumps}), media_type="application/json")


@router.get("/{request}")
async def dump(request: str, reader: Reader, worker: Worker) -> Response:
    """One dump: the ranks' stacks in groups, and the collectives that stand."""
    state = await worker.ready()
    found = state.liveness.dumps.get(request)
    if found is None:
        raise NotFound(
            f"run {worker.run_id} has no dump {request!r}", hint="list them with GET .../stacks; the newest 8 are kept"
        )
    return Response(await asyncio.to_thread(orjson.dumps, found), media_type="application/json")
