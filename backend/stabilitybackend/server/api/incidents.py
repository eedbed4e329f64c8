"""The incidents of all runs, and the search over everything. Shapes: docs/api.md."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Response

from stabilitybackend.access.auth import Principal
from stabilitybackend.base.errors import NotFound
from stabilitybackend.fleet.incident_list import IncidentFilter
from stabilitybackend.fleet.name_search import MAX_CHARS, best
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.schema.fleet import (
    FoundIncident,
    FoundMachine,
    FoundRun,
    IncidentPage,
    ListedIncident,
    SearchResults,
)
from stabilitybackend.server.api.access import Manager, Reader, check_project
from stabilitybackend.server.api.answers import answer, answers

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["fleet"])


@router.get("/incidents", responses=answers(IncidentPage))
async def incidents(
    manager: Manager,
    reader: Reader,
    run: Annotated[str | None, Query(description="only of this run")] = None,
    project: Annotated[str | None, Query(description="only of the runs of this project")] = None,
    kind: Annotated[list[str] | None, Query(description="only of these kinds; repeat the parameter")] = None,
    severity: Annotated[list[str] | None, Query(description="critical, warning, info; repeat it")] = None,
    state: Annotated[list[str] | None, Query(description="open, recovered, resolved; repeat it")] = None,
    since: Annotated[float | None, Query(description="only those opened since then, unix seconds")] = None,
    acknowledged: Annotated[bool | None, Query(description="whether somebody acknowledged it")] = None,
    limit: Annotated[int, Query(ge=0, le=1000, description="at most so many; 0 for the counts alone")] = 200,
    cursor: Annotated[str | None, Query(max_length=400, description="'next' of the page before")] = None,
) -> Response:
    """A page of the incidents of all runs: open ones first, by severity, then those that are over, newest first."""
    if project is not None and not reader.sees(project):
        raise NotFound(f"no run of project {project!r} is any business of this key", hint="leave the project out")
    wanted = IncidentFilter(
        run=run,
        project=project if reader.project is None else reader.project,
        kinds=frozenset(kind or ()),
        severities=frozenset(severity or ()),
        states=frozenset(state or ()),
        since=since,
        acknowledged=acknowledged,
    )
    return answer(manager.fleet.incidents.page(wanted, limit, cursor))


@router.get("/search", responses=answers(SearchResults))
async def search(
    manager: Manager,
    reader: Reader,
    q: Annotated[str, Query(description="words that are all in what is looked for")],
    run: Annotated[str | None, Query(description="a run, whose metrics are looked through too")] = None,
    limit: Annotated[int, Query(ge=1, le=50, description="at most so many of each")] = 8,
) -> Response:
    """Runs, metrics of a run, incidents, nodes and GPUs whose names have these words."""
    metrics: list[str] = []
    if run is not None:
        await check_project(reader, manager, run)
        metrics = (await manager.read(run)).state.store.metrics()
    words = q[:MAX_CHARS].lower().split()
    fleet, project = manager.fleet, reader.project
    runs, listed = fleet.catalog.runs(project), list(fleet.incidents.all(project)) if words else []
    machines = _machines(manager, reader) if words else []

    def find() -> SearchResults:
        return SearchResults(
            q=q,
            runs=best(words, runs, _run_text, limit),
            metrics=best(words, metrics, str, limit),
            incidents=[_incident(one) for one in best(words, listed, _incident_text, limit)],
            machines=best(words, machines, _machine_text, limit),
            complete=fleet.incidents.complete,
        )

    return answer(await asyncio.to_thread(find))


def _machines(manager: RunManager, reader: Principal) -> list[FoundMachine]:
    """Return the nodes, the GPUs of the runs that are followed, and those that were at fault once."""
    fleet, project = manager.fleet, reader.project
    found = [FoundMachine(node, "", run.run_id, run.name or run.run_id) for node, run in fleet.catalog.nodes(project)]
    gpus: dict[str, FoundMachine] = {}
    for run_id, worker in manager.followed().items():
        run = fleet.catalog.names(run_id)
        if reader.sees(run.project):
            for gpu in worker.state.gpus.devices:
                if gpu.uuid:
                    gpus[gpu.uuid] = FoundMachine(gpu.node, gpu.uuid, run_id, run.name or run_id)
    for known in fleet.gpus(project).gpus:
        newest = known.faults[0]
        if known.uuid not in gpus and fleet.catalog.names(newest.run_id).name:
            gpus[known.uuid] = FoundMachine(known.node, known.uuid, newest.run_id, newest.run_name)
    return found + list(gpus.values())


def _run_text(run: FoundRun) -> str:
    return f"{run.name} {run.run_id} {run.project}"


def _incident_text(one: ListedIncident) -> str:
    return f"{one.title} {one.label} {one.run_name} {one.incident_id}"


def _machine_text(one: FoundMachine) -> str:
    return f"{one.gpu} {one.node}" if one.gpu else one.node


def _incident(one: ListedIncident) -> FoundIncident:
    return FoundIncident(one.run_id, one.run_name, one.incident_id, one.label, one.title, one.severity, one.state)
