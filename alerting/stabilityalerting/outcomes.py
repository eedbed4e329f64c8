"""The newest accepted and refused message of each receiver, the heartbeat and the watchdog.

In Redis, for restarts and for other processes. No secret is stored: of an answer only its status code.
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
    """The newest outcomes of one receiver.

    Args:
        accepted, refused: times of the last ones, unix seconds, None for never.
        why: of the last refused one: ``answered 503``, ``no answer``.
    """

    accepted: float | None = None
    refused: float | None = None
    why: str = ""

    @property
    def is_refused(self) -> bool:
        """True where the newest message was refused."""
        return self.refused is not None and (self.accepted is None or self.refused > self.accepted)


class Outcomes:
    """The newest outcome of each receiver."""

    def __init__(self, redis: Redis, clock: Callable[[], float]) -> None:
        self._redis = redis
        self._clock = clock
        self._newest: dict[str, Outcome] | None = None

    async def accepted(self, name: str) -> None:
        """Note that a receiver took a message."""
        await self._note(name, accepted=self._clock())

    async def refused(self, name: str, error: SendError | None = None) -> None:
        """Note that a receiver did not take a message."""
        status = None if error is None else error.status
        await self._note(name, refused=self._clock(), why="no answer" if status is None else f"answered {status}")

    async def read(self) -> dict[str, Outcome]:
        """Return the newest outcomes by name.

        Raises:
            RedisError: Redis is away.
        """
        found: Any = await self._redis.hgetall(KEY)
        return {name.decode(): _outcome(data) for name, data in found.items()}

    async def _note(self, name: str, **changes: Any) -> None:
        try:
            if self._newest is None:
                self._newest = await self.read()
            self._newest[name] = replace(self._newest.get(name, Outcome()), **changes)
            await self._redis.hset(KEY, name, msgspec.json.encode(self._newest[name]))
        except (RedisError, OSError) as error:
            # Shown on a page only: the message has a record of its own.
            _log.debug("the outcome of %s is not stored: %s", name, error)


def _outcome(data: bytes) -> Outcome:
    try:
        return msgspec.json.decode(data, type=Outcome)
    except msgspec.MsgspecError:
        return Outcome()  # of another version
