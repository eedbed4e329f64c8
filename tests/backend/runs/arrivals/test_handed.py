"""What a process stores itself reaches its worker without a read of the stream, and is what the stream holds."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilitybackend.ingest.ingest import Ingest
from stabilitybackend.runs import follower as follower_module
from stabilitybackend.runs.arrivals import handed as handed_module
from stabilitybackend.runs.arrivals.handed import MAX_MESSAGE_BYTES, Handed, HandedBytes
from stabilitybackend.runs.pending_frames import PendingFrames
from stabilitybackend.runs.worker import RunWorker
from stabilityclient.wire import Frame, encode_message
from support.job_frames import Job
from support.manager_stack import HELLO, KEYS, Stage


@pytest.fixture
async def stage(redis: Redis, tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(redis, tmp_path / "archive")
    stage.window_bytes = 1 << 20
    stage.manager = stage._manager()
    yield stage
    await stage.manager.stop()


@pytest.fixture
async def ours(stage: Stage) -> AsyncIterator[Ingest]:
    """The ingest of the process that follows the run."""
    ingest = Ingest(stage.redis, beside=stage.manager.arrivals.handed)
    async with ingest:
        yield ingest


@pytest.fixture
async def another(stage: Stage) -> AsyncIterator[Ingest]:
    """The ingest of a process that follows nothing."""
    async with Ingest(stage.redis) as ingest:
        yield ingest


@pytest.fixture
def folded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bytes]]:
    """What workers fold, as (stream id, message)."""
    seen: list[tuple[str, bytes]] = []

    class Noted(PendingFrames):
        def __init__(self, entries: list[tuple[str, bytes]], read: Callable[[str, bytes], bytes | Frame]) -> None:
            said = {stream_id: read(stream_id, message) for stream_id, message in entries}
            seen.extend((at, one if isinstance(one, bytes) else encode_message(one)) for at, one in said.items())
            super().__init__(entries, lambda stream_id, message: said[stream_id])

    monkeypatch.setattr(follower_module, "PendingFrames", Noted)
    return seen


async def worker_of(stage: Stage) -> RunWorker:
    await stage.manager._index.register(HELLO, stage.now)
    return await stage.manager.get("run-1")


async def store(ingest: Ingest, frame: Frame) -> None:
    await (await ingest.enqueue("run-1", [frame], encode_message(frame), frame))


async def held(redis: Redis) -> list[tuple[str, bytes]]:
    return [(entry_id.decode(), fields[b"b"]) for entry_id, fields in await redis.xrange(KEYS.frames)]


async def reads(redis: Redis) -> int:
    stats: Any = await redis.info("commandstats")
    return int(stats.get("cmdstat_xread", {}).get("calls", 0))


async def test_what_the_process_stored_is_folded_as_the_stream_holds_it_and_is_not_read_from_it(
    stage: Stage, ours: Ingest, redis: Redis, folded: list[tuple[str, bytes]]
) -> None:
    worker, job = await worker_of(stage), Job()
    worker._senders["a1"] = None  # type: ignore[assignment]  # its agent is here: nobody watches the stream for it
    await store(ours, job.rows([1]))
    await stage.manager.frame_stored("run-1", (await held(redis))[-1][0], 100)
    await stage.until(lambda: worker.rest.rests and worker.state.judge.newest_step == 1, "the first row is read")
    stage.manager._watcher.cancel()  # type: ignore[union-attr]  # it reads, too
    before = await reads(redis)
    for step in range(2, 40):
        await store(ours, job.rows([step]))
    await stage.until(lambda: worker.state.judge.newest_step == 39, "all is folded")
    assert await reads(redis) == before
    assert folded == await held(redis)
    assert stage.manager.arrivals.handed.share.waiting == 0


@pytest.mark.parametrize("seed", range(3))
async def test_whoever_else_writes_and_whatever_is_lost_on_the_way_what_is_folded_is_what_the_stream_holds(
    stage: Stage, ours: Ingest, another: Ingest, redis: Redis, folded: list[tuple[str, bytes]], seed: int
) -> None:
    worker, here, there, chance = await worker_of(stage), Job(0), Job(1), random.Random(seed)
    for step in range(1, 60):
        if chance.random() < 0.3:
            await store(another, there.rows([step]))
        await store(ours, here.rows([step]))
        if chance.random() < 0.2:
            worker.handed.clear()
            worker.rest.wake()
    last = (await held(redis))[-1][0]
    worker.rest.wake()
    await stage.until(lambda: worker._stored_to == last, "all is folded")
    assert folded == await held(redis)


async def test_what_does_not_follow_the_newest_entry_that_the_worker_has_is_not_handed_over(
    stage: Stage, ours: Ingest, another: Ingest, redis: Redis
) -> None:
    worker, here, there = await worker_of(stage), Job(0), Job(1)
    await store(ours, here.rows([1]))
    worker.rest.wake()
    await stage.until(lambda: worker.followed_to != "", "the first row is read")
    taken: list[str] = []
    worker.handed.put = lambda after, entries: taken.append(after)  # type: ignore[method-assign]

    newest = worker.followed_to
    await store(ours, here.rows([2]))
    assert taken == [newest]
    await store(another, there.rows([1]))
    worker.handed._newest = newest  # as long as it has not read
    await store(ours, here.rows([3]))
    assert taken == [newest]
    *_, last = await held(redis)
    await redis.xdel(KEYS.frames, last[0])  # Redis came back without it
    worker.handed._newest = last[0]
    await store(ours, here.rows([4]))
    assert taken == [newest]


def test_frames_that_are_handed_over_are_bounded_and_a_worker_that_has_read_on_leaves_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handed_module, "MAX_BYTES", 100)
    share, calls = HandedBytes(), list[str]()
    one, two = (Handed(share, lambda: calls.append("look"), lambda: calls.append("read")) for _ in range(2))
    for each in (one, two):
        each.folded("1-0", b"x")
        each.put("1-0", [("2-0", b"y" * 60, None)])
    assert (share.waiting, two.take("1-0")) == (60, [])
    one.put("2-0", [("3-0", b"z" * 40, None)])
    one.put("3-0", [("4-0", b"z", None)])
    assert (share.waiting, one.newest, calls) == (100, "3-0", ["look", "look"])
    assert one.take("2-0") == [("3-0", b"z" * 40)]
    assert (share.waiting, one.covers("3-0"), one.covers("4-0")) == (0, True, False)
    one.put("3-0", [("4-0", b"a", None)])
    assert (one.take("5-0"), share.waiting) == ([], 0)
    one.folded("5-0", b"x" * (MAX_MESSAGE_BYTES + 1))
    assert one.newest == ""
