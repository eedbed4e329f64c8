"""A connection that breaks before something is sent means that Redis is away, on uvloop too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop
from redis.exceptions import ConnectionError

from stabilitybackend.storage.redis_link import as_unavailable, make_redis


def test_what_uvloop_says_of_a_connection_that_broke_means_that_redis_is_away(redis_url: str) -> None:
    async def sent_after_the_end() -> None:
        client = make_redis(redis_url, connections=1)
        connection: Any = await client.connection_pool.get_connection()
        connection._writer.transport.abort()
        await asyncio.sleep(0.01)  # the loop closes it
        try:
            await connection.send_command("PING")
        finally:
            await client.connection_pool.release(connection)
            assert await client.ping()  # on a new one
            await client.aclose()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, pytest.raises(ConnectionError) as broken:
        runner.run(sent_after_the_end())
    assert "the handler is closed" in str(broken.value.__cause__)
    assert as_unavailable(broken.value) is not None
