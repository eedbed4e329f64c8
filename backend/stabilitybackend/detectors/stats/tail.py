"""How often a run shows lone outliers, so that a run with many of them has to prove more before it alarms."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

#: Heights at which outliers are counted, robust sigmas, and how many of them to an octave.
PER_OCTAVE = 4
LEVELS = tuple(4.0 * 2 ** (i / PER_OCTAVE) for i in range(5 * PER_OCTAVE + 1))
#: What is expected of a run before it has shown anything, as if seen in so many points: the tail of Student's t with 3
#: degrees of freedom, 0.75 / sigmas ** 3. Healthy public logs of one rank's loss have about that one.
PRIOR_POINTS = 300
PRIOR_SHARE = 0.75
#: Counts are halved once so many points were counted: a run may calm down.
HORIZON_POINTS = 16_384

__all__ = ["OutlierTail"]


@dataclass(slots=True)
class OutlierTail:
    """Counts single high points, by height, and says how high is rare enough.

    A detector that asks for the height that a small share of all points reach keeps its rate of false alarms whatever
    the tail of the run.

    Example:
        >>> tail = OutlierTail()
        >>> tail.passed(10_000)
        >>> for _ in range(8):
        ...     tail.lone(9.0)
        >>> round(tail.needed(8.0, most=0.0005), 1), tail.needed(8.0, most=0.01)
        (9.5, 8.0)
    """

    #: 0 for a metric whose outliers are not heavy-tailed, such as a logarithm.
    prior_share: float = PRIOR_SHARE
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

    def share(self, sigmas: float) -> float:
        """Return the share of all points that are about so high, or higher.

        Args:
            sigmas: robust sigmas, at least the lowest of ``LEVELS``.
        """
        index = max(0, min(int(PER_OCTAVE * math.log2(sigmas / LEVELS[0])), len(LEVELS) - 1))
        expected = PRIOR_POINTS * self.prior_share / LEVELS[index] ** 3
        return (self._counts[index] + expected) / (self._points + PRIOR_POINTS)

    def needed(self, at_least: float, most: float) -> float:
        """Return the lowest height from ``at_least`` on that no more than the share ``most`` of all points reach.

        Args:
            at_least: robust sigmas.
            most: share of all points.

        Returns:
            Robust sigmas; infinite where the run has too many outliers of every height.
        """
        return next((level for level in LEVELS if level >= at_least and self.share(level) <= most), math.inf)
