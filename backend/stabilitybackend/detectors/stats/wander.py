"""Remembers what a curve took back by itself, so that the next climb or jump of that size is no news."""

from __future__ import annotations

from dataclasses import dataclass

#: How far back counts, points. After a report of a climb that recovered by itself nobody wants the next one.
AGAIN_POINTS = 4_096
#: A rise must be so many times the largest one that the same curve took back before.
OVER_TAKEN_BACK = 1.6

__all__ = ["OVER_TAKEN_BACK", "Wander"]


@dataclass(slots=True)
class Wander:
    """The newest rise that was reported, and the largest one that the curve took back.

    Example:
        >>> wander = Wander()
        >>> wander.note(2.0, 2.4)
        >>> wander.passed(500)
        >>> wander.is_usual(2.1, 0.5), wander.is_usual(2.1, 0.8), wander.is_usual(2.4, 0.1)
        (True, False, True)
        >>> wander.passed(4_000)
        >>> wander.is_usual(2.1, 0.5)
        False
    """

    _low: float = 0.0
    _high: float = 0.0
    _points: int = AGAIN_POINTS
    _taken_back: float = 0.0

    def note(self, low: float, high: float) -> None:
        """Note a rise that was reported, or how high it has become."""
        self._low, self._high, self._points = low, high, 0

    def passed(self, points: int) -> None:
        """Count points; may be called with those of an open event as well."""
        self._points += points

    def is_usual(self, level: float, rise: float) -> bool:
        """Return whether a rise from ``level`` is no larger than what the curve does and takes back."""
        if self._points >= AGAIN_POINTS:
            self._taken_back = 0.0
            return False
        if level - self._low < self._high - level:  # nearer to where it came from than to where it was
            self._taken_back = max(self._taken_back, self._high - self._low)
        return rise < OVER_TAKEN_BACK * self._taken_back
