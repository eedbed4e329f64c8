"""How many events one thing may give: enough for any real fault, too few to fill a spool."""

from __future__ import annotations

__all__ = ["Budget"]

#: Events a minute in the long run, and at once after a quiet time.
EVENTS_A_MINUTE = 30.0
EVENTS_AT_ONCE = 30.0


class Budget:
    """A bucket of events that fills with time.

    Attributes:
        suppressed: all that were refused.
    """

    def __init__(self, a_minute: float = EVENTS_A_MINUTE, at_once: float = EVENTS_AT_ONCE) -> None:
        self.suppressed = 0
        self._a_minute = a_minute
        self._at_once = at_once
        self._left = at_once
        self._at: float | None = None
        self._refused = 0

    def take(self, now: float) -> int | None:
        """Return how many were refused since the last one that was not; None: this one is refused too.

        Args:
            now: monotonic seconds.
        """
        if self._at is not None:
            self._left = min(self._at_once, self._left + max(0.0, now - self._at) * self._a_minute / 60.0)
        self._at = now
        if self._left < 1.0:
            self._refused += 1
            self.suppressed += 1
            return None
        self._left -= 1.0
        refused, self._refused = self._refused, 0
        return refused
