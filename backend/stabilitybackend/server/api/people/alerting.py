"""Alerting: receivers, routes, mutes, and who would get an alert. Shapes: docs/api.md."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request, Response
from msgspec import structs
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field

from stabilityalerting import Alert, AlertingService, who_gets
from stabilityalerting.routing import LABELS, RoutingTable, Rules, labels_of
from stabilitybackend.access.auth import Principal
from stabilitybackend.alerts.rules import AlertRules
from stabilitybackend.base.errors import Forbidden, NotFound
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.base.yaml_file import MAX_YAML_CHARS
from stabilitybackend.schema.pages.alerting import (
    AlertingStatus,
    AlertPreview,
    Mutes,
    Receiver,
    ReceiverPreview,
    Routes,
)
from stabilitybackend.server import stages
from stabilitybackend.server.api.access import Commander, Manager, Reader, audit, check_project, server_of
from stabilitybackend.server.api.answers import answer, answers
from stabilitybackend.storage.redis_link import redis_errors

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/alerting", tags=["alerting"])
_FORBID = ConfigDict(extra="forbid")


class RoutesBody(BaseModel):
    """New routes."""

    model_config = _FORBID

    text: str = Field(max_length=MAX_YAML_CHARS, description="YAML; empty: each receiver gets everything")
    version: int = Field(ge=0, description="of the routes that were changed: 409 where somebody was faster")


class MuteBody(BaseModel):
    """A new mute."""

    model_config = _FORBID

    match: dict[str, str | int | list[str | int]] = Field(description="label -> patterns, as in a route")
    reason: str = Field(description="1 to 300 characters")
    starts: float | None = Field(None, description="unix seconds; left out: now")
    ends: float = Field(description="unix seconds, at most 30 days after the start")


class PreviewBody(BaseModel):
    """An incident, and routes that are tried on it."""

    model_config = _FORBID

    run: str = Field(description="id of a run")
    incident: str = Field(description="id of one of its incidents, open or over")
    text: str | None = Field(None, max_length=MAX_YAML_CHARS, description="YAML to try; left out: the routes of now")


@router.get("", responses=answers(AlertingStatus))
async def alerting(request: Request, reader: Reader) -> Response:
    """Receivers with counts of their alerts by outcome, routes and mutes."""
    service, rules = _service(request), _rules(request)
    status = service.status()
    receivers = [
        Receiver(sink.name, sink.channel or sink.name, sink.min_severity, status["counts"].get(sink.name, {}))
        for sink in service.sinks
    ]
    routes = await rules.routes()
    if reader.project is not None:
        routes = structs.replace(routes, text="")
    return answer(
        AlertingStatus(
            receivers,
            status["sending"],
            status["unreadable"],
            routes,
            [mute for mute in await rules.mutes() if _is_of(reader, mute.match)],
            list(LABELS),
        )
    )


@router.put("/routes", responses=answers(Routes))
async def write_routes(body: RoutesBody, request: Request, commander: Commander) -> Response:
    """Put new routes in place of the old ones."""
    commander.require_all_projects()
    written = await _rules(request).write_routes(body.text, body.version, commander.name)
    await audit(request, commander, "alerting.routes", f"version {written.version}")
    return answer(written)


@router.post("/mutes", responses=answers(Mutes))
async def mute(body: MuteBody, request: Request, commander: Commander) -> Response:
    """Mute alerts for a while; the answer has all mutes."""
    match: dict[str, Any] = dict(body.match)
    if commander.project is not None and match.setdefault("project", commander.project) != commander.project:
        raise Forbidden(
            f"key {commander.name!r} is for the project {commander.project!r}, this would mute another one",
            hint="leave the project out",
            code="wrong_project",
        )
    made = await _rules(request).mute(match, body.reason, body.starts, body.ends, commander.name)
    until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(made.ends))
    await audit(request, commander, "alerting.mute", made.mute_id, f"{_words(match)} until {until}: {made.reason}")
    return answer(Mutes([one for one in await _rules(request).mutes() if _is_of(commander, one.match)]))


@router.delete("/mutes/{mute_id}", responses=answers(Mutes))
async def end_mute(mute_id: str, request: Request, commander: Commander) -> Response:
    """End a mute now: incidents that are still open are sent. The answer has all mutes."""
    rules = _rules(request)
    found = await rules.find_mute(mute_id)
    if not _is_of(commander, found.match):
        raise NotFound(f"no mute {mute_id!r} is on", hint="GET /api/v1/alerting lists them")
    await rules.end_mute(mute_id)
    await audit(request, commander, "alerting.unmute", mute_id, _words(found.match))
    return answer(Mutes([one for one in await rules.mutes() if _is_of(commander, one.match)]))


@router.post("/preview", responses=answers(AlertPreview))
async def preview(body: PreviewBody, request: Request, reader: Reader, manager: Manager) -> Response:
    """Who would get an incident if it opened now."""
    await check_project(reader, manager, body.run)
    with redis_errors():
        stored: Any = await server_of(request)[stages.Connections].redis.hget(
            RunKeys(body.run).incidents, body.incident
        )
    if stored is None:
        raise NotFound(
            f"run {body.run!r} has no incident {body.incident!r}", hint="GET /api/v1/incidents lists incidents"
        )
    alert = replace(Alert.from_json(stored), project=await manager.project(body.run))
    rules = _rules(request)
    with redis_errors():
        now = await rules.now()
    if body.text is not None:
        reader.require_all_projects()
        now = Rules(await rules.table_of(body.text), now.mutes)
    labels = labels_of(alert)
    table: RoutingTable | None = now.table
    fitting = [] if table is None else [at + 1 for at in table.decide(labels).routes]
    found = [
        ReceiverPreview(one.receiver, one.gets, one.after_min, one.why)
        for one in who_gets(alert, _service(request).sinks, now, time.time())
    ]
    return answer(AlertPreview(labels, fitting, found))


def _is_of(who: Principal, match: dict[str, Any]) -> bool:
    """Return whether a caller may see a mute."""
    return who.project is None or match.get("project") == who.project


def _words(match: dict[str, Any]) -> str:
    return ", ".join(
        f"{label} {' or '.join(map(str, value)) if isinstance(value, list) else value}"
        for label, value in match.items()
    )


def _service(request: Request) -> AlertingService:
    return server_of(request)[stages.Alerting].service


def _rules(request: Request) -> AlertRules:
    return server_of(request)[stages.Alerting].rules
