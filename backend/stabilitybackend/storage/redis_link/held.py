"""A connection that is kept between calls.

To take one from the pool, to look after each try and to give it back costs twice as much as a small command itself.
"""

from __future__ import annotations

import asyncio
import builtins
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError, TimeoutError

from stabilitybackend.storage.redis_link.cluster import ClusterClient

__all__ = ["HeldConnection"]


class HeldConnection:
    """A connection of a client, for one call after the other: who calls waits for the answer before the next call."""

    def __init__(self, redis: Redis | ClusterClient) -> None:
        self._redis = redis
        self._connection: Any = None
        self._timeout_s: float | None = None

    async def give_back(self) -> None:
        """Let others have the connection; the next call takes one again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            client: Any = self._redis
            connection.socket_timeout = self._timeout_s
            await client.connection_pool.release(connection)

    async def execute(self, *command: Any) -> Any:
        """Return the answer of Redis to a command.

        Where the connection broke, the client tries it once more, and the connection opens itself again at the next
        call. On a cluster each key may have another node: there it is the client's own call.

        Raises:
            TimeoutError: no answer within the time-out of the client's connections.
            RedisError: as the client does.
        """
        if isinstance(self._redis, ClusterClient):
            return await self._redis.execute_command(*command)
        try:
            connection = self._connection or await self._take()
            async with asyncio.timeout(self._timeout_s):
                await connection.send_command(*command)
                return await self._redis.parse_response(connection, command[0])
        except ConnectionError:
            return await self._redis.execute_command(*command)  # type: ignore[no-untyped-call]
        except builtins.TimeoutError as error:
            raise TimeoutError("Timeout waiting for an answer") from error

    async def _take(self) -> Any:
        client: Any = self._redis
        self._connection = await client.connection_pool.get_connection()
        # Once for the whole call: for each step redis-py makes a task.
        self._timeout_s, self._connection.socket_timeout = self._connection.socket_timeout, None
        return self._connection
