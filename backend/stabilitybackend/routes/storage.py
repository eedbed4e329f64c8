"""Where a run's points are, merging its files, and removing the run. Shapes: docs/api.md."""

from __future__ import annotations

from typing import Annotated

import orjson
from fastapi import APIRouter, Query, Request, Response

from stabilitybackend.routes.access import Administrator, Commander, Manager, Reader, audit

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/runs/{run_id}", tags=["storage"])


@router.get("/storage")
async def storage(run_id: str, reader: Reader, manager: Manager) -> Response:
    """How much of the run is in Redis and how much in files."""
    return Response(orjson.dumps(await manager.storage(run_id)), media_type="application/json")


@router.post("/compact")
async def compact(run_id: str, commander: Commander, manager: Manager) -> Response:
    """Merge the small files of the run; a run that is over is archived whole first."""
    return Response(orjson.dumps(await manager.compact_run(run_id)), media_type="application/json")


@router.delete("")
async def delete(
    run_id: str,
    request: Request,
    administrator: Administrator,
    manager: Manager,
    force: Annotated[bool, Query(description="also while its job is live")] = False,
) -> Response:
    """Remove the run for good."""
    await manager.delete_run(run_id, force)
    await audit(request, administrator, "run.delete", run_id, "forced" if force else "")
    return Response(orjson.dumps({"deleted": run_id}), media_type="application/json")
