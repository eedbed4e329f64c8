"""Connections that say in words of redis-py that they broke while something was about to be sent.

asyncio drops writes to a transport that is closed already; uvloop raises a bare RuntimeError ("unable to
perform operation on <TCPTransport ...>; the handler is closed"), which redis-py passes on. No caller takes that for
"Redis is away", so it is turned into redis-py's ConnectionError, and is tried again like any other.
"""

from __future__ import annotations

from typing import Any

from redis.exceptions import ConnectionError

__all__ = ["noticing"]

_CLOSED = "the handler is closed"


def noticing(kind: type[Any]) -> type[Any]:
    """Return a class of connections as ``kind``, a connection of ``redis.asyncio``, that does so."""

    class Noticing(kind):  # type: ignore[misc]
        async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            try:
                await super().send_packed_command(command, check_health)
            except RuntimeError as error:
                if _CLOSED not in str(error):
                    raise
                raise ConnectionError("the connection broke before anything was sent") from error

    return Noticing
