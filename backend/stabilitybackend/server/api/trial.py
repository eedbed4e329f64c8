"""Settings tried on a run that is stored, before they are saved: ``POST .../backtest``. Shapes: docs/api.md."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable

from fastapi import APIRouter, Request, Response
from pydantic import Field

from stabilitybackend.base.errors import ArchiveError, Conflict, Unavailable
from stabilitybackend.judging.detectors.registry import DETECTORS
from stabilitybackend.runs.archiving.replay import Stopped, replay
from stabilitybackend.runs.backtest import Backtest, backtest
from stabilitybackend.runs.detector_settings import checked
from stabilitybackend.schema.detectors import SeverityCounts, Trial
from stabilitybackend.schema.incidents import Incident, shown
from stabilitybackend.server.api.access import Reader, RedisClients, Worker
from stabilitybackend.server.api.answers import answer, answers
from stabilitybackend.server.api.detectors import SettingsBody
from stabilitybackend.server.api.reading import ReadingPart

__all__ = ["TrialBody", "router"]

#: Values that one try may judge: half a million steps of twelve metrics, some 15 s of one core and 80 MB for that time.
#: Live requests share the interpreter with it and wait some ten ms longer meanwhile.
MAX_VALUES = 6_000_000
#: Part of ``last_steps`` that is judged before them, so that the detectors have baselines at the begin.
WARM_UP_SHARE = 0.25
#: Incidents in an answer, newest ones; the counts are of all.
MAX_SHOWN = 500
#: Interval between checks of the caller's connection, seconds.
POLL_S = 0.2

router = APIRouter(prefix="/api/v1/runs/{run_id}", tags=["detectors"])


class TrialBody(SettingsBody):
    """Settings to try."""

    last_steps: int | None = Field(None, ge=1, description="judge the newest steps only; all when left out")


@router.post("/backtest", responses=answers(Trial))
async def try_settings(
    body: TrialBody, request: Request, reader: Reader, worker: Worker, reading: ReadingPart, clients: RedisClients
) -> Response:
    """Incidents of this run under other settings; nothing is changed.

    It takes some seconds for a long run; it stops when the connection is closed.
    """
    settings = checked(body.settings)
    trials = reading.trials
    if worker.run_id in trials.running:
        raise Conflict(
            f"settings are being tried on run {worker.run_id} already",
            hint="one at a time: wait for the other answer, or close its connection",
            code="busy",
        )
    trials.running.add(worker.run_id)
    try:
        past = await replay(clients.redis, worker.run_id, lambda: (worker.state, worker.cursor))
        first = _first(worker.state.view().last_step, body.last_steps)
        stopped = threading.Event()

        def judge() -> Backtest:
            start = None if first is None or body.last_steps is None else first - int(WARM_UP_SHARE * body.last_steps)
            frames = past.read(start, MAX_VALUES, stopped.is_set)
            return backtest(frames, settings=settings, run_id=worker.run_id, undone=past.undone)

        async with trials.turn:
            found = await _while_there(request, judge, stopped)
        if found is None:
            return Response(status_code=499)
        now = _judged(worker.state.incidents.all(), first)
    finally:
        trials.running.discard(worker.run_id)
    then = _judged(reversed(found.incidents), first)
    return answer(
        Trial(
            settings=settings,
            first_step=first,
            now=_counts(now),
            then=_counts(then),
            incidents=[shown(one) for one in then[:MAX_SHOWN]],
            rows=found.rows,
            points=found.points,
            seconds=found.seconds,
            failures=found.failures,
            unreadable=found.unreadable,
        )
    )


async def _while_there(request: Request, judge: Callable[[], Backtest], stopped: threading.Event) -> Backtest | None:
    """Return the result of ``judge``, called in a thread, None when the caller has gone."""
    work = asyncio.create_task(asyncio.to_thread(judge))
    try:
        while not (await asyncio.wait({work}, timeout=POLL_S))[0]:
            if await request.is_disconnected():
                stopped.set()
        return work.result()
    except Stopped:
        return None
    except ArchiveError as error:
        raise Unavailable(
            f"not all of the run could be read: {error.message}",
            hint="its files may have been merged meanwhile; try again",
        ) from error
    finally:
        stopped.set()


def _first(last_step: int | None, last_steps: int | None) -> int | None:
    return None if last_steps is None or last_step is None else max(0, last_step - last_steps + 1)


def _judged(incidents: Iterable[Incident], first: int | None) -> list[Incident]:
    """Return the detectors' incidents from a step on, without hangs and alerts of the job."""
    return [
        incident
        for incident in incidents
        if incident.detector in DETECTORS and (first is None or incident.onset_step >= first)
    ]


def _counts(incidents: Iterable[Incident]) -> dict[str, SeverityCounts]:
    """Return how many each detector found."""
    counts = {name: SeverityCounts() for name in DETECTORS}
    for incident in incidents:
        of = counts[incident.detector]
        setattr(of, incident.severity, getattr(of, incident.severity) + 1)
    return counts
