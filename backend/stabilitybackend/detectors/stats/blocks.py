"""Medians of small blocks of points: what the slow detectors look at instead of single values."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Points of one block. Its median forgets up to three odd batches, and a look at each block costs little per point.
BLOCK_POINTS = 8
#: A rise or a jump is back when no more than this part of it is left.
BACK_PART = 0.3
#: A level is the usual one, and an event over, when it has lasted for so many points.
SETTLED_POINTS = 128
#: Steps, in usual distances between points, after another detector's event in which the slow ones learn nothing.
AFTER_CLAIM_POINTS = 16

__all__ = [
    "AFTER_CLAIM_POINTS", "BACK_PART", "BLOCK_POINTS", "SETTLED_POINTS", "quiet_from", "rise_points", "smoothed",
]  # fmt: skip


def smoothed(values: Sequence[float]) -> list[float]:
    """Return the running medians of three, the two ends as they are.

    Example:
        >>> smoothed([1.0, 9.0, 2.0, 3.0])
        [1.0, 2.0, 3.0, 3.0]
    """
    if len(values) < 3:
        return list(values)
    inner = []
    a, b = values[0], values[1]
    for c in values[2:]:
        low, high = (a, b) if a < b else (b, a)
        inner.append(low if c < low else high if c > high else c)
        a, b = b, c
    return [values[0], *inner, values[-1]]


def rise_points(values: Sequence[float], low: float, high: float) -> int:
    """Return how many points a change from ``low`` to ``high`` took, by medians of three from 20 to 80 % of the way.

    Works downwards as well. One point means a jump; a climb takes many. When the first value is beyond 20 % already,
    all of them belong to the rise.

    Example:
        >>> rise_points([1.0] * 9 + [2.0] * 9, 1.0, 2.0)
        1
        >>> rise_points([1.0] * 9 + [1.0 + 0.05 * i for i in range(20)], 1.0, 2.0)
        13
    """
    way = high - low
    if not way or not math.isfinite(way):
        return 1
    medians = smoothed(values)
    done = [(value - low) / way for value in medians]
    arrived = next((i for i, part in enumerate(done) if part > 0.8), len(done))
    left = next((i for i in range(arrived - 1, -1, -1) if done[i] < 0.2), None)
    return max(1, arrived - left) if left is not None else len(values)


def quiet_from(values: Sequence[float], low: float, high: float) -> int:
    """Return how many of some finite values, from the first on, lie between two others.

    Example:
        >>> quiet_from([1.0, 2.0, 9.0, 1.0], 0.0, 3.0)
        2
    """
    if not values or (low < min(values) and max(values) < high):
        return len(values)
    return next(at for at, value in enumerate(values) if not low < value < high)
