"""The agents' door while Redis is away: busy, and every frame once when it is back."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from stabilitybackend.base.errors import Unavailable
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.storage.redis_link import away, clients, make_redis, redis_errors
from stabilitybackend.storage.redis_server.binary import bundled_binary
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from stabilitybackend.storage.storing import problem_of
from stabilityclient.wire import Ack, Error
from support.gateway_stack import SOURCE, RawAgent, RunningGateway, frame
from support.waiting import until

pytestmark = pytest.mark.both_redis

KEYS = RunKeys("run-1")


async def test_frames_are_busy_while_redis_is_away_and_stored_once_when_it_is_back(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path, server=bundled_binary()) as server, RunningGateway(server.url) as gateway:
        async with RawAgent(gateway.url) as agent:
            await agent.hello()
            assert await agent.ask(frame(1, [1.0])) == Ack(SOURCE.source, 1)
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            answers = [await agent.ask(frame(2, [2.0]))]

            async def stored() -> bool:
                if answers[-1] == Ack(SOURCE.source, 2):
                    return True
                answers.append(await agent.ask(frame(2, [2.0])))
                return False

            await until(stored, 10, "the frame is stored")
            assert {answer.code for answer in answers[:-1] if isinstance(answer, Error)} <= {"busy"}
        redis = make_redis(server.url)
        assert [fields[b"a"] for _, fields in await redis.xrange(KEYS.frames)] == [b"1", b"2"]
        await redis.aclose()


async def test_a_redis_that_is_down_for_good_costs_busy_answers_and_not_the_connection(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path, server=bundled_binary())
    server.start()
    with RunningGateway(server.url) as gateway:
        async with RawAgent(gateway.url) as agent:
            await agent.hello()
            server.stop()
            for seq in range(1, 21):
                await agent.send(frame(seq, [1.0]))
            errors = [await asyncio.wait_for(agent.receive(), 60) for _ in range(20)]
            assert {error.code for error in errors if isinstance(error, Error)} == {"busy"}
            assert not any(isinstance(error, Ack) for error in errors)
            server.start()

            async def first_is_stored() -> bool:
                return await agent.ask(frame(1, [1.0])) == Ack(SOURCE.source, 1)

            await until(first_is_stored, 10, "the first frame is stored after Redis is back")
    server.stop()


async def test_a_redis_that_keeps_every_connection_busy_is_called_slow_and_not_away(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (away, clients):
        monkeypatch.setattr(module, "POOL_WAIT_S", 0.05)
    redis = make_redis(redis_url, connections=1)
    held = await redis.connection_pool.get_connection()
    with pytest.raises(Unavailable) as caught, redis_errors():
        await redis.ping()
    assert caught.value.message == "Redis is slow: no connection to it became free within 0.05 s"
    await redis.connection_pool.release(held)
    with redis_errors():
        assert await redis.ping()
    await redis.aclose()


async def test_a_full_redis_that_refuses_a_command_of_a_pipeline_is_away_and_no_defect_of_ours(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path, server=bundled_binary()) as server:
        redis = make_redis(server.url)
        await redis.config_set("min-replicas-to-write", 1)
        with pytest.raises(Unavailable, match=r"^Redis refuses it: NOREPLICAS [^()]*$") as refused, redis_errors():
            await redis.pipeline(transaction=True).hset("key", "MISCONF of nothing", "1").execute()
        await redis.aclose()
    assert problem_of(refused.value.__cause__ or refused.value, 0.0).code == "redis_no_replicas"
