"""A clock of the time of day that never jumps, for measurements of silence."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["MAX_RATE", "SteadyClock"]

#: Share of the passing time by which it goes faster or slower than time itself, at most: it makes up for a second
#: within 20 s, and for an hour within a day.
MAX_RATE = 0.05


class SteadyClock:
    """Unix seconds that follow the machine's clock and always rise, as ``adjtime`` lets a clock be set.

    The machine's clock may be set by an hour, by hand or by a time service: to take the hour for silence of every agent
    would be a false alarm of every run.

    Args:
        wall: unix seconds; anybody may set it. passing: seconds that pass evenly.

    Example:
        >>> wall, passed = [1e9], [0.0]
        >>> clock = SteadyClock(lambda: wall[0], lambda: passed[0])
        >>> wall[0], passed[0] = 1e9 + 3_601.0, 1.0  # a second passes, and the clock is put forward by an hour
        >>> round(clock() - 1e9, 2)
        1.05
    """

    def __init__(self, wall: Callable[[], float], passing: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._passing = wall, passing
        self._ahead, self._at = wall() - passing(), passing()

    def __call__(self) -> float:
        at, wall = self._passing(), self._wall()
        most = MAX_RATE * (at - self._at)
        self._ahead += min(max(wall - at - self._ahead, -most), most)
        self._at = at
        return at + self._ahead
