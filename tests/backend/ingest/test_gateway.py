"""The agents' door, over a real WebSocket, in front of a real Redis."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis
from websockets.exceptions import ConnectionClosed, InvalidStatus

from stabilitybackend.access.auth import KeyRing
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.schema.commands import CommandFence, StackDump
from stabilityclient.wire import (
    MAX_NAME_CHARS,
    MAX_STEP,
    Ack,
    CommandMessage,
    Error,
    EventBlock,
    Frame,
    Health,
    Hello,
    Nack,
    SourceInfo,
    Welcome,
    encode_message,
)
from support.gateway_stack import SOURCE, RawAgent, RecordingServices, RunningGateway, event_frame, frame, points
from support.waiting import until, wait_until

KEYS = RunKeys("run-1")


@pytest.fixture(scope="module")
def shared_gateway(redis_server: str) -> Iterator[RunningGateway]:
    with RunningGateway(redis_server) as running:
        yield running


@pytest.fixture
def gateway(shared_gateway: RunningGateway, redis_url: str) -> RunningGateway:
    shared_gateway.forget()
    return shared_gateway


async def test_hello_is_answered_with_what_is_stored_and_what_waits(redis_url: str, redis: Redis) -> None:
    await redis.hset(KEYS.last_seq, SOURCE.source, 41)
    command = StackDump(
        command_id="c1", run_id="run-1", reason="", issuer="ada", issued=1.0, expires=16.0,
        fence=CommandFence(0, ""), world_size=1,
    )  # fmt: skip
    with RunningGateway(redis_url, RecordingServices([command])) as gateway:
        async with RawAgent(gateway.url) as agent:
            waiting = [msgspec.to_builtins(command)]
            assert await agent.hello() == Welcome("test", 1234.5, {SOURCE.source: 41}, waiting, durable=True)
        assert [hello.agent for hello in gateway.services.hellos] == ["a1"]


async def test_a_frame_is_stored_as_the_bytes_that_came(gateway: RunningGateway, redis: Redis) -> None:
    message = encode_message(frame(1, [1.0, float("nan"), float("-inf")]))
    async with RawAgent(gateway.url) as agent:
        await agent.hello()
        assert await agent.ask(message) == Ack(SOURCE.source, 3)
    [(_, fields)] = await redis.xrange(KEYS.frames)
    assert fields == {b"s": SOURCE.source.encode(), b"a": b"1", b"z": b"3", b"b": message}
    assert gateway.services.stored == ["run-1"]


async def test_a_frame_sent_twice_is_stored_once(gateway: RunningGateway, redis: Redis) -> None:
    async with RawAgent(gateway.url) as agent:
        await agent.hello()
        assert await agent.ask(frame(1, [1.0, 2.0])) == Ack(SOURCE.source, 2)
        assert await agent.ask(frame(1, [1.0, 2.0])) == Ack(SOURCE.source, 2)
    assert await redis.xlen(KEYS.frames) == 1


async def test_a_frame_that_does_not_follow_is_nacked_and_not_stored(gateway: RunningGateway, redis: Redis) -> None:
    async with RawAgent(gateway.url) as agent:
        await agent.hello()
        await agent.ask(frame(1, [1.0, 2.0]))
        gap = await agent.ask(frame(4, [4.0]))
        overlap = await agent.ask(frame(2, [2.0, 3.0]))
        assert await agent.ask(frame(3, [3.0, 4.0])) == Ack(SOURCE.source, 4)
    assert isinstance(gap, Nack)
    assert isinstance(overlap, Nack)
    assert (gap.expected_seq, overlap.expected_seq) == (3, 3)
    assert [fields[b"a"] for _, fields in await redis.xrange(KEYS.frames)] == [b"1", b"3"]


async def test_a_flipped_bit_is_answered_and_the_same_frame_sent_again_is_stored(
    gateway: RunningGateway, redis: Redis
) -> None:
    good = encode_message(frame(1, [1.0]))
    flipped = bytearray(good)
    flipped[-3] ^= 0x10
    async with RawAgent(gateway.url) as agent:
        await agent.hello()
        error = await agent.ask(bytes(flipped))
        assert await agent.ask(good) == Ack(SOURCE.source, 1)
    assert isinstance(error, Error)
    assert (error.code, error.fatal) == ("bad_message", False)
    assert "checksum" in error.message
    assert await redis.xlen(KEYS.frames) == 1


@pytest.mark.parametrize("garbage", [b"", b"SB", b"\x00" * 64, "text", "{}", b"SB\x01\x63\x00\x00\x00\x00"])
async def test_garbage_is_answered_and_the_connection_goes_on(gateway: RunningGateway, garbage: bytes | str) -> None:
    async with RawAgent(gateway.url) as agent:
        await agent.hello()
        error = await agent.ask(garbage)
        assert await agent.ask(frame(1, [1.0])) == Ack(SOURCE.source, 1)
    assert isinstance(error, Error)
    assert (error.code, error.fatal) == ("bad_message", False)


async def test_a_message_over_the_limit_is_answered_and_the_connection_goes_on(gateway: RunningGateway) -> None:
    async with RawAgent(gateway.url) as agent:
        await agent.hello()
        error = await agent.ask(b"\x00" * (5 * 1024 * 1024))
        assert await agent.ask(frame(1, [1.0])) == Ack(SOURCE.source, 1)
    assert isinstance(error, Error)
    assert (error.code, error.fatal) == ("bad_message", False)
    assert "5242880 bytes" in error.message


async def test_a_message_far_over_the_limit_closes_this_connection_only(gateway: RunningGateway) -> None:
    async with RawAgent(gateway.url) as agent, RawAgent(gateway.url) as other:
        await agent.hello()
        await other.hello(agent="a2")
        with pytest.raises(ConnectionClosed, match="1009"):
            await agent.ask(b"\x00" * (20 * 1024 * 1024))
        assert await other.ask(frame(1, [1.0])) == Ack(SOURCE.source, 1)


async def test_an_old_version_is_refused_for_good(gateway: RunningGateway) -> None:
    hello = bytearray(encode_message(Hello("run-1", "a1", "n0", "0.0.1")))
    hello[2] = 0
    async with RawAgent(gateway.url) as agent:
        error = await agent.ask(bytes(hello))
        with pytest.raises(ConnectionClosed):
            await agent.receive()
    assert isinstance(error, Error)
    assert (error.code, error.fatal) == ("wrong_version", True)
    assert "version 0, expected 1:" in error.message


async def test_frames_before_hello_are_not_taken(gateway: RunningGateway, redis: Redis) -> None:
    async with RawAgent(gateway.url) as agent:
        error = await agent.ask(frame(1, [1.0]))
        with pytest.raises(ConnectionClosed):
            await agent.receive()
    assert isinstance(error, Error)
    assert "expected Hello" in error.message
    assert await redis.exists(KEYS.frames) == 0


@pytest.mark.parametrize("run_id", ["", "a{b}", "../x", "x" * 129, "run 1"])
async def test_a_run_id_that_can_not_be_a_key_is_refused_for_good(gateway: RunningGateway, run_id: str) -> None:
    async with RawAgent(gateway.url) as agent:
        error = await agent.hello(run_id=run_id)
    assert isinstance(error, Error)
    assert (error.code, error.fatal) == ("bad_hello", True)


def _nested(depth: int) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for _ in range(depth):
        data = {"a": data}
    return data


def _steps(*steps: int) -> Frame:
    block = points(0, [1.0] * len(steps))
    block.steps = struct.pack(f"<{len(steps)}q", *steps)
    return Frame(SOURCE, 1, len(steps), [block])


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (_steps(5, -1), "step is -1"),
        (_steps(MAX_STEP + 1), f"step is {MAX_STEP + 1}"),
        (Frame(SOURCE, 1, 1, [points(1, [1.0], "x" * (MAX_NAME_CHARS + 1))]), "201 characters"),
        (Frame(SOURCE, 1, 1, [points(1, [1.0], "x" * 1_000_000)]), "1000000 characters"),
        (Frame(SOURCE, 1, 2**53, [points(1, [1.0])]), "sequence number"),
        (event_frame(1, EventBlock("checkpoint", 1.0, -2, {"path": "p"})), "step of event 'checkpoint' is -2"),
        (event_frame(1, EventBlock("alert", float("nan"))), "time of event 'alert' is nan"),
        (event_frame(1, EventBlock("alert", 1.0, 1, {"text": "x" * 1_000_000})), "a text of 1000000 characters"),
        (event_frame(1, EventBlock("alert", 1.0, 1, {"text": b"bytes"})), "a value of type bytes"),
        (event_frame(1, EventBlock("alert", 1.0, 1, _nested(100))), "nested deeper than 20 levels"),
        (event_frame(1, EventBlock("alert", 1.0, 1, {"a": {1: 2}})), "a key that is no text"),
    ],
    ids=[
        *("negative step", "huge step", "long name", "1 MB name", "huge seq", "event step", "event time"),
        *("1 MB text", "bytes", "deep", "key"),
    ],
)
async def test_a_frame_with_what_can_not_be_stored_is_named_counted_and_not_stored(
    gateway: RunningGateway, redis: Redis, bad: Frame, named: str
) -> None:
    async with RawAgent(gateway.url) as agent:
        await agent.hello()
        error = await agent.ask(bad)
        assert await agent.ask(frame(1, [1.0])) == Ack(SOURCE.source, 1)
    assert isinstance(error, Error)
    assert (error.code, error.fatal) == ("bad_frame", False)
    assert named in error.message
    assert len(error.message) < 300
    assert gateway.gateway.counts.bad_frames == 1
    assert await redis.xlen(KEYS.frames) == 1


async def test_no_mutation_of_a_frame_stops_the_connection_or_is_stored(gateway: RunningGateway, redis: Redis) -> None:
    chance = random.Random(11)
    good = encode_message(frame(1, [1.0, 2.0, 3.0]))
    async with RawAgent(gateway.url) as agent:
        await agent.hello()
        for _ in range(300):
            bad = bytearray(good)
            for _ in range(chance.randint(1, 4)):
                # The version byte stays: another version rightly ends the connection.
                bad[chance.choice([0, 1, *range(3, len(bad))])] ^= 1 << chance.randrange(8)
            if bytes(bad) == good:
                continue
            error = await agent.ask(bytes(bad))
            assert isinstance(error, Error)
            assert (error.code, error.fatal) == ("bad_message", False)
        assert await agent.ask(good) == Ack(SOURCE.source, 3)
    assert await redis.xlen(KEYS.frames) == 1


@pytest.mark.parametrize("depth", [1_000, 100_000])
async def test_a_body_nested_beyond_reading_is_answered(gateway: RunningGateway, depth: int) -> None:
    body = b"\x91" * depth + b"\x01"
    message = struct.pack("<2sBBI", b"SB", 1, 3, zlib.crc32(body)) + body
    async with RawAgent(gateway.url) as agent:
        await agent.hello()
        error = await agent.ask(message)
        assert await agent.ask(frame(1, [1.0])) == Ack(SOURCE.source, 1)
    assert isinstance(error, Error)
    assert (error.code, error.fatal) == ("bad_message", False)


async def test_ten_thousand_metric_names_in_one_frame_are_stored(gateway: RunningGateway, redis: Redis) -> None:
    blocks = [points(1, [1.0], f"metric/{i}") for i in range(10_000)]
    async with RawAgent(gateway.url) as agent:
        await agent.hello()
        assert await agent.ask(Frame(SOURCE, 1, 10_000, blocks)) == Ack(SOURCE.source, 10_000)
    assert await redis.xlen(KEYS.frames) == 1


async def test_many_frames_in_flight_are_confirmed_in_order_and_each_stored_once(
    gateway: RunningGateway, redis: Redis
) -> None:
    async with RawAgent(gateway.url) as agent:
        await agent.hello()
        for seq in range(1, 301):
            await agent.send(frame(seq, [float(seq)]))
        confirmed = [0]
        while confirmed[-1] < 300:
            confirmed.append((await agent.next(Ack)).last_seq)
    assert confirmed == sorted(set(confirmed))
    assert [int(fields[b"a"]) for _, fields in await redis.xrange(KEYS.frames)] == list(range(1, 301))


async def test_two_agents_of_a_run_number_their_sources_apart(gateway: RunningGateway, redis: Redis) -> None:
    other = SourceInfo("r1-2", rank=1, world_size=2, node="n1", pid=8, started=2.0)
    async with RawAgent(gateway.url) as first, RawAgent(gateway.url) as second:
        await first.hello(agent="a1")
        await second.hello(agent="a2", sources=[other])
        for seq in range(1, 21):
            assert await first.ask(frame(seq, [1.0])) == Ack(SOURCE.source, seq)
            assert await second.ask(frame(seq, [2.0], other)) == Ack("r1-2", seq)
    assert await redis.hgetall(KEYS.last_seq) == {b"r0-1": b"20", b"r1-2": b"20"}
    assert await gateway.gateway.ingest.last_seq("run-1", []) == {}


async def test_health_reaches_the_server_and_is_not_answered(gateway: RunningGateway) -> None:
    health = Health("a1", "n0", 5.0, [{"rank": 0, "step": 3}])
    async with RawAgent(gateway.url) as agent:
        await agent.hello()
        await agent.send(health)
        assert await agent.ask(frame(1, [1.0])) == Ack(SOURCE.source, 1)
    assert gateway.services.healths == [health]


async def test_an_agent_that_leaves_is_told_once(gateway: RunningGateway) -> None:
    async with RawAgent(gateway.url) as agent:
        await agent.hello()
    wait_until(lambda: gateway.services.gone, 5, "the agent's leaving is told")
    assert gateway.services.gone == [("run-1", "a1")]


async def test_an_agent_that_comes_back_before_it_was_missed_is_not_told_as_gone(gateway: RunningGateway) -> None:
    async with RawAgent(gateway.url) as half_open:
        await half_open.hello()
        async with RawAgent(gateway.url) as again:
            await again.hello()
            with pytest.raises(ConnectionClosed, match="took over"):
                await half_open.receive()
            wait_until(lambda: gateway.gateway.counts.connections == 1, 5, "the old connection is gone")
            assert gateway.services.gone == []
            assert await again.ask(frame(1, [1.0])) == Ack(SOURCE.source, 1)


async def test_a_command_is_pushed_to_its_agent(redis_url: str) -> None:
    with RunningGateway(redis_url, _PushingServices()) as gateway:
        async with RawAgent(gateway.url) as agent:
            await agent.hello()
            await agent.send(Health("a1", "n0", 5.0, []))
            assert await agent.receive() == CommandMessage({"command_id": "early"})
            assert await agent.receive() == CommandMessage({"command_id": "later"})


class _PushingServices(RecordingServices):
    async def agent_connected(self, hello, send):  # type: ignore[no-untyped-def]
        await send(CommandMessage({"command_id": "early"}))
        return await super().agent_connected(hello, send)

    async def health(self, run_id: str, health: Health) -> None:
        await self.senders["a1"](CommandMessage({"command_id": "later"}))


class _FailingServices(RecordingServices):
    async def health(self, run_id: str, health: Health) -> None:
        raise RuntimeError("a defect")


async def test_a_defect_of_ours_ends_the_connection_with_a_word_and_harms_no_other(redis_url: str) -> None:
    with RunningGateway(redis_url, _FailingServices()) as gateway:
        async with RawAgent(gateway.url) as agent, RawAgent(gateway.url) as other:
            await agent.hello()
            await other.hello(agent="a2")
            error = await agent.ask(Health("a1", "n0", 5.0, []))
            with pytest.raises(ConnectionClosed):
                await agent.receive()
            assert await other.ask(frame(1, [1.0])) == Ack(SOURCE.source, 1)
    assert isinstance(error, Error)
    assert (error.code, error.fatal) == ("busy", False)


async def test_an_agent_that_sends_and_never_reads_is_let_go_when_it_leaves(gateway: RunningGateway) -> None:
    agent = RawAgent(gateway.url, max_queue=1)
    await agent.__aenter__()
    await agent.hello()
    for seq in range(1, 200):
        await agent.send(frame(seq, [1.0]))
    agent.socket.transport.abort()

    async def gone() -> bool:
        return not gateway.gateway.connections

    await until(gone, 10, "the connection is gone")
    assert gateway.services.gone == [("run-1", "a1")]


async def test_a_wrong_key_is_refused_before_the_websocket_opens(gateway: RunningGateway) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await RawAgent(gateway.url, key="sb_00000000_" + "x" * 43).__aenter__()
    assert refused.value.response.status_code == 401
    assert b"key_unknown" in refused.value.response.body


async def test_no_key_is_refused_where_one_is_needed_and_the_right_one_is_let_in(redis_url: str, redis: Redis) -> None:
    _, key = await KeyRing(redis).create("agents", ["agent"])
    _, reader = await KeyRing(redis).create("screen", ["read"])
    with RunningGateway(redis_url, key_needed=True) as gateway:
        for wrong, status in ((None, 401), ("nonsense", 401), (reader, 403)):
            with pytest.raises(InvalidStatus) as refused:
                await RawAgent(gateway.url, key=wrong).__aenter__()
            assert refused.value.response.status_code == status
        async with RawAgent(gateway.url, key=key) as agent:
            assert isinstance(await agent.hello(), Welcome)
