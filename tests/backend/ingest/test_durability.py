"""What is durable is on Redis' disk and on its replicas; agents are told that, and nothing earlier."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

from redis.asyncio import Redis

from stabilitybackend.base.errors import AgentGone
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.ingest.durability import Durability
from stabilitybackend.storage.redis_link import make_redis
from support.plain_redis import PlainRedis


class _Agent:
    run_id = "run-1"

    def __init__(self, *, gone: bool = False) -> None:
        self.stored = {"r0-1": 7}
        self.told: list[Mapping[str, int]] = []
        self.missing: list[Mapping[str, int]] = []
        self._gone = gone

    async def durable(self, last_seq: Mapping[str, int]) -> None:
        if self._gone:
            raise AgentGone("gone")
        self.told.append(dict(last_seq))

    async def lost(self, last_seq: Mapping[str, int]) -> None:
        self.missing.append(dict(last_seq))


async def _holds_soon(durability: Durability) -> bool:
    """Ask as often as it takes to find out what this Redis can say."""
    for _ in range(12):
        if await durability.holds():
            return True
    return False


async def test_a_redis_that_writes_to_its_disk_holds_what_it_has_stored(redis: Redis) -> None:
    await redis.config_set("appendonly", "yes")
    assert await _holds_soon(Durability(redis, {}))


async def test_a_redis_of_the_machine_holds_it_too_once_it_has_written_it(tmp_path: Path) -> None:
    with PlainRedis(tmp_path, "--appendonly", "yes") as node:  # Debian's 7.0 can't say when
        client = make_redis(node.url, connections=1)
        assert await _holds_soon(Durability(client, {}))
        await client.aclose()


async def test_a_redis_without_a_disk_holds_what_it_has(tmp_path: Path) -> None:
    with PlainRedis(tmp_path) as node:
        client = make_redis(node.url, connections=1)
        assert await _holds_soon(Durability(client, {}))
        await client.aclose()


async def test_while_a_replica_is_stalled_nothing_new_is_durable(tmp_path: Path) -> None:
    (tmp_path / "replica").mkdir()
    with PlainRedis(tmp_path, "--repl-diskless-sync-delay", "0") as node:
        options = ("--replicaof", "127.0.0.1", str(node.port))
        with PlainRedis(tmp_path / "replica", *options) as replica:
            client = make_redis(node.url, connections=1)
            durability = Durability(client, {})
            await client.set("x", "1")
            while (await client.info("replication"))["connected_slaves"] != 1:
                pass
            assert await _holds_soon(durability)
            replica.send_signal(signal.SIGSTOP)
            assert not await durability.holds()
            replica.send_signal(signal.SIGCONT)
            assert await _holds_soon(durability)
            await client.aclose()


async def test_each_agent_is_told_its_own_numbers_and_one_that_is_gone_keeps_nobody_from_it(redis: Redis) -> None:
    await redis.hset(RunKeys("run-1").last_seq, "r0-1", 7)
    gone, here, nothing = _Agent(gone=True), _Agent(), _Agent()
    nothing.stored = {}
    durability = Durability(redis, {1: gone, 2: here, 3: nothing})
    for _ in range(4):
        await durability.notify()
        if here.told:
            break
    assert (here.told, nothing.told) == ([{"r0-1": 7}], [])


async def test_what_redis_has_lost_meanwhile_is_asked_for_and_not_called_durable(redis: Redis) -> None:
    await redis.hset(RunKeys("run-1").last_seq, "r0-1", 5)
    agent = _Agent()
    agent.stored = {"r0-1": 7, "r1-1": 3}
    durability = Durability(redis, {1: agent})
    for _ in range(12):
        await durability.notify()
        if agent.missing:
            break
    assert (agent.told, agent.missing) == ([], [{"r0-1": 5, "r1-1": 0}])


async def test_nobody_is_told_anything_by_a_redis_that_is_away(tmp_path: Path) -> None:
    agent = _Agent()
    client = make_redis("redis://127.0.0.1:1", connections=1)
    await Durability(client, {1: agent}).notify()
    await client.aclose()
    assert agent.told == []
