"""Where a run's points are, merging its files, and removing runs. Shapes: docs/api.md."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from stabilitybackend.schema.server import Deleted, Retained, RunStorage
from stabilitybackend.server.api.access import Administrator, Commander, Manager, Reader, Worker, audit
from stabilitybackend.server.api.answers import answer, answers
from stabilitybackend.server.stage import part
from stabilitybackend.server.stages import RunLists

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["storage"])


@router.get("/runs/{run_id}/storage", responses=answers(RunStorage))
async def storage(reader: Reader, worker: Worker) -> Response:
    """How much of the run is in Redis and how much in files."""
    return answer(worker.window.facts(worker.state.store))


@router.post("/runs/{run_id}/compact", responses=answers(RunStorage))
async def compact(run_id: str, commander: Commander, manager: Manager) -> Response:
    """Merge the small files of the run; an ended run is archived whole first."""
    return answer(await manager.compact_run(run_id))


@router.delete("/runs/{run_id}", responses=answers(Deleted))
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


@router.post("/retention", responses=answers(Retained))
async def retain(
    lists: Annotated[RunLists, part(RunLists)],
    administrator: Administrator,
    days: Annotated[float, Query(description="delete runs that have not reported for so many days, >= 1")],
    dry_run: Annotated[bool, Query(description="delete nothing, only say what would go")] = False,
) -> Response:
    """Delete the runs that ended more than some days ago."""
    who = administrator
    runs = await lists.retention.apply(days, who=who.name, key_id=who.key_id, dry_run=dry_run, project=who.project)
    return answer(Retained(days, dry_run, runs))
