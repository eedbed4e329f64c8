"""Robust level and noise of a handful of values, for detectors that compare before with after."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from stabilitybackend.judging.detectors.engine.row_blocks import LARGEST

from .robust import MAD_TO_SIGMA, median

#: Smallest sigma of all, so that it can be divided by.
SMALLEST_SIGMA = 1e-12
#: Larger percentages are given as a factor, and factors from MOST_TIMES on not at all, next to the two numbers.
MOST_PERCENT = 1_000.0
MOST_TIMES = 10_000.0

__all__ = ["LARGEST", "Level", "change", "level_of", "percent", "quantum"]

Level = tuple[float, float]


def level_of(values: Sequence[float], floor: float = 0.0) -> Level:
    """Return (median, robust standard deviation > 0) of at least one value.

    Args:
        values: finite numbers.
        floor: smallest deviation, as a fraction of the median.

    Example:
        >>> level_of([2.0, 2.1, 1.9, 2.0, 9.0])
        (2.0, 0.14826)
    """
    centre = median(values)
    spread = MAD_TO_SIGMA * median([abs(value - centre) for value in values])
    return centre, round(max(spread, floor * abs(centre), SMALLEST_SIGMA), 12)


def quantum(values: Sequence[float]) -> float:
    """Return the resolution of the values, 0.0 where most of them differ.

    A loss logged from bfloat16 moves in steps of 0.4 to 0.8 %, so that its median deviation may be 0.

    Example:
        >>> quantum([1.75, 1.7578125, 1.75, 1.75, 1.765625, 1.75]), quantum([1.7, 1.8, 1.75, 1.71])
        (0.0078125, 0.0)
    """
    ordered = sorted(values)
    steps = [after - before for before, after in pairwise(ordered) if after > before]
    return min(steps) if steps and len(steps) < len(ordered) // 2 else 0.0


def percent(after: float, before: float) -> float | None:
    """Return the distance of ``after`` above ``before`` in percent, cut at 1e9; None where ``before`` is 0."""
    return max(-1e9, min(1e9, 100 * (after - before) / abs(before))) if before else None


def change(after: float, before: float, noise: float = 0.0, digits: int = 0) -> str:
    """Return the size of a change for a sentence: empty where the level is no more than the noise around 0.

    Example:
        >>> change(2.5, 2.0), change(60.0, 2.0), change(4.5, -0.002, noise=0.02), change(1e30, 2.0)
        (' (+25 %)', ' (30 times as much)', '', '')
    """
    if not before or abs(before) <= 2 * noise:
        return ""
    percents = 100 * (after / abs(before) - before / abs(before))
    if abs(percents) <= MOST_PERCENT:
        return f" ({percents:+.{digits}f} %)"
    return f" ({after / before:.3g} times as much)" if 1 < after / before < MOST_TIMES else ""
