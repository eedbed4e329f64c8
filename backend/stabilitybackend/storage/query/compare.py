"""Lays the curves of several runs over each other: by step, by the step they rolled back to, or by time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.judging.detectors.engine.long_past import LongPast
from stabilitybackend.judging.detectors.stats.same_order import same_order
from stabilitybackend.storage.query.downsampling import StoreReader
from stabilitybackend.storage.query.lineage_view import LineageView
from stabilitybackend.storage.query.query import Series, select
from stabilitybackend.storage.query.request import SeriesRequest

__all__ = ["MAX_RUNS", "Align", "ComparedRun", "compare", "parse_forks", "parse_shifts"]

#: Runs in one comparison: more lines can't be distinguished.
MAX_RUNS = 20
#: The meaning of x = 0: step 0, the step that a run rolled back to, or the time of its first point.
Align = Literal["step", "fork", "time"]
#: Values of the parameter ``fork`` other than a segment's id.
_NEWEST = "newest"
#: Steps that a curve may be moved by: browsers have no larger whole numbers.
MAX_SHIFT = 2**53


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRun:
    """One run as it was at one moment.

    Attributes:
        store: must hold the compared metrics, and ``origin``.
        origin: a metric that the run logged from the start on, None for a run without points; its first point gives
            when the run began.
        fork: the segment whose fork step is x = 0; None for the newest of the effective timeline.
        past: its new rows of each of its losses.
        shift: steps that its curve is moved by; for align=step.
    """

    run_id: str
    name: str
    store: StoreReader
    lineage: LineageView
    origin: str | None
    fork: int | None = None
    past: LongPast = field(default_factory=LongPast)
    shift: int = 0


def parse_forks(forks: Sequence[str], runs: Sequence[str], align: Align) -> list[int | None]:
    """Return the segment to align each run by, None for the newest, from the repeated parameter ``fork``.

    Raises:
        BadRequest: there are not as many as runs, or one is neither a segment's id nor ``newest``.
    """
    if not forks:
        return [None] * len(runs)
    if align != "fork":
        raise BadRequest(f"fork is given and align is {align}, expected align=fork", hint="leave fork out")
    if len(forks) != len(runs):
        raise BadRequest(
            f"fork is given {len(forks)} times for {len(runs)} runs, expected once a run, in the same order",
            hint="say fork=newest for those whose newest rollback counts",
        )
    for run_id, fork in zip(runs, forks, strict=True):
        if fork != _NEWEST and not (fork.isascii() and fork.isdigit()):
            raise BadRequest(
                f"fork of run {run_id} is {fork!r}, expected the id of a segment or {_NEWEST}",
                hint="GET .../segments lists them",
            )
    return [None if fork == _NEWEST else int(fork) for fork in forks]


def parse_shifts(shifts: Sequence[int], runs: Sequence[str], align: Align) -> list[int]:
    """Return the steps to move the curve of each run by, from the repeated parameter ``shift``.

    Raises:
        BadRequest: there are not as many as runs, one is too large, or the curves are aligned by something else.
    """
    if not shifts:
        return [0] * len(runs)
    if align != "step":
        raise BadRequest(f"shift is given and align is {align}, expected align=step", hint="leave shift out")
    if len(shifts) != len(runs):
        raise BadRequest(
            f"shift is given {len(shifts)} times for {len(runs)} runs, expected once a run, in the same order",
            hint="say shift=0 for those that stay where they are",
        )
    if large := next((shift for shift in shifts if abs(shift) > MAX_SHIFT), None):
        raise BadRequest(f"shift is {large}, expected -2**53 to 2**53")
    return list(shifts)


def compare(run: ComparedRun, first: ComparedRun, request: SeriesRequest, align: Align) -> dict[str, Any]:
    """Return a compared run of docs/api.md, for ``orjson`` with OPT_SERIALIZE_NUMPY. Call it in any thread.

    Args:
        first: the first of the compared runs; where ``run`` saw its data, the answer has a note.
        request: the request of every run; its x is for ``align``.

    Raises:
        BadRequest: the run has no rollback to align by, or no such segment.
    """
    fork_step = _fork_step(run) if align == "fork" else None
    own = _moved_window(request, run.shift)
    answer = select(run.store, run.lineage, replace(own, x="time" if align == "time" else "step"))
    offset = _began(run) if align == "time" else (fork_step or 0) - run.shift
    moved = [replace(each, xs=_moved(each, offset)).as_dict() for each in answer.series]
    return {
        "run_id": run.run_id,
        "name": run.name,
        "offset": offset,
        "fork_step": fork_step,
        "level": answer.level,
        "problems": answer.problems,
        "series": moved,
        "same_data": [] if run.run_id == first.run_id else _same_data(run, first),
    }


def _same_data(run: ComparedRun, first: ComparedRun) -> list[dict[str, Any]]:
    return [
        {
            "first_step": each.first,
            "last_step": each.last,
            "other_run": first.run_id,
            "other_step": each.other,
            "r": each.r,
        }
        for each in same_order(run.past, first.past)
    ]


def _moved_window(request: SeriesRequest, shift: int) -> SeriesRequest:
    """Return the request with the run's own steps: the requested window is one of the moved steps."""
    start, stop = (None if at is None else at - shift for at in (request.start, request.stop))
    return replace(request, start=start, stop=stop)


def _moved(series: Series, offset: float) -> NDArray[np.float64] | NDArray[np.int64]:
    moved: NDArray[np.float64] | NDArray[np.int64]
    moved = series.steps - int(offset) if series.xs is None else np.subtract(series.xs, offset, dtype=np.float64)
    return moved


def _fork_step(run: ComparedRun) -> int:
    segment = run.lineage.head if run.fork is None else run.fork
    if segment >= len(run.lineage):
        raise BadRequest(
            f"fork of run {run.run_id} is {segment}, expected 1 to {len(run.lineage) - 1}",
            hint=f"GET /api/v1/runs/{run.run_id}/segments lists them",
        )
    if run.lineage.parents[segment] is None:
        what = "has no rollback" if run.fork is None else "begins with segment 0, which is no rollback"
        raise BadRequest(
            f"run {run.run_id} {what}: align=fork expects one in every run",
            hint="take this run out of the comparison, or use align=step or align=time",
            code="no_rollback",
        )
    return run.lineage.forks[segment]


def _began(run: ComparedRun) -> float:
    """Return when the run's first point was logged, unix seconds; 0 where it has none."""
    times = []
    for key in run.store.keys(run.origin) if run.origin is not None else ():
        extent = run.store.extent(key)
        if extent is not None and not key.stray:
            first = run.store.rows(key, extent.first_step, extent.first_step)
            times += first.times.tolist()
    return float(np.min(times)) if times else 0.0
