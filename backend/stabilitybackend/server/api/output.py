"""Lines printed by the ranks of a run: ``GET /api/v1/runs/{run_id}/output``. Shapes: docs/api.md."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from stabilitybackend.runs.agents.output import MAX_LINES, OutputQuery
from stabilitybackend.schema.job.output import OutputAnswer
from stabilitybackend.server.api.access import Commander, Manager, Recorded, Worker
from stabilitybackend.server.api.answers import answer, answers
from stabilitybackend.storage.redis_link import redis_errors

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/runs/{run_id}", tags=["runs"])


@router.get("/output", responses=answers(OutputAnswer))
async def output(
    commander: Commander,
    manager: Manager,
    worker: Worker,
    record: Recorded,
    rank: Annotated[int | None, Query(ge=0, description="only of this rank")] = None,
    stream: Annotated[Literal["out", "err"] | None, Query(description="only of this stream")] = None,
    step: Annotated[int | None, Query(ge=0, description="lines around this step")] = None,
    after: Annotated[str | None, Query(max_length=80, description="lines after this id")] = None,
    before: Annotated[str | None, Query(max_length=80, description="lines before this id")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LINES, description="at most so many")] = 200,
) -> Response:
    """Lines that ranks printed, the newest, or those around a step or a line: for who may send commands."""
    query = OutputQuery(rank, stream, step, after, before, limit)
    await record.saw(commander, "see.output")
    with redis_errors():
        return answer(await manager.output_log.read(worker.run_id, query, worker.state.incidents.culprits()))
