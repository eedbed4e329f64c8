"""A Redis that can't hold the runs, or is not what its address says, stops the start in words that say what to do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from stabilitybackend.base.errors import RedisStartError
from stabilitybackend.storage.redis_link import check_server, examine_redis, make_redis
from support.cli_program import Program
from support.plain_redis import PlainRedis
from support.redis_servers.cluster import RedisNodes
from support.redis_servers.sentinel import WatchedRedis
from support.waiting import until, wait_until

pytestmark = pytest.mark.both_redis


async def refused(url: str) -> RedisStartError:
    redis = make_redis(url)
    try:
        with pytest.raises(RedisStartError) as found:
            await check_server(redis, url)
    finally:
        await redis.aclose()
    return found.value


async def test_a_node_of_a_cluster_is_refused_with_the_address_to_write(nodes: RedisNodes) -> None:
    node = nodes.masters[0].name
    found = await refused(f"redis://{node}")
    assert "is a node of a Redis Cluster, expected a single server" in found.message
    assert f"redis+cluster://{node}" in found.hint


async def test_a_single_server_is_no_cluster_and_no_sentinel(tmp_path: Path) -> None:
    with PlainRedis(tmp_path) as one:
        cluster = await refused(one.url.replace("redis://", "redis+cluster://"))
        sentinel = await refused(one.url.replace("redis://", "redis+sentinel://") + "/board")
    assert "is no node of a Redis Cluster" in cluster.message
    assert f"--redis-url {one.url}" in cluster.hint
    assert "is no Sentinel" in sentinel.message
    assert f"--redis-url {one.url}" in sentinel.hint


async def test_nodes_of_two_clusters_in_one_address_are_named(nodes: RedisNodes, tmp_path: Path) -> None:
    with PlainRedis(tmp_path, cluster=True) as other:
        name = other.url.removeprefix("redis://")
        found = await refused(f"redis+cluster://{nodes.masters[0].name},{name}")
    assert f"{name} and {nodes.masters[0].name}" in found.message
    assert "are nodes of two clusters" in found.message


async def test_a_cluster_that_was_never_made_is_refused_with_how_to_make_it(tmp_path: Path) -> None:
    with PlainRedis(tmp_path, cluster=True) as node:
        found = await refused(node.url.replace("redis://", "redis+cluster://"))
    assert "has 0 of 16,384 slots, expected all: it was never made" in found.message
    assert "redis-cli --cluster create" in found.hint


async def test_a_cluster_of_which_one_named_node_is_away_can_be_used(nodes: RedisNodes) -> None:
    url = f"redis+cluster://127.0.0.1:1,{nodes.masters[1].name}"
    redis = make_redis(url)
    assert "a cluster of 3 masters" in await check_server(redis, url)
    await redis.aclose()


async def test_a_cluster_whose_node_has_just_started_is_waited_for(tmp_path: Path) -> None:
    with RedisNodes(tmp_path / "nodes") as own:
        node = own.masters[0]
        node.kill()
        node.start()
        await until(lambda: "cluster_state:fail" in str(node.ask("CLUSTER", "INFO")), 20, "it is not ready yet")
        url = f"redis+cluster://{node.name}"
        client = make_redis(url)
        assert "a cluster of 3 masters" in await check_server(client, url)
        await client.aclose()


async def test_a_replica_is_refused_with_the_address_of_its_primary(tmp_path: Path) -> None:
    with PlainRedis(tmp_path) as primary, PlainRedis(tmp_path, "--replicaof", "127.0.0.1", str(primary.port)) as other:
        found = await refused(other.url)
    assert f"is a replica of 127.0.0.1:{primary.port}" in found.message
    assert primary.url in found.hint


async def test_a_sentinel_is_refused_because_it_holds_no_data(tmp_path: Path) -> None:
    with PlainRedis(tmp_path, sentinel=True) as sentinel:
        found = await refused(sentinel.url)
    assert "is a Sentinel" in found.message
    assert f"redis+sentinel://127.0.0.1:{sentinel.port}/NAME" in found.hint


async def test_a_name_that_the_sentinels_do_not_know_is_refused_with_those_they_know(watched: WatchedRedis) -> None:
    found = await refused(watched.url.replace("/board", "/bord"))
    assert "don't know 'bord'; they watch board" in found.message


async def test_an_option_that_nobody_knows_is_refused_and_named(redis_url: str) -> None:
    found = await refused(f"{redis_url}?colour=red")
    assert "colour" in found.message


def test_an_option_that_nobody_knows_is_named_of_a_cluster_too() -> None:
    with pytest.raises(RedisStartError, match="colour"):
        make_redis("redis+cluster://127.0.0.1:1?colour=red")


def test_up_refuses_a_node_of_a_cluster_before_it_says_that_it_is_up(nodes: RedisNodes, program: Program) -> None:
    code, out, err = program("up", "--port", "0", "--redis-url", f"redis://{nodes.masters[0].name}")
    assert (code, out) == (1, "")
    assert "is a node of a Redis Cluster" in err


def test_the_doctor_says_what_is_to_be_mended_about_each_master(nodes: RedisNodes, program: Program) -> None:
    _, out, _ = program("doctor", "--port", "0", "--redis-url", nodes.url, "--json")
    found = [check for check in json.loads(out)["checks"] if check["name"] == "redis"]
    assert found[0]["state"] == "ok"
    assert found[0]["text"].endswith(f"a cluster of 3 masters at {nodes.url}")
    [memory] = [check for check in found if "has no maxmemory" in check["text"]]
    assert all(node.name in memory["text"] for node in nodes.masters)
    assert (memory["state"], memory["advice"]) == ("note", "set maxmemory in its configuration")


async def notes(url: str, clock: float | None = None) -> str:
    redis = make_redis(url)
    await check_server(redis, url)
    found = await examine_redis(redis, url, clock)
    await redis.aclose()
    return "\n".join(f"{note.text}: {note.advice}" for note in found)


async def test_what_loses_data_is_noted_with_what_to_do(tmp_path: Path) -> None:
    with PlainRedis(tmp_path, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as one:
        found = await notes(one.url)
    assert "deletes keys when its memory is full (maxmemory-policy allkeys-lru)" in found
    assert "CONFIG SET maxmemory-policy noeviction" in found
    assert "(appendonly no): set appendonly yes" in found


async def test_of_a_redis_that_is_set_up_well_nothing_is_noted(tmp_path: Path) -> None:
    with PlainRedis(tmp_path, "--maxmemory", "100mb", "--appendonly", "yes") as one:
        assert await notes(one.url) == ""


async def test_a_clock_that_is_an_hour_off_is_noted(redis_url: str) -> None:
    found = await notes(redis_url, clock=0.0)
    assert "s ahead of ours" in found
    assert "chrony" in found


async def test_a_primary_without_its_replica_is_noted(watched: WatchedRedis) -> None:
    assert "has no replica" not in await notes(watched.url)
    watched.replica.kill()
    wait_until(lambda: watched.primary.info("replication")["connected_slaves"] == 0, 20, "the primary knows")
    assert "has no replica that is connected" in await notes(watched.url)


async def test_calls_that_find_no_connection_free_wait_for_one(redis_url: str) -> None:
    redis = make_redis(redis_url, connections=2)
    answers = await asyncio.gather(*(redis.blpop([f"none-{n}"], timeout=0.01) for n in range(40)))
    assert answers == [None] * 40
    await redis.aclose()
