"""Is the server well, what Prometheus asks, and a clear 404 for everything below ``/api`` that is no call."""

from __future__ import annotations

import asyncio
import time

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from redis.exceptions import RedisError

from stabilityalerting import AlertingService
from stabilitybackend.alerts.receivers import receivers_now
from stabilitybackend.base.errors import NotFound
from stabilitybackend.base.tasks import Watched
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.schema.runs import StoringProblem
from stabilitybackend.schema.server import Alive, ErrorFacts, Ready, Receivers, ServerHealth
from stabilitybackend.server.api.access import Caller, Reader
from stabilitybackend.server.api.answers import answer, answers
from stabilitybackend.storage.storing import Storing
from stabilityplugins.scale.membership.members import TAKES_NO_PART

__all__ = ["fallback", "reasons", "router"]

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
async def readyz(request: Request) -> Response:
    """Whether every live run is judged and stored and all of the server's work goes on; else 503 with the reasons."""
    state = request.app.state
    found = reasons(state.manager, state.storing, state.work)
    return answer(Ready("not ready" if found else "ready", found + lost(state.manager)), 503 if found else 200)


def lost(manager: RunManager) -> list[ErrorFacts]:
    """Return what Redis came up without, which keeps no server from its work and is to be known all the same."""
    runs = sum(bool(worker.window.lost) for worker in manager.owned().values())
    if not runs:
        return []
    message = f"Redis came up with less of {'1 run' if runs == 1 else f'{runs} runs'} than was written down of it"
    hint = (
        "see the log of Redis: was its append-only file cut? The run's storage call says up to when rows may be missing"
    )
    return [ErrorFacts("redis_lost", message, hint)]


def reasons(manager: RunManager, storing: Storing, work: Watched) -> list[ErrorFacts]:
    """Return why the server is not ready. No run is named: anybody may ask."""
    hint = "restart the server, and report what its log says"
    found = [ErrorFacts("stopped", f"{task} no longer runs", hint) for task in work.failed]
    if storing.trouble is not None:
        trouble = storing.trouble
        found.append(ErrorFacts(trouble.code, trouble.problem, trouble.hint))
    if (apart := storing.beside()) is not None and apart.code == TAKES_NO_PART:
        found.append(ErrorFacts(apart.code, apart.problem, apart.hint))
    waiting = manager.waking.waiting
    if manager.late:
        message, hint = "Redis was away at the start: live runs are not taken up yet", "wait; it is tried each second"
        found.append(ErrorFacts("restoring", message, hint))
    elif waiting:
        message = f"{waiting} of {manager.waking.total} live runs are not judged yet after the restart"
        found.append(ErrorFacts("restoring", message, "wait; the server's log names trouble"))
    windows = [worker.window for worker in manager.owned().values()]
    unarchived = sum(bool(window.problem) for window in windows)
    if unarchived:
        runs = "1 run" if unarchived == 1 else f"{unarchived} runs"
        message = f"the archive of {runs} can't be written; their points stay in Redis until it can"
        hint = "make room on its disk, or mend the way to its store: the run's page and its storage call say why"
        found.append(ErrorFacts("archive", message, hint))
    full = sum(window.full_since is not None for window in windows)
    if full:
        message = f"nothing new of {'1 run' if full == 1 else f'{full} runs'} is stored: the window of each is full"
        hint = "agents keep what comes; the banner of the run's page and its storage call say why"
        found.append(ErrorFacts("window_full", message, hint))
    return found


def watch_reasons(manager: RunManager, storing: Storing, work: Watched, alerting: AlertingService) -> list[ErrorFacts]:
    """Return why this server may tell nobody of an incident: it is not ready, or its alerting is broken.

    A load balancer is not to hear of the latter: agents would lose a server that stores what they send.
    """
    found = reasons(manager, storing, work)
    broken = alerting.problem()
    if broken:
        found.append(ErrorFacts("alerting", f"alerts may reach nobody: {broken}", "see the server's log"))
    return found


def trouble(manager: RunManager, storing: Storing, work: Watched, alerting: AlertingService) -> str:
    """Return the same in one line, "" while all is well."""
    return "; ".join(f"{one.code}: {one.message}" for one in watch_reasons(manager, storing, work, alerting))


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", responses=answers(ServerHealth, 200, 503))
async def healthz(request: Request) -> Response:
    """Whether the server works, its Redis stores what comes, and its processes are of versions that fit."""
    state = request.app.state
    found = ServerHealth("ok", state.version, "ok", round(time.monotonic() - state.started, 3))
    trouble: StoringProblem | None = state.storing.trouble
    if trouble is not None:
        found.status, found.redis = "degraded", f"{trouble.problem}. {trouble.hint}"
    else:
        try:
            await asyncio.wait_for(state.redis.ping(), HEALTH_TIMEOUT_S)
        except (RedisError, OSError, TimeoutError) as error:
            found.status, found.redis = "degraded", f"away: {type(error).__name__}"
    status = 200 if found.status == "ok" else 503
    if (apart := state.storing.beside()) is not None:
        # Others are degraded, too, and work: who asks for the status alone is to leave them in peace.
        found.status, found.versions = "degraded", f"{apart.problem}. {apart.hint}"
        status = 503 if apart.code == TAKES_NO_PART else status
    return answer(found, status)


@router.get("/api/v1/receivers", responses=answers(Receivers))
async def receivers(reader: Reader, request: Request) -> Response:
    """Who is notified of incidents, and who notices that this server is away: what was accepted and refused last."""
    reader.require_all_projects()
    state = request.app.state
    why = watch_reasons(state.manager, state.storing, state.work, state.alerting)
    return answer(await receivers_now(state.alerting, state.heartbeat, why, time.time()))


@router.get("/metrics", response_class=Response, responses=answers(None, media_types=(CONTENT_TYPE_LATEST,)))
async def metrics(reader: Reader, request: Request) -> Response:
    """The server's own metrics in Prometheus' text format; docs/operations.md says what they mean."""
    reader.require_all_projects()
    return Response(generate_latest(request.app.state.metrics), media_type=CONTENT_TYPE_LATEST)


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
