"""Where a rollback would go: ``GET /api/v1/runs/{run_id}/rollback``. Shape and meaning: docs/api.md."""

from __future__ import annotations

from typing import Annotated

import orjson
from fastapi import APIRouter, Query, Response

from stabilitybackend.routes.access import Reader, Worker
from stabilitybackend.runs.offering import offer_of

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/runs", tags=["commands"])


@router.get("/{run_id}/rollback")
async def rollback(
    reader: Reader,
    worker: Worker,
    incident: Annotated[str | None, Query(description="the incident that one looks at; left out: the run")] = None,
) -> Response:
    """The rollback that is suggested now, and the checkpoints that are offered. Everybody shows this one."""
    return Response(orjson.dumps(offer_of(await worker.ready(), incident)), media_type="application/json")
