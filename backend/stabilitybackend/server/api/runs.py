"""Reading runs: ``GET /api/v1/runs...``. Shapes: docs/api.md."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Response
from msgspec import structs
from redis.exceptions import RedisError

from stabilitybackend.base.errors import NotFound
from stabilitybackend.base.shared_answers import Read
from stabilitybackend.runs.derived.rollback_cost import rollback_costs_of
from stabilitybackend.schema.health import HealthAnswer
from stabilitybackend.schema.incidents import ShownIncident, shown
from stabilitybackend.schema.lineage import Checkpoints, Segments
from stabilitybackend.schema.ranks import RankStacks, StackDumps
from stabilitybackend.schema.resumes import Resumes
from stabilitybackend.schema.rollback_cost import RollbackCosts
from stabilitybackend.schema.runs import FIRST_METRICS, UNTIMED_KEY, MetricList, RunPage, RunWithStoring
from stabilitybackend.schema.series import SeriesAnswer, SpikeScores
from stabilitybackend.server.about.view import line_of
from stabilitybackend.server.api.about import run_launches
from stabilitybackend.server.api.access import Commander, Manager, Reader, Recorded, Worker
from stabilitybackend.server.api.answers import answer, answers
from stabilitybackend.server.api.compare import scores_of
from stabilitybackend.server.api.packing import Packs, packed, packed_answer
from stabilitybackend.server.api.reading import MaxAge, Shared, Threads
from stabilitybackend.storage.query import query
from stabilitybackend.storage.query.expression_reader import operands_of
from stabilitybackend.storage.query.lineage_view import LineageView
from stabilitybackend.storage.query.request import SeriesRequest

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])


class Incidents(msgspec.Struct):
    """Newest first."""

    incidents: list[ShownIncident]


@router.get("", responses=answers(RunPage))
async def runs(
    manager: Manager,
    reader: Reader,
    limit: Annotated[int, Query(ge=1, le=1000, description="at most so many")] = 500,
    cursor: Annotated[str | None, Query(max_length=400, description="'next' of the page before")] = None,
) -> Response:
    """A page of the runs, newest first, how many there are, and the cursor of the next page."""
    return answer(await manager.runs(limit, cursor, reader.project))


@router.get("/{run_id}", responses=answers(RunWithStoring))
async def run(reader: Reader, manager: Manager, worker: Worker) -> Response:
    """One run."""
    printed = False
    with suppress(RedisError, OSError):  # the run's facts are in memory
        printed = await manager.output_log.has_lines(worker.run_id)
    about = line_of(run_launches(worker), printed=printed)
    return answer(
        RunWithStoring(
            **structs.asdict(worker.run()), metrics=worker.state.store.metrics()[:FIRST_METRICS],
            storing=manager.storing or worker.storing_problem, about=about,
        )
    )  # fmt: skip


@router.get("/{run_id}/metrics", responses=answers(MetricList))
async def metrics(
    reader: Reader,
    worker: Worker,
    search: Annotated[str, Query(max_length=200, description="a part of the name, in any case")] = "",
    after: Annotated[int, Query(ge=0, description="'next' of the page before")] = 0,
    limit: Annotated[int, Query(ge=1, le=5_000, description="at most so many")] = FIRST_METRICS,
) -> Response:
    """A page of the names of the run's metrics, in the order in which they appeared."""
    word = search.lower()
    found = [name for name in worker.state.store.metrics() if word in name.lower()]
    end = after + limit
    return answer(MetricList(found[after:end], len(found), end if end < len(found) else None))


@router.get("/{run_id}/segments", responses=answers(Segments))
async def segments(reader: Reader, worker: Worker) -> Response:
    """The tree of segments and its head."""
    return answer(structs.replace(worker.state.fold.tree.view(), cursor=worker.cursor))


@router.post("/{run_id}/segments/{segment}/undo", responses=answers(Segments))
async def undo_segment(segment: int, commander: Commander, worker: Worker, record: Recorded) -> Response:
    """Say that a segment which was inferred from the steps alone is no rollback; its points are discarded as strays.

    Of steps that went back while their process ran on, all of the run are taken back together, later ones too.
    """
    undone = await worker.undo_segment(segment, commander.name)
    await record.did(commander, "segment.undo", str(segment))
    return answer(undone)


@router.get("/{run_id}/series", responses=answers(SeriesAnswer))
async def series(
    reader: Reader,
    worker: Worker,
    threads: Threads,
    shared: Shared,
    max_age_s: MaxAge,
    packs: Packs,
    metric: Annotated[list[str], Query(description="metric names or `expr:loss - eval/loss`; repeat it")],
    view: Annotated[str, Query(description="effective, all or segment:<id>")] = "effective",
    start: Annotated[int | None, Query(description="first step, inclusive")] = None,
    stop: Annotated[int | None, Query(description="last step, inclusive")] = None,
    points: Annotated[int | None, Query(description="at most about this many a metric and rank")] = None,
    rank: Annotated[str, Query(description="a rank, primary (the lowest that logs the metric) or all")] = "all",
    x: Annotated[str, Query(description="step, time or the name of a metric")] = "step",
    smooth: Annotated[float | None, Query(description="weight of the past, 0 to 0.9999")] = None,
    cursor: Annotated[str | None, Query(description="only what came after this stream id")] = None,
) -> Response:
    """Points of some metrics, one entry per metric, segment and rank; full resolution without ``points``."""
    request = SeriesRequest.of(metric, view=view, start=start, stop=stop, points=points, rank=rank, x=x, smooth=smooth)
    state, newest = worker.state, worker.cursor
    stored = state.store.view(operands_of([*request.metrics, x]))
    lineage = LineageView.of(state.fold)
    newer = None if cursor is None else stored.since(cursor)

    def read() -> Read:
        found = query.select(stored, lineage, request, newer)
        return Read(packed(found.as_json(cursor=newest), packs), whole=not found.problems)

    asked = (worker.run_id, request, cursor, packs)
    content = await shared.get(asked, state, lineage.effective, newest, max_age_s, lambda: threads.run(read))
    return packed_answer(content)


