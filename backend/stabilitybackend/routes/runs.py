"""Reading runs: ``GET /api/v1/runs...``. Shapes: docs/api.md."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Query, Response

from stabilitybackend.errors import BadRequest
from stabilitybackend.routes.access import Commander, Manager, Reader, Worker
from stabilitybackend.runs import query

__all__ = ["router"]

#: Metrics answered in one call.
MAX_METRICS = 200
MAX_POINTS = 1_000_000

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])


def _json(content: Any) -> Response:
    return Response(orjson.dumps(content), media_type="application/json")


@router.get("")
async def runs(manager: Manager, reader: Reader) -> Response:
    """All runs, newest first."""
    return _json({"runs": await manager.runs()})


@router.get("/{run_id}")
async def run(reader: Reader, worker: Worker) -> Response:
    """One run."""
    return _json(worker.run())


@router.get("/{run_id}/segments")
async def segments(reader: Reader, worker: Worker) -> Response:
    """The tree of segments and its head."""
    return _json(worker.segments())


@router.post("/{run_id}/segments/{segment}/undo")
async def undo_segment(segment: int, commander: Commander, worker: Worker) -> Response:
    """Say that a segment which was inferred from the steps alone is no rollback; its points become dead strays."""
    return _json(await worker.undo_segment(segment, commander.name))


@router.get("/{run_id}/series")
async def series(
    reader: Reader,
    worker: Worker,
    metric: Annotated[list[str], Query(description="metric names; repeat the parameter")],
    view: Literal["effective", "all"] = "effective",
    start: Annotated[int | None, Query(description="first step, inclusive")] = None,
    stop: Annotated[int | None, Query(description="last step, inclusive")] = None,
    points: Annotated[int | None, Query(ge=4, le=MAX_POINTS, description="at most about this many a series")] = None,
) -> Response:
    """Points of some metrics, one entry per metric, segment and rank; full resolution without ``points``."""
    if len(metric) > MAX_METRICS:
        raise BadRequest(
            f"{len(metric)} metrics asked for, expected at most {MAX_METRICS}", hint="ask in several calls"
        )
    state = worker.state
    found = query.select(
        state.store, state.fold, dict.fromkeys(metric), view=view, start=start, stop=stop, points=points
    )
    return _json({"series": [entry.as_dict() for entry in found], "cursor": worker.cursor})


@router.get("/{run_id}/incidents")
async def incidents(reader: Reader, worker: Worker) -> Response:
    """Incidents, newest first."""
    return _json({"incidents": worker.state.incidents.all()})


@router.post("/{run_id}/incidents/{incident_id}/ack")
async def acknowledge(incident_id: str, commander: Commander, worker: Worker) -> Response:
    """Say that you look after an incident; the first to say so stands."""
    return _json(await worker.acknowledge(incident_id, commander.name))


@router.get("/{run_id}/checkpoints")
async def checkpoints(reader: Reader, worker: Worker) -> Response:
    """Checkpoints, newest first."""
    return _json({"checkpoints": worker.state.checkpoints()})


@router.get("/{run_id}/health")
async def health(reader: Reader, worker: Worker) -> Response:
    """The newest word of each agent."""
    state = worker.state
    return _json({"agents": [state.agent_view(agent) for agent in state.agents.values()]})
