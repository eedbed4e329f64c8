"""What the rollbacks of a run cost: ``GET /api/v1/runs/{id}/rollback_costs``. Shapes and words: docs/api.md."""

from __future__ import annotations

import asyncio
import time

from fastapi import APIRouter, Response

from stabilitybackend.api.access import Reader, Worker
from stabilitybackend.api.answers import answer, answers
from stabilitybackend.runs.derived.rollback_cost import rollback_costs_of
from stabilitybackend.schema.rollback_cost import RollbackCosts

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])


# ``ledger`` is the route's name of older scripts.
@router.get("/{run_id}/ledger", include_in_schema=False)
@router.get("/{run_id}/rollback_costs", responses=answers(RollbackCosts))
async def rollback_costs(reader: Reader, worker: Worker) -> Response:
    """What each rollback cost, and how much of the run's time was worth it."""
    found = await asyncio.to_thread(rollback_costs_of(worker.state, time.time()))
    return answer(found)
