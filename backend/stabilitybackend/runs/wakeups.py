"""When a run's worker wakes up: what wakes it, when it reads its stream without that, when it ticks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["TICK_S", "Wakeups"]

#: How often silence and expiry are judged and the run's summary is reported, seconds.
TICK_S = 1.0
#: The same where nobody is connected, nor has anything been reported for ACTIVE_S: nothing is left to happen soon.
IDLE_TICK_S = 5.0
ACTIVE_S = 60.0
#: The stream is read at least this often, seconds.
READ_AGAIN_S = 15.0


class Wakeups:
    """Where one worker waits between two reads.

    Args:
        clock: unix seconds now; where it is put back, everything is due.
        busy: whether agents or browsers are connected.
    """

    def __init__(self, clock: Callable[[], float], busy: Callable[[], bool]) -> None:
        #: Whether it waits now.
        self.rests = False
        #: Returns the seconds between two ticks, TICK_S or more: whoever follows thousands of runs reads less often.
        self.tick_s: Callable[[], float] = lambda: TICK_S
        self._clock = clock
        self._busy = busy
        self._news = asyncio.Event()
        self._to_read = False
        self._active_at = self._read_at = self._ticked_at = float("-inf")

    def begin(self) -> None:
        """Note that the state is taken up now: the first tick is due in TICK_S."""
        self._ticked_at = self._clock() + TICK_S - IDLE_TICK_S

    def wake(self) -> None:
        """Note that the stream may have grown, or that Redis was away: it is to be read."""
        self._to_read = True
        self._news.set()

    def look(self) -> None:
        """Note that there is something to do, for which the stream need not be read."""
        self._news.set()

    def active(self) -> None:
        """Note that something was reported."""
        self._active_at = self._clock()

    def came(self) -> None:
        """Note that somebody did something: what follows from it does not wait for an idle tick."""
        self.active()
        self.wake()

    def turn(self) -> None:
        """Note that all is looked at now: what comes from now on is news again."""
        self._news.clear()

    def read_due(self) -> bool:
        """Return whether the stream is to be read now, which then counts as done."""
        now = self._clock()
        if not self._to_read and self._read_at <= now < self._read_at + READ_AGAIN_S:
            return False
        self._to_read, self._read_at = False, now
        return True

    def tick_due(self) -> bool:
        """Return whether it is time for a tick, which then counts as done."""
        if 0 < self._tick_in_s() <= max(IDLE_TICK_S, self.tick_s()):
            return False
        self._ticked_at = self._clock()
        return True

    def _tick_in_s(self) -> float:
        now = self._clock()
        active = self._busy() or 0 <= now - self._active_at < ACTIVE_S
        return self._ticked_at + max(TICK_S if active else IDLE_TICK_S, self.tick_s()) - now

    async def wait(self) -> None:
        """Return when there is news since the last turn, or it is time for a tick."""
        if self._to_read or self._news.is_set():
            return
        self.rests = True
        try:
            async with asyncio.timeout(max(0.0, self._tick_in_s())):
                await self._news.wait()
        except TimeoutError:
            pass
        finally:
            self.rests = False
