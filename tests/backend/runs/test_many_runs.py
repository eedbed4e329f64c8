"""Many more runs than connections to Redis are followed, and those that are over are let go soon."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilitybackend.ingest.ingest import Ingest, StoredFrames
from stabilitybackend.runs import idle_runs
from stabilitybackend.runs import manager as manager_module
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.server import stages
from stabilitybackend.storage.redis_link import make_redis
from stabilityclient.wire import Frame, Hello, encode_message
from support.job_frames import Job
from support.manager_stack import Stage, points
from support.plain_redis import PlainRedis
from support.server_stack import RunningServer

#: Connections that the manager has in these tests.
FEW = 4


class _Many(Stage):
    """A stage with many runs."""

    async def register(self, run_id: str) -> None:
        await RunIndex(self.redis).register(Hello(run_id, "a1", "n0", "0.1.0"), self.now)

    async def store(self, ingest: Ingest, run_id: str, frame: Frame, *, told: bool) -> str:
        """Store a frame; ``told``: by this process, whose gateway says so. Return its stream id."""
        message = encode_message(frame)
        stored = await ingest.append(run_id, frame.source, frame.first_seq, frame.last_seq, message)
        assert isinstance(stored, StoredFrames)
        if told:
            await self.manager.frame_stored(run_id, stored.stream_id, len(message))
        return stored.stream_id


@pytest.fixture
async def stage(redis_url: str, tmp_path: Path) -> AsyncIterator[_Many]:
    few = make_redis(redis_url, connections=FEW)
    stage = _Many(few, tmp_path / "archive")
    yield stage
    await stage.manager.stop()
    await few.aclose()


async def _connections(redis: Redis) -> int:
    clients: Any = await redis.client_list()
    return len(clients)


@pytest.mark.parametrize("told", [True, False], ids=["stored-here", "stored-by-another-process"])
async def test_many_more_runs_than_connections_are_followed_and_none_is_refused(
    stage: _Many, redis: Redis, told: bool
) -> None:
    names = [f"run-{n}" for n in range(80)]
    for name in names:
        await stage.register(name)
    workers = await asyncio.gather(*(stage.manager.get(name) for name in names))
    async with Ingest(redis) as ingest:
        ids = [await stage.store(ingest, name, Job().rows([1, 2]), told=told) for name in names]
    await stage.until(lambda: [worker._stored_to for worker in workers] == ids, "every run has its rows")
    assert all(points(worker) == {(0, False, s): Job().value(s) for s in (1, 2)} for worker in workers)
    assert await _connections(redis) <= FEW + 2  # one of the test, one of its ingest


async def test_the_number_of_connections_does_not_depend_on_the_number_of_followed_runs(
    stage: _Many, redis: Redis
) -> None:
    found = []
    for count in (2, 20, 60):
        for n in range(count):
            await stage.register(f"run-{n}")
            await stage.manager.get(f"run-{n}")
        found.append(await _connections(redis))
    assert found == [found[0]] * 3


def _followed(stage: Stage) -> set[str]:
    return set(stage.manager._workers)


async def _ended(stage: _Many, redis: Redis, name: str) -> RunWorker:
    """Return the worker of a run whose job said that it is done."""
    await stage.register(name)
    worker = await stage.manager.get(name)
    job = Job()
    async with Ingest(redis) as ingest:
        await stage.store(ingest, name, job.rows([1, 2]), told=True)
        last = await stage.store(ingest, name, job.event("finish", 2), told=True)
    await stage.until(lambda: worker._stored_to == last, "the worker has all")
    await worker.tick()
    assert worker.listing.status == "finished"
    return worker


async def test_a_run_that_is_over_is_let_go_half_a_minute_after_the_last_question_and_comes_back_when_asked(
    stage: _Many, redis: Redis
) -> None:
    worker = await _ended(stage, redis, "run-1")
    before = points(worker)
    await stage.manager.start()
    stage.now += 29.0
    assert stage.manager.idle.idle() == []
    stage.now += 2.0
    await stage.until(lambda: not _followed(stage), "it is let go")
    assert points(await stage.manager.get("run-1")) == before


async def test_a_run_that_is_let_go_is_freed_at_once_and_waits_for_no_collector_of_cycles(
    stage: _Many, redis: Redis
) -> None:
    kept = weakref.ref((await _ended(stage, redis, "run-1")).state)
    await stage.manager.start()
    gc.disable()
    try:
        stage.now += 31.0
        await stage.until(lambda: not _followed(stage), "it is let go")
        await stage.until(lambda: kept() is None, "its state is freed")
    finally:
        gc.enable()


async def test_of_runs_that_are_over_only_those_asked_for_last_are_kept(
    stage: _Many, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_runs, "MAX_IDLE", 3)
    for n in range(6):
        stage.now += 0.1
        await _ended(stage, redis, f"run-{n}")
    stage.now += 0.1
    await stage.manager.get("run-0")
    await stage.manager.start()
    await stage.until(lambda: len(_followed(stage)) == 3, "the others are let go")
    assert _followed(stage) == {"run-0", "run-4", "run-5"}


async def test_a_live_run_is_kept_however_long_nobody_asks_for_it(stage: _Many, redis: Redis) -> None:
    await stage.register("run-1")
    worker = await stage.manager.get("run-1")
    async with Ingest(redis) as ingest:
        last = await stage.store(ingest, "run-1", Job().rows([1, 2]), told=True)
    await stage.until(lambda: worker._stored_to == last, "the worker has all")
    stage.now += 3_600.0
    await worker.tick()
    assert stage.manager.idle.idle() == []


async def test_a_followed_run_that_nothing_happens_to_writes_nothing(stage: _Many, redis: Redis) -> None:
    worker = await _ended(stage, redis, "run-1")
    stage.now += 10.0
    await worker.tick()
    await redis.config_resetstat()
    for _ in range(20):
        stage.now += 5.0
        await worker.tick()
    stats: Any = await redis.info("commandstats")
    assert {"cmdstat_hset", "cmdstat_xadd", "cmdstat_xread"} & set(stats) <= {"cmdstat_xread"}


@pytest.mark.soak
async def test_many_runs_are_asked_for_over_http_with_few_connections_and_no_request_is_refused(
    redis: Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"run-{n}" for n in range(100)]
    for name in names:
        await RunIndex(redis).register(Hello(name, "a1", "n0", "0.1.0"), 1000.0)
    monkeypatch.setattr(stages, "make_redis", lambda url, connections=FEW: make_redis(url, connections=connections))

    def ask() -> list[int]:
        with RunningServer(redis_url, tmp_path / "server") as server, ThreadPoolExecutor(16) as readers:
            return list(readers.map(lambda name: server.client.get(f"/api/v1/runs/{name}").status_code, names))

    assert await asyncio.to_thread(ask) == [200] * len(names)


async def test_however_many_runs_are_followed_their_ticks_together_are_bounded(
    stage: _Many, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "MAX_TICKS_A_SECOND", 5.0)
    for n in range(20):
        await stage.register(f"run-{n}")
        await stage.manager.get(f"run-{n}")
    ticks = 0
    for _ in range(40):
        stage.now += 0.25
        for worker in stage.manager._workers.values():
            worker.rest.active()
            ticks += worker.rest.tick_due()
    assert 40 <= ticks <= 60  # ten seconds of them, and one that was due at the start


async def test_a_redis_that_was_killed_and_is_back_at_once_is_noticed_by_every_run_that_rests(tmp_path: Path) -> None:
    with PlainRedis(tmp_path) as server:
        stage = _Many(make_redis(server.url, connections=FEW), tmp_path / "archive")
        try:
            for n in range(12):
                await stage.register(f"run-{n}")
            workers = [await stage.manager.get(f"run-{n}") for n in range(12)]
            async with Ingest(stage.redis) as ingest:
                ids = [await stage.store(ingest, f"run-{n}", Job().rows([1]), told=True) for n in range(12)]
            await stage.until(lambda: [worker._stored_to for worker in workers] == ids, "every run has its row")
            await stage.until(lambda: all(worker.rest.rests for worker in workers), "all rest")
            await asyncio.to_thread(server.come_back_empty)
            await stage.until(lambda: all(worker.is_over for worker in workers), "nobody follows what is gone")
        finally:
            await stage.manager.stop()
            await stage.redis.aclose()
