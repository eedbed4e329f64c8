"""A message with frames of several sources, over a real WebSocket into a real Redis: whole, or each frame alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from redis.asyncio import Redis

from stabilitybackend.base.keys import RunKeys
from stabilityclient.node_frames import together
from stabilityclient.wire import (
    Ack,
    Acks,
    Error,
    EventBlock,
    Frame,
    Hello,
    Message,
    Nack,
    NodeFrame,
    SourceInfo,
    encode_message,
)
from support.gateway_stack import RawAgent, RunningGateway, points

KEYS = RunKeys("run-1")
RANKS = [SourceInfo(f"r{rank}-1", rank, 3, node="n0", pid=7, started=1.5) for rank in range(3)]
A, B, C = (source.source for source in RANKS)


@pytest.fixture(scope="module")
def shared_gateway(redis_server: str) -> Iterator[RunningGateway]:
    with RunningGateway(redis_server) as running:
        yield running


@pytest.fixture
def gateway(shared_gateway: RunningGateway, redis_url: str) -> RunningGateway:
    shared_gateway.forget()
    return shared_gateway


def node_frame(**first: int) -> NodeFrame:
    """Return a row of each rank; ``r0=3`` is number 3 of rank 0."""
    return together([Frame(RANKS[int(name[1:])], seq, seq, [points(seq, [1.0])]) for name, seq in first.items()])


async def hello(agent: RawAgent) -> Message:
    return await agent.ask(Hello("run-1", "a1", "n0", "0.1.0", "p", "n", sources=RANKS))


async def test_it_is_stored_as_one_entry_with_the_bytes_that_came_and_confirmed_at_once(
    gateway: RunningGateway, redis: Redis
) -> None:
    message = encode_message(node_frame(r0=1, r1=1, r2=1))
    async with RawAgent(gateway.url) as agent:
        await hello(agent)
        assert await agent.ask(message) == Acks({A: 1, B: 1, C: 1})
    [(_, fields)] = await redis.xrange(KEYS.frames)
    assert fields == {b"b": message}
    assert await redis.hgetall(KEYS.last_seq) == {source.source.encode(): b"1" for source in RANKS}
    assert set(await redis.hkeys(KEYS.sources)) == {source.source.encode() for source in RANKS}


async def test_sent_twice_it_is_stored_once(gateway: RunningGateway, redis: Redis) -> None:
    async with RawAgent(gateway.url) as agent:
        await hello(agent)
        for _ in range(2):
            assert await agent.ask(node_frame(r0=1, r1=1)) == Acks({A: 1, B: 1})
    assert await redis.xlen(KEYS.frames) == 1


async def test_where_one_source_does_not_follow_the_others_are_stored_alone(
    gateway: RunningGateway, redis: Redis
) -> None:
    async with RawAgent(gateway.url) as agent:
        await hello(agent)
        await agent.ask(node_frame(r0=1, r1=1))
        assert await agent.ask(node_frame(r0=2, r1=1, r2=1)) == Acks({A: 2, B: 1, C: 1})
        await agent.send(node_frame(r0=3, r1=3))
        assert await agent.receive() == Ack(A, 3)
        gap = await agent.receive()
    assert isinstance(gap, Nack)
    assert (gap.source, gap.expected_seq) == (B, 2)
    assert [int(fields.get(b"a", 0)) for _, fields in await redis.xrange(KEYS.frames)] == [0, 2, 1, 3]


async def test_many_frames_on_their_way_are_confirmed_by_few_answers(gateway: RunningGateway, redis: Redis) -> None:
    async with RawAgent(gateway.url) as agent:
        await hello(agent)
        for seq in range(1, 301):
            await agent.send(Frame(RANKS[0], seq, seq, [points(seq, [1.0])]))
        confirmed = [0]
        while confirmed[-1] < 300:
            confirmed.append((await agent.next(Ack)).last_seq)
    assert confirmed == sorted(set(confirmed))
    assert len(confirmed) < 300
    assert await redis.xlen(KEYS.frames) == 300


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Frame(RANKS[1], 1, 2, [points(1, [1.0])]), r"1\.\.2 stand for 2 records, and it holds 1"),
        (Frame(RANKS[1], 1, 1, [EventBlock("", 1.0)]), "event type has 0 characters"),
        (Frame(RANKS[1], 1, 1, [points(-5, [1.0])]), "step is -5"),
        (Frame(SourceInfo("r1-1", -1), 1, 1, [points(1, [1.0])]), "rank of r1-1 is -1"),
    ],
)
async def test_one_part_that_can_t_be_stored_refuses_the_message(
    gateway: RunningGateway, redis: Redis, wrong: Frame, said: str
) -> None:
    async with RawAgent(gateway.url) as agent:
        await hello(agent)
        error = await agent.ask(together([Frame(RANKS[0], 1, 1, [points(1, [1.0])]), wrong]))
        assert await agent.ask(node_frame(r0=1, r1=1)) == Acks({A: 1, B: 1})
    assert isinstance(error, Error)
    assert error.code == "bad_frame"
    assert re.search(said, error.message)
    assert await redis.xlen(KEYS.frames) == 1


async def test_after_a_reconnection_it_is_told_again_what_is_durable(gateway: RunningGateway, redis: Redis) -> None:
    async with RawAgent(gateway.url) as agent:
        await hello(agent)
        await agent.ask(node_frame(r0=1, r1=1))
    async with RawAgent(gateway.url) as agent:
        await hello(agent)
        [connection] = [each for each in gateway.gateway.connections.values() if each.stored]
        assert connection.stored == {A: 1, B: 1}
