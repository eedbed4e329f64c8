"""What a launcher should do next: ``GET /api/v1/runs/{run_id}/plan``. Shape and meaning: docs/restart.md."""

from __future__ import annotations

import time

import orjson
from fastapi import APIRouter, Response

from stabilitybackend.routes.access import Reader, Worker
from stabilitybackend.runs.planning import plan_of

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])


@router.get("/{run_id}/plan")
async def plan(reader: Reader, worker: Worker) -> Response:
    """Whether to start the job again, from where, and without which nodes."""
    state = await worker.ready()
    return Response(orjson.dumps(plan_of(state, time.time())), media_type="application/json")
