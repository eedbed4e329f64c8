"""What an orchestrator and a load balancer ask: ``/livez``, ``/readyz``, ``/healthz``. None needs a key."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from redis.exceptions import RedisError

from stabilitybackend.routes.answers import answers
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.schema.runs import StoringProblem
from stabilitybackend.schema.server import Alive, Ready, ServerHealth
from stabilitybackend.storing import Storing

__all__ = ["reasons", "router"]

#: Seconds that Redis has to answer before /healthz calls it away.
HEALTH_TIMEOUT_S = 2.0

router = APIRouter(tags=["server"])


@router.head("/livez", include_in_schema=False)
@router.get("/livez", responses=answers(Alive))
async def livez() -> Response:
    """Whether this process answers. Restart one that does not; nothing else should end it."""
    return JSONResponse({"status": "ok"})


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", responses=answers(Ready, 200, 503))
async def readyz(request: Request) -> Response:
    """Whether every live run is judged and stored; 503 with the reasons while that is not so."""
    found = reasons(request.app.state.manager, request.app.state.storing)
    answer = {"status": "not ready" if found else "ready", "reasons": found}
    return JSONResponse(answer, status_code=503 if found else 200)


def reasons(manager: RunManager, storing: Storing) -> list[dict[str, Any]]:
    """Return why the server is not ready. No run is named: anybody may ask."""
    found = []
    if storing.trouble is not None:
        trouble = storing.trouble
        found.append({"code": trouble.code, "message": trouble.problem, "hint": trouble.hint})
    waiting = manager.waking.waiting
    if manager.late:
        message, hint = "Redis was away at the start: live runs are not taken up yet", "wait; it is tried each second"
        found.append({"code": "restoring", "message": message, "hint": hint})
    elif waiting:
        message = f"{waiting} of {manager.waking.total} live runs are not judged yet after the restart"
        found.append({"code": "restoring", "message": message, "hint": "wait; the server's log names trouble"})
    unarchived = manager.unarchived()
    if unarchived:
        runs = "1 run" if unarchived == 1 else f"{unarchived} runs"
        message = f"the archive of {runs} can't be written; their points stay in Redis until it can"
        hint = "make room on its disk, or mend the way to its store: the run's page and its storage call say why"
        found.append({"code": "archive", "message": message, "hint": hint})
    return found


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", responses=answers(ServerHealth, 200, 503))
async def healthz(request: Request) -> Response:
    """Whether the server works and its Redis stores what comes."""
    state = request.app.state
    answer = {
        "status": "ok",
        "version": state.version,
        "redis": "ok",
        "uptime_s": round(time.monotonic() - state.started, 3),
    }
    trouble: StoringProblem | None = state.storing.trouble
    if trouble is not None:
        answer |= {"status": "degraded", "redis": f"{trouble.problem}. {trouble.hint}"}
    else:
        try:
            await asyncio.wait_for(state.redis.ping(), HEALTH_TIMEOUT_S)
        except (RedisError, OSError, TimeoutError) as error:
            answer |= {"status": "degraded", "redis": f"away: {type(error).__name__}"}
    return JSONResponse(answer, status_code=200 if answer["status"] == "ok" else 503)