@router.get("/{run_id}/incidents", responses=answers(Incidents))
async def incidents(reader: Reader, worker: Worker) -> Response:
    """Incidents, newest first."""
    return answer({"incidents": [shown(one) for one in worker.state.incidents.all()]})


@router.get("/{run_id}/incidents/{incident_id}", responses=answers(ShownIncident))
async def incident(incident_id: str, reader: Reader, worker: Worker) -> Response:
    """One incident."""
    found = worker.state.incidents.get(incident_id)
    if found is None:
        raise NotFound(f"run {worker.run_id} has no incident {incident_id!r}", hint="list them with GET .../incidents")
    return answer(shown(found))


@router.post("/{run_id}/incidents/{incident_id}/ack", responses=answers(ShownIncident, 200, 202))
async def acknowledge(incident_id: str, commander: Commander, worker: Worker, record: Recorded) -> Response:
    """Acknowledge an incident; the first person who does so stays.

    202: no worker follows the run now; no further call is made, and the next worker writes it down.
    """
    incident = await worker.acknowledge(incident_id, commander.name)
    await record.did(commander, "incident.acknowledge", incident_id, incident.title)
    return answer(shown(incident), 202 if worker.fence.reads_only else 200)


@router.get("/{run_id}/checkpoints", responses=answers(Checkpoints))
async def checkpoints(reader: Reader, worker: Worker) -> Response:
    """Checkpoints, newest first."""
    return answer({"checkpoints": worker.state.job.checkpoints()})


@router.get("/{run_id}/health", responses=answers(HealthAnswer))
async def health(reader: Reader, worker: Worker) -> Response:
    """The newest report of each agent, and the state of each rank."""
    state = worker.state
    judged = state.statuses()
    ranks = [rank for agent in state.agents.all.values() for rank in agent.ranks]
    state.agents.set_budgets(ranks)
    for rank in ranks:
        rank.status = judged.of.get(rank.source)
    agents = [state.agents.shown(agent) for agent in state.agents.all.values()]
    return answer(HealthAnswer(agents, judged.waits_for))


# ``ledger`` is the route's name of older scripts.
@router.get("/{run_id}/ledger", include_in_schema=False)
@router.get("/{run_id}/rollback_costs", responses=answers(RollbackCosts))
async def rollback_costs(reader: Reader, manager: Manager, worker: Worker) -> Response:
    """Costs of each rollback and checkpoint, and the effective share of the run's time."""
    stops = manager.fleet.stops(worker.run_id), manager.fleet.stops(project=reader.project)
    untimed = bool(worker.listing.run.config.get(UNTIMED_KEY))
    found = await asyncio.to_thread(rollback_costs_of(worker.state, time.time(), stops, untimed=untimed))
    return answer(found)


@router.get("/{run_id}/spike_score", responses=answers(SpikeScores))
async def spike_score(reader: Reader, worker: Worker, threads: Threads) -> Response:
    """OLMo-core's SpikeScore of the loss and the gradient norm, of the effective timeline."""
    return answer(await threads.run(scores_of(worker)))


@router.get("/{run_id}/resumes", responses=answers(Resumes))
async def resumes(reader: Reader, worker: Worker) -> Response:
    """Comparison of both branches of each resume's fork."""
    found = worker.state.resumes.view()
    if worker.listing.run.config.get(UNTIMED_KEY):  # a moment that was made up is none
        found = structs.replace(found, resumes=[structs.replace(one, created=0.0) for one in found.resumes])
    return answer(found)


@router.get("/{run_id}/stacks", responses=answers(StackDumps))
async def stacks(reader: Reader, worker: Worker) -> Response:
    """The newest dumps of the run, newest first."""
    state = await worker.ready()
    return await asyncio.to_thread(answer, StackDumps([dump.shown() for dump in state.liveness.dumps.held()]))


@router.get("/{run_id}/stacks/{request}", responses=answers(RankStacks))
async def dump(request: str, reader: Reader, worker: Worker) -> Response:
    """One dump: the ranks' stacks in groups, and the collectives that are stuck."""
    state = await worker.ready()
    found = state.liveness.dumps.get(request)
    if found is None:
        raise NotFound(
            f"run {worker.run_id} has no dump {request!r}", hint="list them with GET .../stacks; the newest 8 are kept"
        )
    return await asyncio.to_thread(answer, found)
