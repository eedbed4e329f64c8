"""Where a run's points are, merging its files, and removing the run. Shapes: docs/api.md."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from stabilitybackend.api.access import Administrator, Commander, Manager, Reader, audit
from stabilitybackend.api.answers import answer, answers
from stabilitybackend.schema.server import Deleted, Storage

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/runs/{run_id}", tags=["storage"])


@router.get("/storage", responses=answers(Storage))
async def storage(run_id: str, reader: Reader, manager: Manager) -> Response:
    """How much of the run is in Redis and how much in files."""
    return answer(await manager.storage(run_id))


@router.post("/compact", responses=answers(Storage))
async def compact(run_id: str, commander: Commander, manager: Manager) -> Response:
    """Merge the small files of the run; a run that is over is archived whole first."""
    return answer(await manager.compact_run(run_id))


@router.delete("", responses=answers(Deleted))
async def delete(
    run_id: str,
    request: Request,
    administrator: Administrator,
    manager: Manager,
    force: Annotated[bool, Query(description="also while its job is live")] = False,
) -> Response:
    """Delete the run everywhere."""
    await manager.delete_run(run_id, force)
    await audit(request, administrator, "run.delete", run_id, "forced" if force else "")
    return answer(Deleted(run_id))
