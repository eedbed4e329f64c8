"""When a run is judged by time, read and shown: as often as something may happen or somebody looks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilitybackend.base.keys import RunKeys
from stabilitybackend.runs.feed.pubsub import Subscriber
from stabilitybackend.runs.run_listing import SAVE_EVERY_S
from stabilitybackend.runs.wakeups import (
    ACTIVE_S,
    IDLE_TICK_S,
    QUIET_AFTER_S,
    QUIET_TICK_S,
    READ_AGAIN_S,
    TICK_S,
    Wakeups,
)
from stabilitybackend.runs.worker import RunWorker
from support.job_frames import Job
from support.manager_stack import Stage


class Watch:
    """A run's wake-ups on a clock that a test sets."""

    def __init__(self) -> None:
        self.now, self.busy, self.expects = 1_000.0, False, False
        self.rest = Wakeups(lambda: self.now, lambda: self.busy, lambda: self.expects)
        self.rest.silent_s = 30.0
        self.rest.begin()

    def ticks(self, seconds: float) -> list[float]:
        """Return after how many seconds it ticks, looked at each half second."""
        begun, found = self.now, []
        while self.now < begun + seconds:
            self.now += 0.5
            if self.rest.tick_due():
                found.append(self.now - begun)
        return found


def _apart(times: list[float]) -> set[float]:
    return {later - earlier for earlier, later in pairwise(times)}


def test_a_run_is_judged_each_second_while_somebody_is_there_and_ever_more_rarely_when_nothing_is_left_to_happen() -> (
    None
):
    run = Watch()
    assert run.ticks(TICK_S + 2 * IDLE_TICK_S) == [TICK_S, TICK_S + IDLE_TICK_S, TICK_S + 2 * IDLE_TICK_S]
    run.busy = True
    run.rest.tick_due()
    assert run.ticks(3.0) == [1.0, 2.0, 3.0]
    run.busy = False
    run.rest.active()
    assert len(run.ticks(ACTIVE_S)) >= ACTIVE_S - 1
    run.ticks(QUIET_AFTER_S + run.rest.silent_s)
    assert _apart(run.ticks(4 * QUIET_TICK_S)) == {QUIET_TICK_S}
    run.expects = True
    assert _apart(run.ticks(4 * IDLE_TICK_S)) == {IDLE_TICK_S}
    run.expects = False
    run.ticks(QUIET_TICK_S)
    run.rest.came()
    assert _apart(run.ticks(4.0)) == {TICK_S}
    run.now -= 3_600.0
    assert run.ticks(1.0)[:1] == [0.5]  # the clock was put back: it is due


async def test_what_is_handed_over_wakes_a_run_and_lets_its_stream_be() -> None:
    run = Watch()
    assert run.rest.read_due()
    run.rest.turn()
    run.rest.notify()
    await asyncio.wait_for(run.rest.wait(), 30)
    run.rest.turn()
    assert not run.rest.read_due()
    run.rest.wake()
    run.rest.turn()
    await asyncio.wait_for(run.rest.wait(), 30)  # it is still to be read
    assert run.rest.read_due()
    assert not run.rest.read_due()
    run.now += READ_AGAIN_S
    assert run.rest.read_due()


@pytest.fixture
async def stage(redis: Redis, tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(redis, tmp_path / "archive")
    yield stage
    await stage.manager.stop()


async def _stored_view(redis: Redis) -> Any:
    view: Any = await redis.hget(RunKeys("run-1").meta, "view")
    return None if view is None else view.decode()


async def test_a_summary_that_only_counts_on_is_worked_out_each_second_for_whoever_looks_and_else_when_it_is_stored(
    stage: Stage, redis: Redis
) -> None:
    job, worked_out = Job(), 0
    worker: RunWorker = await stage.send(job.rows([1]))
    view = worker.state.view

    def counted() -> Any:
        nonlocal worked_out
        worked_out += 1
        return view()

    worker.state.view = counted  # type: ignore[method-assign]
    stage.now += SAVE_EVERY_S
    await worker.tick()
    assert (worked_out > 0, worker.listing.run.last_step) == (True, 1)
    await stage.send(job.rows([2]))
    before = worked_out
    stage.now += SAVE_EVERY_S - 1.0
    await worker.tick()
    assert (worked_out, worker.listing.run.last_step) == (before, 1)
    stage.now += 1.0
    await worker.tick()
    assert (worker.listing.run.last_step, '"last_step":2' in await _stored_view(redis)) == (2, True)
    before = worked_out
    await stage.send(job.event("alert", 2, title="look", text="", severity="warning"))
    await worker.tick()
    assert worker.listing.run.open_incidents == 1  # at once: lists show it, a server that starts decides by it
    assert worked_out > before
    stage.manager.overview.join(Subscriber())
    before = worked_out
    for _ in range(3):
        stage.now += 1.0
        await worker.tick()
    assert worked_out >= before + 3


async def test_another_status_is_stored_with_the_next_tick_also_where_somebody_has_asked_for_the_run_since(
    stage: Stage, redis: Redis
) -> None:
    job = Job()
    worker: RunWorker = await stage.send(job.rows([1]))
    stage.now += SAVE_EVERY_S
    await worker.tick()
    assert '"status":"running"' in await _stored_view(redis)
    await stage.send(job.event("finish", 1))
    assert worker.run().status == "finished"
    await worker.tick()
    assert '"status":"finished"' in await _stored_view(redis)
