"""How often a run shows lone outliers, so that a run with many of them has to prove more before it alarms."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

#: Heights at which outliers are counted, robust sigmas. The lowest is where a point becomes a suspect.
LEVELS = (4.0, 4.5, 5.0, 5.5, 6.0, 7.0, 8.0, 10.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0)
#: Points that count as seen without any outlier before the run began: the first outlier of a run says little.
CALM_PRIOR_POINTS = 1_000
#: What is expected instead of a curve whose every point is one step, as if seen in so many points: the shares of points
#: above each of LEVELS in healthy public logs of one rank's loss.
HEAVY_PRIOR_POINTS = 300
HEAVY_PRIOR = (1.4e-2, 1.1e-2, 8e-3, 6.5e-3, 5e-3, 3.5e-3, 2.3e-3, 1.2e-3, 6e-4, 2e-4, 5e-5, 2e-5, 1e-5, 0.0, 0.0)
#: Counts are halved once so many points were counted: a run may calm down.
HORIZON_POINTS = 16_384

__all__ = ["LEVELS", "OutlierTail"]


@dataclass(slots=True)
class OutlierTail:
    """Counts single high points, by height, and says how high is rare enough.

    Two of three points above a height of which the run shows the share ``p`` are chance in about ``2 p * p`` of all
    points. A detector that asks for the height with a small enough ``p`` keeps its rate of false alarms whatever the
    tail of the run.

    Example:
        >>> tail = OutlierTail()
        >>> tail.passed(1_000)
        >>> for _ in range(8):
        ...     tail.lone(9.0)
        >>> tail.needed(8.0, most=0.001), tail.needed(8.0, most=0.01)
        (10.0, 8.0)
    """

    _counts: list[float] = field(default_factory=lambda: [0.0] * len(LEVELS))
    _points: float = 0.0

    def passed(self, points: int) -> None:
        """Count points of any height."""
        self._points += points
        if self._points > HORIZON_POINTS:
            self._points /= 2
            self._counts = [count / 2 for count in self._counts]

    def lone(self, sigmas: float) -> None:
        """Count one outlier that turned out to be no event."""
        for i, level in enumerate(LEVELS):
            if sigmas < level:
                break
            self._counts[i] += 1

    def needed(self, at_least: float, most: float, heavy: bool = False) -> float:
        """Return the lowest height from ``at_least`` on that no more than the share ``most`` of all points reach.

        Args:
            at_least: robust sigmas.
            most: share of all points.
            heavy: whether outliers are to be expected before the run has shown any.

        Returns:
            Robust sigmas; infinite where the run has too many outliers of every height.
        """
        prior = HEAVY_PRIOR_POINTS if heavy else CALM_PRIOR_POINTS
        allowed = most * (self._points + prior)
        for level, count, share in zip(LEVELS, self._counts, HEAVY_PRIOR, strict=True):
            if level >= at_least and count + (share * prior if heavy else 0.0) <= allowed:
                return level
        return math.inf
