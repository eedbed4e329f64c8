"""Wait of frames until they are judged: from their storage in Redis until their effects are stored.

Both ends are times of Redis, so that a clock that is off changes nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

__all__ = ["JUDGED_WITHIN_S", "JudgingLag"]

#: Upper bounds of the histogram of waits, seconds.
JUDGED_WITHIN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class JudgingLag:
    """The waits since the start of the server; one a batch of frames of a run, that of its oldest frame.

    Args:
        redis_now: unix seconds now, by the clock of Redis.

    Attributes:
        counts: waits by length: one number for each of JUDGED_WITHIN_S (up to it, not added up), one for longer ones.
        waited_s: all of them together.
    """

    def __init__(self, redis_now: Callable[[], float]) -> None:
        self.counts = [0] * (len(JUDGED_WITHIN_S) + 1)
        self.waited_s = 0.0
        self._redis_now = redis_now

    def judged(self, stored: float) -> None:
        """Count a batch whose oldest frame was stored at ``stored``, unix seconds of Redis."""
        waited_s = max(0.0, self._redis_now() - stored)
        self.counts[bisect_left(JUDGED_WITHIN_S, waited_s)] += 1
        self.waited_s += waited_s
