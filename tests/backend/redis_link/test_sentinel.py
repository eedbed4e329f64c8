"""What Sentinels watch: after a real failover the same client goes on with the new primary."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest
from redis.exceptions import RedisError

from stabilitybackend.storage.redis_link import as_unavailable, make_redis, make_watchful
from support.redis_servers.sentinel import WatchedRedis
from support.waiting import until


async def test_after_a_failover_the_same_client_goes_on_with_what_was_stored(watched: WatchedRedis) -> None:
    client = make_redis(watched.url, connections=4)
    watchful = make_watchful(client)
    await asyncio.gather(*(client.set(f"sb:{n}", n) for n in range(40)))
    await watchful.ping()
    await until(lambda: client.execute_command("WAIT", 1, 1000), 20, "the replica has it")
    killed = time.monotonic()
    watched.primary.kill()
    refused: list[Exception] = []
    noticed = False
    while True:
        try:
            await watchful.ping()
        except (RedisError, OSError):
            noticed = True
        try:
            await client.set("sb:after", 1)
            break
        except RedisError as error:
            refused.append(error)
            await asyncio.sleep(0.05)
    outage = time.monotonic() - killed
    print(f"outage {outage:.1f} s")
    assert outage < 20
    assert noticed
    assert all(as_unavailable(error) for error in refused)
    assert await client.mget([f"sb:{n}" for n in range(40)]) == [str(n).encode() for n in range(40)]
    assert watched.replica.info("replication")["role"] == "master"
    await watchful.aclose()
    await client.aclose()


@pytest.mark.soak  # a Sentinel takes ten seconds to demote one that is back
async def test_a_primary_that_was_stalled_and_demoted_gets_no_more_writes(watched: WatchedRedis) -> None:
    client = make_redis(watched.url)
    await client.set("sb:x", "before")
    await until(lambda: client.execute_command("WAIT", 1, 1000), 20, "the replica has it")
    watched.primary.send_signal(signal.SIGSTOP)
    await until(lambda: watched.primary_port() == watched.replica.port, 30, "the replica has taken over")
    watched.primary.send_signal(signal.SIGCONT)
    await until(lambda: watched.primary.info("replication")["role"] == "slave", 60, "the Sentinel has demoted it")

    refused: list[Exception] = []

    async def written() -> bool:
        try:
            return bool(await client.set("sb:x", "after"))
        except RedisError as error:
            refused.append(error)
            return False

    await until(written, 30, "the client has found the new primary")
    assert all(as_unavailable(error) for error in refused)
    new = make_redis(watched.replica.url)
    assert await new.get("sb:x") == b"after"
    await new.aclose()
    await client.aclose()
