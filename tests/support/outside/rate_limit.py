"""A rate limit as those who receive messages have it: so many a minute, some of them at once."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["RateLimit"]


@dataclass
class RateLimit:
    """Answers each call with how long it should have waited.

    Args:
        per_minute: calls in the long run. burst: calls at once after a rest.

    Attributes:
        taken: when calls were taken, seconds. refused: when they were not.
    """

    per_minute: float
    burst: int
    taken: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    _tokens: float | None = None
    _at: float = 0.0

    def wait_s(self, now: float) -> float:
        """Take a call at ``now``, seconds, and return 0; or return the seconds until one would be taken."""
        tokens = self.burst if self._tokens is None else self._tokens + (now - self._at) * self.per_minute / 60
        self._tokens, self._at = min(float(self.burst), tokens), now
        if self._tokens >= 1.0:
            self._tokens -= 1.0
            self.taken.append(now)
            return 0.0
        self.refused.append(now)
        return (1.0 - self._tokens) * 60 / self.per_minute

    def most_within(self, seconds: float) -> int:
        """Return the most calls that were taken in any window of so many seconds."""
        first, most = 0, 0
        for last, at in enumerate(self.taken):
            while at - self.taken[first] >= seconds:
                first += 1
            most = max(most, last - first + 1)
        return most
