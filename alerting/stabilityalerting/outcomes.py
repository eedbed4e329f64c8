"""Remembers when each receiver, the heartbeat and the watchdog were accepted last, and what was refused last.

In Redis, so that it is known after a restart, whichever process sends. What is written has no secret: of an answer only
its status code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from .errors import SendError

__all__ = ["HEARTBEAT", "KEY", "WATCHDOG", "Outcome", "Outcomes"]

#: Hash: name of a receiver, or one of the next two -> Outcome as JSON.
KEY = "sb:alerting:outcomes"
HEARTBEAT = "heartbeat"
WATCHDOG = "watchdog"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the newest messages to one receiver.

    Args:
        accepted, refused: when the last one was, unix seconds, None for never.
        why: of the last refused one: ``answered 503``, ``no answer``.
    """

    accepted: float | None = None
    refused: float | None = None
    why: str = ""

    @property
    def in_trouble(self) -> bool:
        """True where the newest one was refused."""
        return self.refused is not None and (self.accepted is None or self.refused > self.accepted)


class Outcomes:
    """The newest outcome of each receiver."""

    def __init__(self, redis: Redis, clock: Callable[[], float]) -> None:
        self._redis = redis
        self._clock = clock
        self._known: dict[str, Outcome] | None = None

    async def accepted(self, name: str) -> None:
        """Note that a receiver took a message."""
        await self._note(name, accepted=self._clock())

    async def refused(self, name: str, error: SendError | None = None) -> None:
        """Note that a receiver did not take a message."""
        status = None if error is None else error.status
        await self._note(name, refused=self._clock(), why="no answer" if status is None else f"answered {status}")

    async def read(self) -> dict[str, Outcome]:
        """Return the newest outcome of each that has one.

        Raises:
            RedisError: Redis is away.
        """
        found: Any = await self._redis.hgetall(KEY)
        return {name.decode(): _outcome(data) for name, data in found.items()}

    async def _note(self, name: str, **what: Any) -> None:
        try:
            if self._known is None:
                self._known = await self.read()
            self._known[name] = replace(self._known.get(name, Outcome()), **what)
            await self._redis.hset(KEY, name, msgspec.json.encode(self._known[name]))
        except (RedisError, OSError) as error:
            # Only the page lacks it then: the message itself has its own record.
            _log.debug("the outcome of %s is not stored: %s", name, error)


def _outcome(data: bytes) -> Outcome:
    try:
        return msgspec.json.decode(data, type=Outcome)
    except msgspec.MsgspecError:
        return Outcome()  # of another version
