"""A door takes frames while their run's owner does, and again as soon as it does again."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from stabilitybackend.errors import Unavailable
from stabilitybackend.ingest.ingest import Ingest
from stabilitybackend.keys import RunKeys
from stabilitybackend.membership.members import Member, Members
from stabilitybackend.roles.door import ASK_EVERY_S, UNFOLLOWED_BYTES, Door
from stabilitybackend.roles.inbox import Outbox

OWNER = RunKeys("run-1").owner


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def worker(redis: Redis) -> Members:
    members = Members(redis, Member("w1", ("worker",), "http://w1"))
    await members.beat()
    return members


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@pytest.fixture
async def door(redis: Redis, worker: Members, clock: Clock) -> Door:
    members = Members(redis, Member("d1", ("door",), "http://d1"))
    await members.beat()
    return Door(redis, Ingest(redis), members, Outbox(redis), monotonic=clock)


async def test_a_run_whose_window_was_full_takes_frames_again_though_none_came_meanwhile(
    redis: Redis, door: Door, clock: Clock
) -> None:
    await redis.hset(OWNER, mapping={"worker": "w1", "full": "the window is full"})  # type: ignore[misc]
    door.owner_seen("run-1", "w1", "the window is full")
    with pytest.raises(Unavailable, match="the window is full"):
        await door.room("run-1")
    await redis.hdel(OWNER, "full")  # type: ignore[misc]
    clock.now += ASK_EVERY_S
    await door.room("run-1")


async def test_a_run_that_nobody_follows_takes_so_much_and_more_when_a_worker_has_it(
    redis: Redis, door: Door, clock: Clock
) -> None:
    await door.room("run-1")
    await door.frame_stored("run-1", "1-0", UNFOLLOWED_BYTES)
    with pytest.raises(Unavailable, match="no worker follows run run-1"):
        await door.room("run-1")
    await redis.hset(OWNER, mapping={"worker": "w1", "token": "t"})  # type: ignore[misc]
    clock.now += ASK_EVERY_S
    await door.room("run-1")
