"""Measures how late the event loop runs, by sleeps that end late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["BUCKETS_S", "STALL_S", "LoopLag"]

#: Length of the sleep, seconds.
SLEEP_S = 0.1
#: Lateness from which a sleep counts as a stall, seconds.
STALL_S = 0.05
#: Upper bounds of the histogram of lateness, seconds.
BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class LoopLag:
    """Lateness of the event loop since the start of the server.

    Args:
        monotonic: seconds that never go back.

    Attributes:
        counts: sleeps by lateness, one number for each bound of BUCKETS_S (not cumulative) and one for later ones.
        late_s: sum of all lateness. stalls: sleeps later than STALL_S. longest_s: the greatest lateness.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.late_s = self.longest_s = 0.0
        self.stalls = 0
        self._monotonic = monotonic

    async def follow(self) -> None:
        """Measure until cancelled."""
        while True:
            begin = self._monotonic()
            await asyncio.sleep(SLEEP_S)
            self.note(self._monotonic() - begin - SLEEP_S)

    def note(self, late_s: float) -> None:
        """Count one sleep by its lateness, seconds."""
        late_s = max(0.0, late_s)
        self.counts[next((i for i, bound in enumerate(BUCKETS_S) if late_s <= bound), len(BUCKETS_S))] += 1
        self.late_s += late_s
        self.longest_s = max(self.longest_s, late_s)
        self.stalls += late_s > STALL_S
