"""Several runs in one chart: ``GET /api/v1/compare``. Shapes: docs/api.md."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Response

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.schema.json_data import json_with_arrays
from stabilitybackend.schema.metric_roles import GRAD_NORM
from stabilitybackend.schema.series import Comparison, SpikeScores
from stabilitybackend.server.api.access import Manager, Reader, check_project
from stabilitybackend.server.api.answers import JSON, answers
from stabilitybackend.server.api.reading import Threads
from stabilitybackend.storage.query.compare import MAX_RUNS, Align, ComparedRun, compare, parse_forks, parse_shifts
from stabilitybackend.storage.query.lineage_view import LineageView
from stabilitybackend.storage.query.request import SeriesRequest
from stabilitybackend.storage.query.spike_score import spike_scores

__all__ = ["router", "scores_of"]

router = APIRouter(prefix="/api/v1/compare", tags=["runs"])


@router.get("", responses=answers(Comparison))
async def compared(
    manager: Manager,
    reader: Reader,
    threads: Threads,
    run: Annotated[list[str], Query(description="run ids; repeat the parameter")],
    metric: Annotated[list[str], Query(description="metric names; repeat the parameter")],
    align: Annotated[Align, Query(description="what x = 0 means")] = "step",
    fork: Annotated[list[str] | None, Query(description="by run: a segment's id, or newest")] = None,
    shift: Annotated[list[int] | None, Query(description="by run: steps that its curve is moved by")] = None,
    start: Annotated[int | None, Query(description="first step, inclusive")] = None,
    stop: Annotated[int | None, Query(description="last step, inclusive")] = None,
    points: Annotated[int | None, Query(description="at most about this many a run and metric")] = None,
    smooth: Annotated[float | None, Query(description="weight of the past, 0 to 0.9999")] = None,
) -> Response:
    """The effective curves of several runs, of each metric's lowest rank, each run with its own x = 0."""
    names = run if fork or shift else list(dict.fromkeys(run))  # one run may be laid over itself, from two of its forks
    if len(names) > MAX_RUNS:
        raise BadRequest(f"{len(names)} runs asked for, expected at most {MAX_RUNS}", hint="compare fewer at a time")
    request = SeriesRequest.of(metric, start=start, stop=stop, points=points, rank="primary", smooth=smooth)
    forks = parse_forks(fork or [], names, align)
    shifts = parse_shifts(shift or [], names, align)
    for name in names:
        await check_project(reader, manager, name)
    workers = await asyncio.gather(*(manager.read(name) for name in names))
    runs = [_compared(worker, request, at, by) for worker, at, by in zip(workers, forks, shifts, strict=True)]
    found = await asyncio.gather(*(threads.run(partial(compare, one, runs[0], request, align)) for one in runs))
    return Response(json_with_arrays({"align": align, "runs": found}), media_type=JSON)


def _compared(worker: RunWorker, request: SeriesRequest, fork: int | None, shift: int) -> ComparedRun:
    """Return the present state of a run."""
    state = worker.state
    origin = next(
        (name for name in state.store.metrics() if any(key.rank is not None for key in state.store.keys(name))), None
    )
    view = state.store.view([*request.metrics, *([] if origin is None else [origin])])
    name = worker.run().name or worker.run_id
    lineage = LineageView.of(state.fold)
    return ComparedRun(worker.run_id, name, view, lineage, origin, fork, state.judge.past, shift)


def scores_of(worker: RunWorker) -> Callable[[], SpikeScores]:
    """Return a function that reads the SpikeScores of a run, for a thread; call this one on the event loop."""
    state, names = worker.state, worker.state.judge.names
    loss = worker.run().loss_metric
    norm = next((name for name in state.store.metrics() if names.compared_as(name) == GRAD_NORM), None)
    view = state.store.view([name for name in (loss, norm) if name is not None])
    return partial(spike_scores, view, LineageView.of(state.fold), loss, norm)
