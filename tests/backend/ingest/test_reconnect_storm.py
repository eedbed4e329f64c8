"""Many agents that come back at once: what is the same for all is read once, and Redis's troubles are named as such."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError

from stabilitybackend.access.auth import Authenticator, KeyRing
from stabilitybackend.base.errors import Unavailable
from stabilitybackend.base.tasks import SingleFlight
from stabilitybackend.schema.commands import Command
from stabilitybackend.storage.redis_link import make_redis
from stabilityclient.wire import CommandMessage, Error, Hello
from support.gateway_stack import RawAgent, RecordingServices, RunningGateway
from support.manager_stack import Stage

pytestmark = pytest.mark.both_redis


async def _calls(redis: Redis, command: str) -> int:
    stats: Any = await redis.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


async def test_the_keys_are_read_once_for_all_who_come_at_the_same_time(redis: Redis, redis_url: str) -> None:
    _, text = await KeyRing(redis).create("cluster")
    few = make_redis(redis_url, connections=2)
    authenticator = Authenticator(KeyRing(few), key_needed=True)
    await redis.config_resetstat()
    found = await asyncio.gather(
        *(authenticator.authenticate({"authorization": f"Bearer {text}"}, {}) for _ in range(300))
    )
    assert {identity.name for identity in found} == {"cluster"}
    assert await _calls(redis, "hgetall") == 2  # the keys, and when each was used
    await few.aclose()


async def test_who_is_cancelled_while_all_wait_for_one_answer_takes_it_from_nobody() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def work() -> int:
        begun.set()
        await go.wait()
        return 7

    flight = SingleFlight(work)
    first, second = asyncio.create_task(flight.result()), asyncio.create_task(flight.result())
    await begun.wait()
    first.cancel()
    go.set()
    await asyncio.wait({first, second})
    assert (first.cancelled(), second.result()) == (True, 7)


async def test_an_error_reaches_all_who_wait_and_the_next_one_tries_again() -> None:
    answers: list[int | Exception] = [Unavailable("Redis is away"), 7]

    async def work() -> int:
        await asyncio.sleep(0)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    flight = SingleFlight(work)
    both = await asyncio.gather(flight.result(), flight.result(), return_exceptions=True)
    assert [type(one) for one in both] == [Unavailable, Unavailable]
    assert await flight.result() == 7


async def _no_command(message: CommandMessage) -> None:
    pass


async def test_an_agents_hello_reads_nothing_of_a_run_that_is_followed(stage: Stage) -> None:
    await stage.manager.agent_connected(Hello("run-1", "a0", "n0", "0.1.0", name="n", config={1: "one"}), _no_command)
    await stage.redis.config_resetstat()
    for n in range(1, 21):
        await stage.manager.agent_connected(Hello("run-1", f"a{n}", "n0", "0.1.0", name=f"name-{n}"), _no_command)
    assert await _calls(stage.redis, "hgetall") == 0
    (run,) = (await stage.manager.runs(100)).runs
    assert (run.name, run.config) == ("name-20", {"1": "one"})


class _Away(RecordingServices):
    """A server whose Redis goes away while an agent comes in."""

    async def agent_connected(self, hello: Hello, send: Any) -> Sequence[Command]:
        raise ConnectionError("Connection closed by server.")


async def test_redis_going_away_under_a_hello_is_said_as_that_and_not_as_a_mistake_of_ours(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with RunningGateway(redis_url, _Away()) as gateway, caplog.at_level(logging.ERROR):
        async with RawAgent(gateway.url) as agent:
            answer = await agent.hello()
    assert isinstance(answer, Error)
    assert (answer.code, answer.message) == ("busy", "Redis is away: Connection closed by server.")
    assert caplog.records == []
