"""Runs whose workers want to read in one moment are read in one call, each as if it had been alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from stabilitybackend.runs.arrivals.shared_reads import SHARED_COUNT, SharedReads

pytestmark = pytest.mark.both_redis


async def test_runs_that_are_read_in_one_moment_take_one_call_and_each_gets_what_follows_its_place(
    redis: Redis,
) -> None:
    reads, keys = SharedReads(redis), [f"sb:{{run-{n}}}:frames" for n in range(20)]
    ids = [[await redis.xadd(key, {"b": f"{n} {at}"}) for at in range(n)] for n, key in enumerate(keys)]
    places = [entries[n // 2].decode() if n else "0-0" for n, entries in enumerate(ids)]

    found = await asyncio.gather(*map(reads.read, keys, places), reads.read(keys[3], "0-0"))

    alone: list[Any] = []
    for key, place in [*zip(keys, places, strict=True), (keys[3], "0-0")]:
        answer: Any = await redis.xread({key: place}, count=SHARED_COUNT)
        alone.append(answer[0][1] if answer else [])
    assert found == alone
    assert (reads.calls, reads.reads) == (2, 21)  # one stream can't be in a call twice
    await reads.stop()


async def test_a_stream_that_cannot_be_read_is_the_trouble_of_its_own_run_alone(redis: Redis) -> None:
    await redis.set("sb:{run-1}:frames", "no stream")
    entry = await redis.xadd("sb:{run-2}:frames", {"b": "x"})
    reads = SharedReads(redis)

    broken, well = await asyncio.gather(
        reads.read("sb:{run-1}:frames", "0-0"), reads.read("sb:{run-2}:frames", "0-0"), return_exceptions=True
    )

    assert isinstance(broken, ResponseError)
    assert well == [(entry, {b"b": b"x"})]
