"""What agents collected of a job that hangs: ``GET /api/v1/runs/{run_id}/stacks``. Shapes: docs/api.md."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Response

from stabilitybackend.api.access import Reader, Worker
from stabilitybackend.api.answers import answer, answers
from stabilitybackend.errors import NotFound
from stabilitybackend.schema.ranks import RankStacks, StackDumps

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/runs/{run_id}/stacks", tags=["runs"])


@router.get("", responses=answers(StackDumps))
async def stacks(reader: Reader, worker: Worker) -> Response:
    """The newest dumps of the run, newest first."""
    state = await worker.ready()
    return await asyncio.to_thread(answer, StackDumps([dump.shown() for dump in state.liveness.dumps.held()]))


@router.get("/{request}", responses=answers(RankStacks))
async def dump(request: str, reader: Reader, worker: Worker) -> Response:
    """One dump: the ranks' stacks in groups, and the collectives that are stuck."""
    state = await worker.ready()
    found = state.liveness.dumps.get(request)
    if found is None:
        raise NotFound(
            f"run {worker.run_id} has no dump {request!r}", hint="list them with GET .../stacks; the newest 8 are kept"
        )
    return await asyncio.to_thread(answer, found)
