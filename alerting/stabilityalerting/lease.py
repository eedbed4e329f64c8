"""Lets one process at a time send alerts, and the next one take over soon after it died."""

from __future__ import annotations

import asyncio
import logging
import time

from redis.asyncio import Redis
from redis.exceptions import RedisError

_RENEW = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0"
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"

__all__ = ["KEY", "Lease", "pause"]

#: Key of the lease that lets one process at a time send.
KEY = "sb:alerting:lease"

_log = logging.getLogger(__name__)


class Lease:
    """A lock that expires: held while it is renewed in time, judged by this process's own monotonic clock.

    Args:
        owner: unique to this process start.
        ttl_s: after so many seconds without renewal another process may take it.
    """

    def __init__(self, redis: Redis, key: str, owner: str, ttl_s: float) -> None:
        self._redis = redis
        self._key = key
        self._owner = owner
        self._ttl_s = ttl_s
        self._until = float("-inf")
        #: Since when it can neither be renewed nor asked for, monotonic seconds, and what Redis said.
        self._failing: tuple[float, str] | None = None
        self._said = False

    def held(self) -> bool:
        """Say whether this process may send now."""
        return time.monotonic() < self._until

    def trouble(self) -> str:
        """Return why nobody may be able to send, "" while this process or another one can."""
        if self._failing is None or time.monotonic() - self._failing[0] < self._ttl_s:
            return ""
        return f"the lease to send can't be taken ({self._failing[1]})"

    async def keep(self, stop: asyncio.Event) -> None:
        """Take and renew the lease until ``stop`` is set, then give it back."""
        try:
            while not stop.is_set():
                await self._once()
                await pause(stop, self._ttl_s / 3)
        finally:
            self._until = float("-inf")
            try:
                await self._redis.eval(_RELEASE, 1, self._key, self._owner)
            except (RedisError, OSError):
                pass  # it expires by itself

    async def _once(self) -> None:
        asked = time.monotonic()
        ttl_ms = int(self._ttl_s * 1000)
        try:
            got = await self._redis.eval(_RENEW, 1, self._key, self._owner, ttl_ms)
            if not got:
                got = await self._redis.set(self._key, self._owner, nx=True, px=ttl_ms)
        except (RedisError, OSError) as error:  # what is held runs out by itself
            since = asked if self._failing is None else self._failing[0]
            self._failing = (since, type(error).__name__)
            if self.trouble() and not self._said:
                self._said = True
                _log.warning("no alert can be sent: the lease for that can't be taken: %s", error)
            return
        self._failing, self._said = None, False
        self._until = asked + self._ttl_s if got else float("-inf")


async def pause(stop: asyncio.Event, seconds: float) -> bool:
    """Wait, or return True at once when ``stop`` is set."""
    try:
        return await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
