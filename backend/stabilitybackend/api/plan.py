"""What a launcher should do next: ``GET /api/v1/runs/{run_id}/plan``. Shape and meaning: docs/restart.md."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query, Response

from stabilitybackend.api.access import Reader, Worker
from stabilitybackend.api.answers import answer, answers
from stabilitybackend.runs.derived.restart_plan import plan_of
from stabilitybackend.schema.commands import CommandRequest
from stabilitybackend.schema.plan import Plan

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])


@router.get("/{run_id}/plan", responses=answers(Plan))
async def plan(
    reader: Reader,
    worker: Worker,
    ordered: Annotated[bool, Query(description="as a restart that is ordered now would be carried out")] = False,
) -> Response:
    """Whether to start the job again, from where, and without which nodes."""
    state = await worker.ready()
    request = CommandRequest("restart") if ordered else None
    return answer(plan_of(state, time.time(), request))
