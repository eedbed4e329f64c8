"""The client of a cluster: what one server does in one call is done here too, and a node that is away fails its own."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import RedisClusterException, RedisError, ResponseError, WatchError

from stabilitybackend.base.errors import Unavailable
from stabilitybackend.storage.redis_link import ClusterClient, as_unavailable, make_redis, redis_errors
from support.redis_servers.cluster import RedisNodes
from support.waiting import until, wait_until

#: Keys of three slots, one on each master: the first of each kind of tag.
RUNS = ["run-1", "run-2", "run-3", "run-4", "run-5", "run-6"]


_ADD = "return redis.call('sadd', KEYS[1], ARGV[1])"


def key(run: str, name: str = "x") -> str:
    return f"sb:{{{run}}}:{name}"


async def test_a_batch_over_many_slots_answers_in_the_order_of_its_commands(cluster: ClusterClient) -> None:
    pipe = cluster.pipeline(transaction=False)
    for number, run in enumerate(RUNS):
        pipe.hset(key(run), "n", number)
        pipe.hgetall(key(run))
    found = await pipe.execute()
    assert found == [answer for n in range(len(RUNS)) for answer in (1, {b"n": str(n).encode()})]
    assert len({cluster.master_of(key(run)) for run in RUNS}) == 3


async def test_one_command_that_redis_refuses_fails_alone(cluster: ClusterClient) -> None:
    await cluster.set(key("run-1"), "text")
    pipe = cluster.pipeline(transaction=False)
    pipe.hset(key("run-1"), "f", 1)
    pipe.hset(key("run-2"), "f", 1)
    first, second = await pipe.execute(raise_on_error=False)
    assert (isinstance(first, ResponseError), second) == (True, 1)
    pipe.hset(key("run-1"), "f", 1)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await pipe.execute()


async def test_a_transaction_of_one_slot_is_done_whole_or_not_at_all(cluster: ClusterClient) -> None:
    pipe = cluster.pipeline(transaction=True)
    pipe.hset(key("run-1"), "f", 1)
    pipe.xadd(key("run-1", "events"), {"a": "b"})
    pipe.hgetall(key("run-1"))
    done = await pipe.execute()
    assert (done[0], done[2]) == (1, {b"f": b"1"})
    pipe.hset(key("run-1"), "g", 1)
    pipe.execute_command("HSET", key("run-1"), "too few")
    with pytest.raises(ResponseError):
        await pipe.execute()
    assert await cluster.hgetall(key("run-1")) == {b"f": b"1"}


async def test_a_transaction_over_two_slots_is_a_defect_of_ours_and_sends_nothing(cluster: ClusterClient) -> None:
    pipe = cluster.pipeline(transaction=True)
    pipe.set(key("run-1"), 1)
    pipe.set(key("run-2"), 1)
    with pytest.raises(RedisClusterException, match="2 slots"):
        await pipe.execute()
    assert await cluster.exists(key("run-1"), key("run-2")) == 0


async def test_what_is_watched_and_changed_meanwhile_is_not_overwritten(cluster: ClusterClient) -> None:
    async def add(meanwhile: bool) -> None:
        async with cluster.pipeline(transaction=True) as pipe:
            await pipe.watch(key("run-1"))
            found = int(await pipe.get(key("run-1")) or 0)
            if meanwhile:
                await cluster.set(key("run-1"), 10)
            pipe.multi()
            pipe.set(key("run-1"), found + 1)
            await pipe.execute()

    await add(meanwhile=False)
    with pytest.raises(WatchError):
        await add(meanwhile=True)
    assert await cluster.get(key("run-1")) == b"10"


async def test_keys_of_several_slots_are_counted_and_deleted_in_one_call(cluster: ClusterClient) -> None:
    for run in RUNS:
        await cluster.set(key(run), 1)
    assert await cluster.exists(*map(key, RUNS)) == len(RUNS)
    assert await cluster.unlink(*map(key, RUNS)) == len(RUNS)


async def test_each_master_has_a_key_of_its_own_to_be_asked_with(cluster: ClusterClient) -> None:
    await cluster.initialize()
    keys = cluster.key_of_each("sb:probe")
    assert sorted(keys) == cluster.masters()
    for node, one in keys.items():
        assert await cluster.on_node(node, [("SET", one, "v"), ("GET", one)]) == [True, b"v"]


async def test_more_calls_than_connections_wait_for_each_other(nodes: RedisNodes) -> None:
    client = make_redis(nodes.url, connections=2)
    answers = await asyncio.gather(*(client.blpop([key("none", str(n))], timeout=0.01) for n in range(40)))
    assert answers == [None] * 40
    await client.aclose()


async def test_a_cluster_that_nobody_can_reach_is_unavailable_in_words() -> None:
    client = make_redis("redis+cluster://127.0.0.1:1")
    with pytest.raises(Unavailable, match="no node of the cluster says who has which slots"), redis_errors():
        await client.get("x")
    await client.aclose()


async def test_a_slot_that_moves_under_load_loses_no_write_and_doubles_none(
    nodes: RedisNodes, cluster: ClusterClient
) -> None:
    run, sent, stop = "moving", 0, asyncio.Event()
    refused: list[Exception] = []

    async def write(client: ClusterClient) -> None:
        nonlocal sent
        while not stop.is_set():
            number = sent = sent + 1
            await _patiently(partial(_together, client, run, number), refused)
            await _patiently(partial(client.eval, _ADD, 1, key(run, "c"), number), refused)

    other = make_redis(nodes.url)
    writers = [asyncio.create_task(write(client)) for client in (cluster, other, cluster)]
    await until(lambda: sent > 50, 20, "they write")
    source = nodes.owner(key(run))
    target = next(node for node in nodes.masters if node is not source)
    for giving, taking in ((source, target), (target, source)):
        await asyncio.to_thread(nodes.move_slot, key(run), giving, taking)
        moved = sent
        await until(lambda past=moved: sent > past + 50, 20, "they write on")
    stop.set()
    await asyncio.gather(*writers)
    stored = [await other.hlen(key(run, "a")), await other.hlen(key(run, "b")), await other.scard(key(run, "c"))]
    assert stored == [sent] * 3
    assert all(as_unavailable(error) for error in refused)
    await other.aclose()


async def test_a_master_that_is_killed_fails_its_own_keys_only_and_is_replaced(tmp_path: Path) -> None:
    with RedisNodes(tmp_path / "nodes", "--cluster-require-full-coverage", "no") as nodes:
        client = make_redis(nodes.url)
        noticed: list[float] = []
        client.on_loss.append(lambda: noticed.append(time.monotonic()))
        by_node = {await _name(client, run): run for run in RUNS}
        (dead, lost), (_, kept), *_ = by_node.items()
        await client.set(key(lost), "before")
        owner = nodes.owner(key(lost))
        assert owner.name == dead
        await asyncio.to_thread(_replicated, nodes, owner)
        killed = time.monotonic()
        owner.kill()
        pipe = client.pipeline(transaction=False)
        pipe.set(key(lost), "now")
        pipe.set(key(kept), "now")
        first, second = await pipe.execute(raise_on_error=False)
        assert (as_unavailable(first) is not None, second) == (True, True)
        assert noticed
        refused: list[Exception] = []
        slowest = 0.0
        while True:
            began = time.monotonic()
            assert await client.get(key(kept)) == b"now"
            slowest = max(slowest, time.monotonic() - began)
            try:
                assert await client.get(key(lost)) == b"before"
                break
            except RedisError as error:
                refused.append(error)
                await asyncio.sleep(0.05)
        outage = time.monotonic() - killed
        print(f"outage {outage:.1f} s; slowest call of the others {slowest * 1000:.0f} ms")
        assert all(as_unavailable(error) for error in refused)
        assert outage < 20
        await client.aclose()


async def _together(client: ClusterClient, run: str, number: int) -> None:
    pipe = client.pipeline(transaction=True)
    pipe.hset(key(run, "a"), str(number), 1)
    pipe.hset(key(run, "b"), str(number), 1)
    await pipe.execute()


async def _patiently(work: Any, refused: list[Exception]) -> None:
    while True:
        try:
            await work()
            return
        except RedisError as error:
            refused.append(error)
            await asyncio.sleep(0.01)


async def _name(client: ClusterClient, run: str) -> str:
    await client.initialize()
    return client.master_of(key(run))


def _replicated(nodes: RedisNodes, owner: Any) -> None:
    wait_until(lambda: owner.ask("WAIT", 1, 1000), 20, "the replica has it")
