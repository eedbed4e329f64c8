"""Whether a replica has the writes of its master: data on a single Redis is lost with that server."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from stabilitybackend.base.quiet_log import QuietLog
from stabilitybackend.storage.redis_link.cluster import ClusterClient

__all__ = ["WAIT_S", "on_a_replica"]

#: Longest wait for a replica, seconds: a healthy one has a write within a millisecond.
WAIT_S = 1.0
_KEPT_S = 60
_quiet = QuietLog(logging.getLogger(__name__))


async def on_a_replica(redis: Redis | ClusterClient, key: str, mark: str) -> bool:
    """Return whether one replica has all writes to the server of ``key`` before this call, or there is no replica.

    A write of this client is followed (WAIT): Redis sends all writes in one order. False also without an answer.

    Args:
        key: whose Redis is asked, of a cluster. mark: the key to write, there for this purpose.
    """
    try:
        (info,) = await _ask(redis, key, mark, lambda mark: [("INFO", "replication")])
        if not int(info.get("connected_slaves", 0)):
            return True
        _, followed = await _ask(
            redis, key, mark, lambda mark: [("SET", mark, "1", "EX", _KEPT_S), ("WAIT", 1, int(WAIT_S * 1000))]
        )
    except (RedisError, OSError) as error:
        _quiet.log(logging.WARNING, f"whether a replica of Redis has what was ordered is not known: {error!s:.200}")
        return False
    return bool(followed >= 1)


async def _ask(redis: Redis | ClusterClient, key: str, mark: str, commands_for: Any) -> Sequence[Any]:
    """Return the answers of the server of ``key`` to commands on one connection. Raises RedisError."""
    if isinstance(redis, ClusterClient):
        await redis.initialize()
        node = redis.master_of(key)
        answers = await redis.on_node(node, commands_for(redis.key_of_each(mark)[node]))
    else:
        pipe = redis.pipeline(transaction=False)
        for command in commands_for(mark):
            pipe.execute_command(*command)
        answers = await pipe.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return list(answers)
