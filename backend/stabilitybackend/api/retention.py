"""Removing old runs by command: ``POST /api/v1/retention``. Shapes: docs/api.md."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from stabilitybackend.api.access import Administrator
from stabilitybackend.api.answers import answer, answers
from stabilitybackend.runs.archiving.retention import Retention
from stabilitybackend.schema.server import Retained

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["storage"])


@router.post("/retention", responses=answers(Retained))
async def retain(
    request: Request,
    administrator: Administrator,
    days: Annotated[float, Query(description="delete runs that have not reported for so many days, >= 1")],
    dry_run: Annotated[bool, Query(description="delete nothing, only say what would go")] = False,
) -> Response:
    """Delete the runs that ended more than some days ago."""
    retention: Retention = request.app.state.retention
    who = administrator
    runs = await retention.apply(days, who=who.name, key_id=who.key_id, dry_run=dry_run, project=who.project)
    return answer(Retained(days, dry_run, runs))
