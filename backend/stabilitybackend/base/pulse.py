"""Feels how long the event loop is kept from its work: a sleep that ends late shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["BUCKETS_S", "STALL_S", "Pulse"]

#: Length of the sleep, seconds.
BEAT_S = 0.1
#: A sleep that ends so much too late is a stall, seconds.
STALL_S = 0.05
#: Upper bounds of what lateness is counted by, seconds.
BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Pulse:
    """How late the event loop was, since the start of the server.

    Args:
        monotonic: seconds that never go back.

    Attributes:
        counts: beats by lateness: one number for each of BUCKETS_S (up to it, not added up), and one for what is later.
        late_s: all lateness. stalls: beats later than STALL_S. longest_s: the greatest lateness.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.late_s = self.longest_s = 0.0
        self.stalls = 0
        self._monotonic = monotonic

    async def follow(self) -> None:
        """Beat without end."""
        while True:
            begin = self._monotonic()
            await asyncio.sleep(BEAT_S)
            self.felt(self._monotonic() - begin - BEAT_S)

    def felt(self, late_s: float) -> None:
        """Count one beat that was so much too late, seconds."""
        late_s = max(0.0, late_s)
        self.counts[next((i for i, bound in enumerate(BUCKETS_S) if late_s <= bound), len(BUCKETS_S))] += 1
        self.late_s += late_s
        self.longest_s = max(self.longest_s, late_s)
        self.stalls += late_s > STALL_S
