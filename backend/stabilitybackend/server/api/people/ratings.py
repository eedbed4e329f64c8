"""Ratings of alerts, and the precision computed from them. Shapes: docs/api.md."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from stabilitybackend.alerts.ratings import Ratings, precision, rating_of
from stabilitybackend.base.errors import NotFound
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.schema.pages.alerting import Precision, RatingAnswer
from stabilitybackend.server.api.access import Commander, Manager, Reader, Recorded, Worker, server_of
from stabilitybackend.server.api.answers import answer, answers
from stabilitybackend.server.stages import Alerting
from stabilitybackend.storage.redis_link import redis_errors

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["alerting"])
_DAY_S = 86_400.0


class RatingBody(BaseModel):
    """A rating of the alert of an incident."""

    model_config = ConfigDict(extra="forbid", strict=True)

    useful: bool | None = Field(description="true: good to know; false: noise; null: takes the rating back")


@router.get("/runs/{run_id}/incidents/{incident_id}/rating", responses=answers(RatingAnswer))
async def rating(run_id: str, incident_id: str, request: Request, reader: Reader) -> Response:
    """The rating of the alert of an incident."""
    found = await _ratings(request).get(incident_id)
    return answer(RatingAnswer(found if found is not None and found.run_id == run_id else None))


@router.put("/runs/{run_id}/incidents/{incident_id}/rating", responses=answers(RatingAnswer))
async def rate(
    incident_id: str, body: RatingBody, request: Request, commander: Commander, worker: Worker, record: Recorded
) -> Response:
    """Say whether the alert of an incident was useful; the newest rating counts."""
    incident = (await worker.ready()).incidents.get(incident_id)
    if incident is None:
        raise NotFound(f"run {worker.run_id} has no incident {incident_id}", hint="list them with GET .../incidents")
    ratings = _ratings(request)
    if body.useful is None:
        await ratings.drop(incident_id)
        await record.did(commander, "incident.rate", incident_id, "taken back")
        return answer(RatingAnswer(None))
    with redis_errors():
        sent_to = await server_of(request)[Alerting].service.notified(
            RunKeys(worker.run_id).incident_events, incident_id
        )
    said = rating_of(incident, worker.listing.run.project, body.useful, sent_to, commander.name, time.time())
    await ratings.put(said)
    await record.did(
        commander, "incident.rate", incident_id, f"{'useful' if said.useful else 'noise'}: {incident.title}"
    )
    return answer(RatingAnswer(said))


@router.get("/alerting/precision", responses=answers(Precision))
async def alert_precision(
    request: Request,
    reader: Reader,
    manager: Manager,
    days: Annotated[float, Query(gt=0, le=400, description="of incidents that opened in the last so many days")] = 30,
) -> Response:
    """Share of useful alerts, by kind and by receiver, from ratings."""
    since = time.time() - days * _DAY_S
    ratings = await _ratings(request).since(since, reader.project)
    ran_s = manager.fleet.interruptions(days, reader.project).running_s
    incidents = manager.fleet.incidents.all(reader.project)
    return answer(precision(days, ratings, incidents, since, ran_s / _DAY_S))


def _ratings(request: Request) -> Ratings:
    return server_of(request)[Alerting].ratings
