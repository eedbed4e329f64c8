"""Names of runs and commands reach the process that they are for, and no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from stabilitybackend.base.tasks import end
from stabilitybackend.storage.redis_link import make_redis
from stabilityclient.wire import CommandMessage
from stabilityplugins.scale.roles.inbox import Inbox, Order, Outbox
from support.waiting import until


class Member:
    """A process that writes down what its inbox has."""

    def __init__(self) -> None:
        self.runs: list[set[str]] = []
        self.orders: list[Order] = []

    async def order(self, order: Order) -> None:
        self.orders.append(order)


@asynccontextmanager
async def reading(redis_url: str, name: str, member: Member) -> AsyncIterator[None]:
    own = make_redis(redis_url, connections=1)
    task = asyncio.create_task(Inbox(own, name, member.runs.append, member.order).follow())
    try:
        yield
    finally:
        await end(task)
        await own.aclose()


async def test_names_that_come_together_are_one_entry_of_the_inbox_that_they_are_for(
    redis: Redis, redis_url: str
) -> None:
    worker, other, outbox = Member(), Member(), Outbox(redis)
    sending = asyncio.create_task(outbox.follow())
    async with reading(redis_url, "w1", worker), reading(redis_url, "w2", other):
        for name in ("run-1", "run-2", "run-1"):
            outbox.name("w1", name)
        await until(lambda: worker.runs, 20, "the names are there")
    await end(sending)
    assert (worker.runs, other.runs) == ([{"run-1", "run-2"}], [])


async def test_an_order_reaches_its_door_whole(redis: Redis, redis_url: str) -> None:
    door, order = Member(), Order("run-1", "a1", 3, CommandMessage({"command_id": "c1", "to_step": 5}))
    await Outbox(redis).order("d1", order)  # before it reads
    async with reading(redis_url, "d1", door):
        await until(lambda: door.orders, 20, "the order is there")
    assert door.orders == [order]
