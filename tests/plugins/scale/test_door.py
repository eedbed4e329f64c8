"""A door takes frames while their run's owner does, and again as soon as it does again."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from stabilitybackend.base.errors import Unavailable
from stabilitybackend.base.keys import RunKeys
from stabilityclient.wire import CommandMessage, Health, Hello
from stabilityplugins.scale.members import Member, Members
from stabilityplugins.scale.roles.door import ASK_EVERY_S, UNFOLLOWED_BYTES, Door
from stabilityplugins.scale.roles.inbox import Order, Outbox
from stabilityplugins.scale.roles.reports import Connected, RunReports

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
    return Door(redis, members, Outbox(redis), monotonic=clock)


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


async def test_an_agent_that_redis_lost_is_known_again_with_its_next_health_and_gets_orders(
    redis: Redis, door: Door
) -> None:
    got: list[str] = []

    async def send(message: CommandMessage) -> None:
        got.append(message.command["command_id"])

    owner = RunReports(redis, "run-1")
    await door.agent_connected(Hello("run-1", "a1", "n0", "0.1.0"), send)
    await redis.delete(RunKeys("run-1").agents, RunKeys("run-1").reports)
    for now in (1.0, 2.0):
        await door.health("run-1", Health("a1", "n0", now, []))
    (connected,) = [one for one in await owner.begin() if isinstance(one, Connected)]
    assert connected.at.door == "d1"
    await door.deliver(Order("run-1", "a1", connected.at.number, CommandMessage({"command_id": "c1"})))
    assert got == ["c1"]
