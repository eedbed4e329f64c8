"""When a run's worker wakes up: its triggers, its reads of the stream without one, its ticks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["TICK_S", "Wakeups"]

#: How often silence and expiry are judged and the run's summary is reported, seconds.
TICK_S = 1.0
#: The same without connections, nor any report for ACTIVE_S: nothing is left to happen soon.
IDLE_TICK_S = 5.0
ACTIVE_S = 60.0
#: The same where nothing was reported for QUIET_AFTER_S and the time that an agent may be silent, and nothing is open
#: that ends with time: orders, faults of GPUs.
QUIET_TICK_S = 30.0
QUIET_AFTER_S = 600.0
#: The stream is read at least this often, seconds.
READ_AGAIN_S = 15.0


class Wakeups:
    """Where one worker waits between two reads.

    Args:
        clock: unix seconds now; where it is put back, everything is due.
        busy: whether agents or browsers are connected.
        expects: whether something is open that time ends.
    """

    def __init__(
        self, clock: Callable[[], float], busy: Callable[[], bool], expects: Callable[[], bool] = lambda: True
    ) -> None:
        #: Whether it waits now.
        self.rests = False
        #: Returns the seconds between two ticks, TICK_S or more: a process with thousands of runs reads less often.
        self.tick_s: Callable[[], float] = lambda: TICK_S
        self._clock = clock
        self._busy, self._expects = busy, expects
        #: How long agents may be silent before that is reported, seconds.
        self.silent_s = 0.0
        self._news = asyncio.Event()
        self._to_read = False
        self._active_at = self._begun_at = self._read_at = self._ticked_at = float("-inf")

    def begin(self) -> None:
        """Note that the state is taken up now: the first tick is due in TICK_S."""
        self._begun_at = now = self._clock()
        self._ticked_at = now + TICK_S - self._interval_s(now)

    def wake(self) -> None:
        """Note that the stream may have grown, or that Redis was away: it is to be read."""
        self._to_read = True
        self._news.set()

    def notify(self) -> None:
        """Note that there is something to do, for which the stream need not be read."""
        self._news.set()

    def active(self) -> None:
        """Note that something was reported."""
        self._active_at = self._clock()

    def came(self) -> None:
        """Note an action of a user: its results do not wait for an idle tick."""
        self.active()
        self.wake()

    def turn(self) -> None:
        """Note that all is looked at now: later messages are news again."""
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
        now = self._clock()
        interval_s = self._interval_s(now)
        if 0 < self._ticked_at + interval_s - now <= interval_s:
            return False
        self._ticked_at = now
        return True

    def _interval_s(self, now: float) -> float:
        if self._busy() or 0 <= now - self._active_at < ACTIVE_S:
            usual_s = TICK_S
        elif now - max(self._active_at, self._begun_at) < QUIET_AFTER_S + self.silent_s or self._expects():
            usual_s = IDLE_TICK_S
        else:
            usual_s = QUIET_TICK_S
        return max(usual_s, self.tick_s())

    async def wait(self) -> None:
        """Return when there is news since the last turn, or it is time for a tick."""
        if self._to_read or self._news.is_set():
            return
        self.rests = True
        now = self._clock()
        try:
            async with asyncio.timeout(max(0.0, self._ticked_at + self._interval_s(now) - now)):
                await self._news.wait()
        except TimeoutError:
            pass
        finally:
            self.rests = False
