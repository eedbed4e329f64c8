"""Frames into Redis exactly once, whoever sends what how often. Run on every kind of server."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis

from stabilitybackend.base.errors import Unavailable
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.ingest.ingest import QUEUE_BYTES, Duplicate, Gap, Ingest, StoredFrames
from stabilitybackend.storage.redis_link import make_redis
from stabilitybackend.storage.redis_server.binary import bundled_binary
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from stabilityclient.wire import FramePart, SourceInfo

pytestmark = pytest.mark.both_redis

KEYS = RunKeys("run-1")
SOURCE = SourceInfo("r0-1", rank=0, world_size=2, node="n0", pid=7, started=1.5)


@pytest.fixture
async def ingest(redis: Redis) -> AsyncIterator[Ingest]:
    async with Ingest(redis) as running:
        yield running


async def stored_ranges(redis: Redis) -> list[tuple[int, int]]:
    return [(int(fields[b"a"]), int(fields[b"z"])) for _, fields in await redis.xrange(KEYS.frames)]


async def test_a_frame_is_stored_at_the_stream_id_that_is_answered(ingest: Ingest, redis: Redis) -> None:
    outcome = await ingest.append("run-1", SOURCE, 1, 3, b"message")
    [(stream_id, fields)] = await redis.xrange(KEYS.frames)
    assert outcome == StoredFrames(stream_id.decode())
    assert fields == {b"s": b"r0-1", b"a": b"1", b"z": b"3", b"b": b"message"}


async def test_a_repeat_is_a_duplicate_and_changes_nothing(ingest: Ingest, redis: Redis) -> None:
    await ingest.append("run-1", SOURCE, 1, 3, b"m")
    assert await ingest.append("run-1", SOURCE, 1, 3, b"m") == Duplicate(3)
    assert await ingest.append("run-1", SOURCE, 2, 3, b"m") == Duplicate(3)
    assert await stored_ranges(redis) == [(1, 3)]


@pytest.mark.parametrize("first", [2, 5, 9])
async def test_what_does_not_follow_is_a_gap_and_changes_nothing(ingest: Ingest, redis: Redis, first: int) -> None:
    await ingest.append("run-1", SOURCE, 1, 3, b"m")
    assert await ingest.append("run-1", SOURCE, first, 9, b"m") == Gap(4)
    assert await stored_ranges(redis) == [(1, 3)]


async def test_sources_and_runs_are_numbered_apart(ingest: Ingest, redis: Redis) -> None:
    other = SourceInfo("r1-1", rank=1)
    await ingest.append("run-1", SOURCE, 1, 3, b"m")
    assert isinstance(await ingest.append("run-1", other, 1, 1, b"m"), StoredFrames)
    assert isinstance(await ingest.append("run-2", SOURCE, 1, 1, b"m"), StoredFrames)
    assert await ingest.last_seq("run-1") == {"r0-1": 3, "r1-1": 1}
    assert await ingest.last_seq("run-2", ["r0-1", "unknown"]) == {"r0-1": 1, "unknown": 0}
    stored = await redis.hgetall(KEYS.sources)
    assert {name: msgspec.json.decode(info, type=SourceInfo) for name, info in stored.items()} == {
        b"r0-1": SOURCE,
        b"r1-1": other,
    }


async def test_a_server_that_lost_its_tail_asks_for_it_again(ingest: Ingest, redis: Redis) -> None:
    for seq in range(1, 11):
        await ingest.append("run-1", SOURCE, seq, seq, b"m")
    await redis.hset(KEYS.last_seq, "r0-1", 6)  # what a restart from an older file looks like
    assert await ingest.append("run-1", SOURCE, 11, 11, b"m") == Gap(7)


async def test_large_numbers_stay_exact(ingest: Ingest, redis: Redis) -> None:
    await redis.hset(KEYS.last_seq, "r0-1", 2**53 - 3)
    assert await ingest.append("run-1", SOURCE, 2**53 - 1, 2**53 - 1, b"m") == Gap(2**53 - 2)
    assert isinstance(await ingest.append("run-1", SOURCE, 2**53 - 2, 2**53 - 1, b"m"), StoredFrames)
    assert await ingest.last_seq("run-1") == {"r0-1": 2**53 - 1}


async def test_two_gateways_that_race_store_each_frame_once_and_in_order(ingest: Ingest, redis: Redis) -> None:
    frames = list(range(1, 201))
    async with Ingest(redis) as other:
        for gateway in (ingest, other):
            for seq in frames:
                await gateway.enqueue("run-1", [FramePart(SOURCE, seq, seq, [])], b"m")
        while (await ingest.last_seq("run-1")).get("r0-1") != 200:
            await asyncio.gather(*(gateway.append("run-1", SOURCE, 200, 200, b"m") for gateway in (ingest, other)))
    assert await stored_ranges(redis) == [(seq, seq) for seq in frames]


async def test_frames_sent_in_any_order_any_number_of_times_end_up_once_in_order(ingest: Ingest, redis: Redis) -> None:
    chance = random.Random(7)
    cuts = sorted(chance.sample(range(1, 500), 60))
    ranges = list(zip([1, *(cut + 1 for cut in cuts)], [*cuts, 500], strict=True))
    for _ in range(200):  # every pass stores at least the next frame
        chance.shuffle(ranges)
        await asyncio.gather(*(ingest.append("run-1", SOURCE, a, z, b"m") for a, z in ranges))
        if await ingest.last_seq("run-1") == {"r0-1": 500}:
            break
    assert await stored_ranges(redis) == sorted(ranges)


async def test_what_waits_for_redis_is_bounded_and_fails_at_the_stop() -> None:
    ingest = Ingest(make_redis("redis://127.0.0.1:1"))
    ingest.start()
    message = bytes(4 * 1024 * 1024)
    frames = [
        asyncio.create_task(ingest.append("run-1", SOURCE, seq, seq, message), name=f"frame {seq}")
        for seq in range(1, 101)
    ]
    await asyncio.sleep(0)
    assert ingest.waiting_bytes <= QUEUE_BYTES + len(message)
    await ingest.stop()
    failures = await asyncio.gather(*frames, return_exceptions=True)
    assert {type(failure) for failure in failures} == {Unavailable}
    assert ingest.waiting_bytes == 0


async def test_after_a_stop_nothing_is_taken(redis: Redis) -> None:
    ingest = Ingest(redis)
    ingest.start()
    await ingest.stop()
    with pytest.raises(Unavailable, match="the server stops"):
        await ingest.append("run-1", SOURCE, 1, 1, b"m")


async def test_the_script_text_is_read_from_the_package() -> None:
    from importlib import resources

    assert "XADD" in resources.files("stabilitybackend.ingest").joinpath("ingest.lua").read_text()


async def test_every_key_of_a_run_lives_in_one_cluster_slot() -> None:
    from redis.crc import key_slot

    keys = [getattr(KEYS, name) for name in dir(RunKeys) if isinstance(getattr(RunKeys, name), property)]
    assert len(keys) >= 8
    assert {key_slot(key.encode()) for key in keys} == {key_slot(b"run-1")}


async def test_what_is_answered_as_stored_survives_a_killed_server(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path, server=bundled_binary()) as server:
        redis = make_redis(server.url)
        async with Ingest(redis) as ingest:
            stored, reached = 0, {200: asyncio.Event(), 600: asyncio.Event()}

            async def store_more() -> None:
                nonlocal stored
                while stored < 2000:
                    try:
                        await ingest.append("run-1", SOURCE, stored + 1, stored + 1, b"m" * 100)
                        stored += 1
                        if stored in reached:
                            reached[stored].set()
                    except Unavailable:
                        await asyncio.sleep(0.01)

            storing = asyncio.create_task(store_more())
            for frames in reached.values():  # the next frame is on its way when we hear of it
                await asyncio.wait_for(frames.wait(), 30)
                assert server.pid is not None
                os.kill(server.pid, signal.SIGKILL)
            await asyncio.wait_for(storing, 60)
        assert server.restarts == 2
        assert ingest.failed >= 1
        assert await stored_ranges(redis) == [(seq, seq) for seq in range(1, 2001)]
        await redis.aclose()
