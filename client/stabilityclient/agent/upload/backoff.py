"""Pauses between attempts."""

from __future__ import annotations

import random
from collections.abc import Callable

__all__ = ["Backoff"]


class Backoff:
    """Pauses that double, with jitter so that 1,000 agents don't come back at once.

    Args:
        first_s, longest_s: bounds of the pause before jitter.
        draw: random number in [0, 1).
    """

    def __init__(self, first_s: float, longest_s: float, draw: Callable[[], float] = random.random) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._draw = draw
        self._next_s = first_s

    def pause_s(self) -> float:
        """Return the next pause, between half and all of the doubled one before."""
        pause = self._next_s
        self._next_s = min(2 * pause, self._longest_s)
        return pause * (0.5 + 0.5 * self._draw())

    def reset(self) -> None:
        """Something worked: begin with the shortest pause again."""
        self._next_s = self._first_s
