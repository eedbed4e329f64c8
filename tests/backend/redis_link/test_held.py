"""A connection that is kept between calls serves them all, and one that broke is replaced within the call."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from stabilitybackend.storage.redis_link import HeldConnection, make_redis


async def test_a_held_connection_serves_one_call_after_the_other_whatever_redis_answers(redis_url: str) -> None:
    client = make_redis(redis_url)
    held = HeldConnection(client)
    mine = await held.execute("CLIENT", "ID")
    with pytest.raises(ResponseError):
        await held.execute("EVAL", "return redis.error_reply('no')", 0)
    assert await held.execute("CLIENT", "ID") == mine
    await held.give_back()
    assert await client.execute_command("CLIENT", "ID") == mine
    await client.aclose()


async def test_a_held_connection_that_redis_has_closed_fails_no_call(redis_url: str) -> None:
    client = make_redis(redis_url)
    held = HeldConnection(client)
    mine = await held.execute("CLIENT", "ID")
    await client.execute_command("CLIENT", "KILL", "ID", mine)
    assert await held.execute("SET", "of-the-test", "1") is True
    assert await held.execute("GET", "of-the-test") == b"1"
    assert await held.execute("CLIENT", "ID") != mine
    await client.aclose()
