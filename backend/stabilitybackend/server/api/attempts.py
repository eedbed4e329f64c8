"""One run over itself: its attempts, and the two branches of a fork. Shapes: docs/api.md."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Response

from stabilitybackend.judging.detectors.engine.base import SEVERITIES
from stabilitybackend.lineage.returns import left_by
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.kinds import kind_of
from stabilitybackend.schema.series import Attempts, Branches
from stabilitybackend.server.api.access import Reader, Worker
from stabilitybackend.server.api.answers import answer, answers
from stabilitybackend.server.api.reading import Threads
from stabilitybackend.storage.query.attempts import EndedBy, attempts, branches
from stabilitybackend.storage.query.lineage_view import LineageView
from stabilitybackend.storage.query.request import SeriesRequest

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/runs/{run_id}", tags=["runs"])

Metric = Annotated[str, Query(description="name of a metric; its lowest rank is taken")]
Points = Annotated[int, Query(description="at most about this many a line")]


@router.get("/attempts", responses=answers(Attempts))
async def every_attempt(
    reader: Reader, worker: Worker, threads: Threads, metric: Metric, points: Points = 600
) -> Response:
    """The attempts of a run over each other, by the steps since the start of each; where and why each ended."""
    request = SeriesRequest.of([metric], points=points, rank="primary")
    state, heads = await worker.ready(), [head for _, head in worker.state.fold.heads]
    found = partial(
        attempts, state.store.view([metric]), LineageView.of(state.fold), worker.state.fold.tree.view().segments, heads,
        _ended_by(state), worker.run().status, request,
    )  # fmt: skip
    return answer(await threads.run(found))


@router.get("/branches", responses=answers(Branches))
async def both_branches(
    reader: Reader,
    worker: Worker,
    threads: Threads,
    metric: Metric,
    fork: Annotated[int, Query(description="id of the segment that began at the fork")],
    points: Points = 1_000,
) -> Response:
    """The two branches of a fork over each other, by the steps behind it, their difference and a table of values."""
    request = SeriesRequest.of([metric], points=points, rank="primary")
    state = await worker.ready()
    tree = state.fold.tree
    left = left_by(tree, state.fold.heads, fork) if 0 < fork < len(tree) else None
    found = partial(
        branches,
        state.store.view([metric]),
        LineageView.of(state.fold),
        worker.state.fold.tree.view().segments,
        fork,
        left,
        request,
    )
    return answer(await threads.run(found))


def _ended_by(state: RunState) -> dict[int, EndedBy]:
    """Return segment -> the incident that began last in it, the worst of several; ``info`` counts for none."""
    last: dict[int, tuple[int, int, EndedBy]] = {}
    for one in state.incidents.all():
        if one.severity == "info":
            continue
        by = EndedBy(one.incident_id, one.kind, kind_of(one.kind).short, one.title)
        rank = (one.onset_step, SEVERITIES.index(one.severity), by)
        if one.segment not in last or rank[:2] > last[one.segment][:2]:
            last[one.segment] = rank
    return {segment: by for segment, (_, _, by) in last.items()}
