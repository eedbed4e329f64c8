"""Robust level and noise of a handful of values, for detectors that compare before with after."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

#: Makes the median absolute deviation of a normal distribution its standard deviation.
MAD_TO_SIGMA = 1.4826
#: Numbers beyond it are treated as if they were missing: sums and squares of them are not finite.
LARGEST = 1e150
#: Smallest sigma of all, so that it can be divided by.
SMALLEST_SIGMA = 1e-12

__all__ = ["LARGEST", "Level", "level_of", "middle", "percent"]

Level = tuple[float, float]


def middle(values: Sequence[float]) -> float:
    """Return the median of at least one finite value."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else 0.5 * (ordered[half - 1] + ordered[half])


def level_of(values: Sequence[float], floor: float = 0.0) -> Level:
    """Return (median, robust standard deviation > 0) of at least one value.

    The deviation is never smaller than ``floor`` times the median, nor than half the smallest step that the values
    move in: a log of bfloat16 or of integers has many equal values, whose median deviation is 0.

    Example:
        >>> level_of([2.0, 2.1, 1.9, 2.0, 9.0])
        (2.0, 0.14826)
    """
    ordered = sorted(values)
    centre = middle(ordered)
    spread = MAD_TO_SIGMA * middle([abs(value - centre) for value in ordered])
    steps = [after - before for before, after in pairwise(ordered) if after > before]
    quantum = 0.5 * min(steps) if len(steps) < len(ordered) // 2 and steps else 0.0
    return centre, round(max(spread, floor * abs(centre), quantum, SMALLEST_SIGMA), 12)


def percent(after: float, before: float) -> float | None:
    """Return by how many percent ``after`` lies above ``before``, cut at 1e9; None where ``before`` is 0."""
    return max(-1e9, min(1e9, 100 * (after - before) / abs(before))) if before else None
