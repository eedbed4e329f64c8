"""Probes, metrics, OpenAPI, and a 404 in words for unknown calls below ``/api``."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from msgspec import structs
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from redis.exceptions import RedisError

from stabilitybackend.alerts.receivers import receivers_now
from stabilitybackend.base.errors import NotFound
from stabilitybackend.schema.server import Alive, Ready, Receivers, ServerHealth
from stabilitybackend.server.api.access import AlertingPart, Caller, Reader, RedisClients, StartOptions
from stabilitybackend.server.api.answers import answer, answers
from stabilitybackend.server.problems import lost
from stabilitybackend.server.stage import part
from stabilitybackend.server.stages import Health, Metrics, Runs, Storage

__all__ = ["fallback", "router"]

HealthPart = Annotated[Health, part(Health)]

#: Seconds that Redis has to answer before /healthz calls it away.
HEALTH_TIMEOUT_S = 2.0

router = APIRouter(tags=["server"])
#: Included after all other routes: Dash would answer an unknown API path with its HTML page.
fallback = APIRouter()


@router.head("/livez", include_in_schema=False)
@router.get("/livez", responses=answers(Alive))
async def livez() -> Response:
    """Whether this process answers. Restart one that does not; nothing else should end it."""
    return answer(Alive("ok"))


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", responses=answers(Ready, 200, 503))
async def readyz(health: HealthPart, runs: Annotated[Runs, part(Runs)]) -> Response:
    """Readiness: every live run is judged and stored and all background work runs; else 503 with the reasons."""
    found = health.problems()
    return answer(Ready("not ready" if found else "ready", found + lost(runs.manager)), 503 if found else 200)


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", responses=answers(ServerHealth, 200, 503))
async def healthz(
    health: HealthPart, storage: Annotated[Storage, part(Storage)], clients: RedisClients, options: StartOptions
) -> Response:
    """Health of the server, of its Redis, and of its processes' versions."""
    problem, redis = storage.storing.problem, "ok"
    if problem is not None:
        redis = f"{problem.problem}. {problem.hint}"
    else:
        try:
            await asyncio.wait_for(clients.redis.ping(), HEALTH_TIMEOUT_S)
        except (RedisError, OSError, TimeoutError) as error:
            redis = f"away: {type(error).__name__}"
    apart = health.between_processes()
    status: Literal["ok", "degraded"] = "ok" if redis == "ok" and apart is None else "degraded"
    found = ServerHealth(status, options.version, redis, round(time.monotonic() - health.started, 3))
    if apart is not None:
        found = structs.replace(found, versions=f"{apart.problem}. {apart.hint}")
    # Degraded processes of a fitting version still work: a probe that reads the status code alone leaves them be.
    return answer(found, 200 if redis == "ok" and health.takes_part else 503)


@router.get("/api/v1/receivers", responses=answers(Receivers))
async def receivers(reader: Reader, alerting: AlertingPart) -> Response:
    """Receivers of alerts and of the heartbeat, with their newest accepted and refused messages."""
    reader.require_all_projects()
    return answer(await receivers_now(alerting.service, alerting.heartbeat, alerting.problems(), time.time()))


@router.get("/metrics", response_class=Response, responses=answers(None, media_types=(CONTENT_TYPE_LATEST,)))
async def metrics(reader: Reader, measured: Annotated[Metrics, part(Metrics)]) -> Response:
    """The server's own metrics in Prometheus' text format; docs/operations.md explains them."""
    reader.require_all_projects()
    return Response(generate_latest(measured.registry), media_type=CONTENT_TYPE_LATEST)


@router.get("/api/v1/openapi.json", include_in_schema=False)
async def openapi(request: Request, _: Caller) -> Response:
    """The calls, as OpenAPI."""
    below = request.scope.get("root_path")
    where = {"servers": [{"url": below}]} if below else {}
    return JSONResponse(request.app.openapi() | where)


@fallback.api_route("/api/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False)
async def unknown(path: str) -> Response:
    """Say that there is no such call."""
    raise NotFound(f"there is no /api/{path}", hint="the calls are listed at /api/v1/openapi.json")
