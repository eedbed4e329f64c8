"""Where a rollback would go: ``GET /api/v1/runs/{run_id}/rollback``. Shape and meaning: docs/api.md."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from stabilitybackend.api.access import Reader, Worker
from stabilitybackend.api.answers import answer, answers
from stabilitybackend.runs.derived.rollback_offer import offer_of
from stabilitybackend.schema.lineage import Offer

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/runs", tags=["commands"])


@router.get("/{run_id}/rollback", responses=answers(Offer))
async def rollback(
    reader: Reader,
    worker: Worker,
    incident: Annotated[str | None, Query(description="the incident to roll back for; left out: the run")] = None,
) -> Response:
    """The rollback that is suggested now, and the checkpoints that are offered; all pages show this one."""
    return answer(offer_of(await worker.ready(), incident))
