"""Whether a replica has what its master was given is known within a second, on each kind of Redis."""

from __future__ import annotations

import signal
import time

from stabilitybackend.base.keys import DURABLE
from stabilitybackend.storage.redis_link import ClusterClient, make_redis
from stabilitybackend.storage.redis_link.replicas import WAIT_S, on_a_replica
from support.redis_servers.sentinel import WatchedRedis


async def test_a_replica_that_follows_has_it_and_one_that_stands_still_does_not(watched: WatchedRedis) -> None:
    client = make_redis(watched.url)
    await client.set("sb:{r}:x", 1)
    assert await on_a_replica(client, "sb:{r}:x", DURABLE)
    assert watched.replica.info("keyspace")
    watched.replica.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        await client.set("sb:{r}:x", 2)
        assert not await on_a_replica(client, "sb:{r}:x", DURABLE)
        assert time.monotonic() - began >= WAIT_S
    finally:
        watched.replica.send_signal(signal.SIGCONT)
    await client.aclose()


async def test_of_a_cluster_the_master_of_the_key_is_asked(cluster: ClusterClient) -> None:
    for run in ("a", "b", "c", "d"):
        await cluster.set(f"sb:{{{run}}}:x", 1)
        assert await on_a_replica(cluster, f"sb:{{{run}}}:x", DURABLE)


async def test_a_redis_that_is_away_holds_nothing_for_certain() -> None:
    client = make_redis("redis://127.0.0.1:1")
    assert not await on_a_replica(client, "sb:{r}:x", DURABLE)
    await client.aclose()
