"""Lone moves among several curves: the least noisy one shows a common move first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

#: A second data set that moved no later with this share, or by this part of the first one's distance in its own noise,
#: is a common move.
COMPANION_SHARE = 0.25
#: Least distance of two different means, standard errors.
MEAN_ERRORS = 2.0

__all__ = ["COMPANION_SHARE", "MEAN_ERRORS", "CurveMove", "moved_alone"]


class CurveMove(NamedTuple):
    """Move of one curve since a step.

    Args:
        before, after: its level before the step and since.
        error: standard error of their difference, > 0.
    """

    before: float
    after: float
    error: float

    @property
    def errors(self) -> float:
        """The move in standard errors."""
        return (self.after - self.before) / self.error


def moved_alone(mine: CurveMove, others: Sequence[CurveMove]) -> bool:
    """Return whether the others stayed while this one moved; False where their noise hides it.

    Alone it is where the others' mean distance in their own errors is less than COMPANION_SHARE of its own, and where
    they lie MEAN_ERRORS below a move by the same part of their levels.

    Args:
        mine: of the one that moved. others: of all other measurable ones.

    Example:
        >>> mine = Moved(1.0, 1.1, 0.01)
        >>> moved_alone(mine, [Moved(2.0, 2.02, 0.02), Moved(2.0, 1.98, 0.02)])
        True
        >>> moved_alone(mine, [Moved(2.0, 2.06, 0.02), Moved(2.0, 2.04, 0.02)])
        False
        >>> moved_alone(mine, [Moved(2.0, 2.02, 0.2)])
        False
    """
    if not others or not mine.before or fmean(other.errors for other in others) >= COMPANION_SHARE * mine.errors:
        return False
    part = (mine.after - mine.before) / abs(mine.before)
    alike = [part * abs(other.before) / other.error for other in others]
    short = sum(same * (same - other.errors) for same, other in zip(alike, others, strict=True))
    return short >= MEAN_ERRORS * math.hypot(*alike)
