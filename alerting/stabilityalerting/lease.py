"""The lease of the one process that sends alerts; another takes over soon after its death.

A process stalled beyond its lease may still believe that it holds it. So each holder has a token with a growing
number, and every write about a message compares it (``notification_log``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from redis.asyncio import Redis
from redis.exceptions import RedisError

#: KEYS: the lease, the number of its newest holder.  ARGV: own name, milliseconds, a lower bound of the number.
#: Answers the own number, 0 where another process holds it.
_TAKE = """
local held = redis.call('get', KEYS[1])
if held and held ~= ARGV[1] then return 0 end
local above = tonumber(ARGV[3])
local number = tonumber(redis.call('get', KEYS[2]) or '0')
if not held or number <= above then
  number = math.max(number, above) + 1
  redis.call('set', KEYS[2], string.format('%d', number))
end
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
return number
"""
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"

__all__ = ["KEY", "Interrupted", "Lease", "pause"]

#: Key of the lease that lets one process at a time send.
KEY = "sb:alerting:lease"

_log = logging.getLogger(__name__)


class Interrupted(Exception):
    """The service stopped or lost the lease during a delivery; the event stays pending."""


class Lease:
    """A lock that expires: held while it is renewed in time by this process's own monotonic clock.

    Args:
        owner: unique to this process start: its number alone could be given out twice, by a Redis that took over
            without the newest one.
        ttl_s: after so many seconds without renewal another process may take it.
        may: whether this process may hold it.
    """

    def __init__(
        self, redis: Redis, key: str, owner: str, ttl_s: float, may: Callable[[], bool] = lambda: True
    ) -> None:
        self._redis = redis
        self._key = key
        self._owner = owner
        self._ttl_s = ttl_s
        self._may = may
        self._until = float("-inf")
        #: The own number, and a lower bound of the next one.
        self._number = self._above = 0
        #: First failed attempt to renew or take it, monotonic seconds, and the type of the error.
        self._failing: tuple[float, str] | None = None
        self._logged = False

    def held(self) -> bool:
        """Return whether this process may send now."""
        return self._may() and time.monotonic() < self._until

    @property
    def token(self) -> tuple[int, str]:
        """Number and name of this holder; those of the last time after a loss."""
        return self._number, self._owner

    def overtaken(self, number: int) -> None:
        """Give up the lease: a holder with ``number`` has written. The next number of this one is above that."""
        self._until = float("-inf")
        self._above = max(self._above, number)

    def problem(self) -> str:
        """Return why no process may be able to send, "" while one can."""
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
            await self._give_back()

    async def _give_back(self) -> None:
        self._until = float("-inf")
        try:
            await self._redis.eval(_RELEASE, 1, self._key, self._owner)
        except (RedisError, OSError):
            pass  # it expires by itself

    async def _once(self) -> None:
        if not self._may():
            if self._until > float("-inf"):
                await self._give_back()
            return
        asked = time.monotonic()
        ttl_ms = int(self._ttl_s * 1000)
        try:
            # The braces put the number into the slot of the lease.
            number = await self._redis.eval(
                _TAKE, 2, self._key, f"sb:{{{self._key}}}:number", self._owner, ttl_ms, self._above
            )
        except (RedisError, OSError) as error:  # a lease that is held runs out by itself
            since = asked if self._failing is None else self._failing[0]
            self._failing = (since, type(error).__name__)
            if self.problem() and not self._logged:
                self._logged = True
                _log.warning("no alert can be sent: the lease for that can't be taken: %s", error)
            return
        self._failing = None
        self._logged = False
        if number and self._above < number:  # else another holder overtook this one meanwhile
            self._number = number
        self._until = asked + self._ttl_s if number and self._above < number else float("-inf")


async def pause(stop: asyncio.Event, seconds: float) -> bool:
    """Wait for so long, or until ``stop`` is set, which returns True."""
    try:
        return await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
