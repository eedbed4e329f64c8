"""Robust location and scale of the recent past of one metric, in constant memory."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from itertools import pairwise
from typing import Any

#: Points that the slow location looks back on. OLMo-core's skip-step optimizer uses the same window.
WINDOW_POINTS = 128
#: Points of the fast location: follows a falling loss, so that a spike early in training is not hidden by older,
#: higher values.
RECENT_POINTS = 32
#: Points of the fastest location: while the loss falls steeply it lags only a few points behind.
NEWEST_POINTS = 9
#: Points that the scale looks back on: shorter, so that the steep start of a run does not pass as noise for long.
SCALE_POINTS = 64
#: The scale is computed anew once in so many points; it moves slowly and costs a few sorts.
SCALE_EVERY_POINTS = 8
#: Smallest scale as a fraction of the location: a smooth curve must not make a tiny wiggle look huge.
RELATIVE_FLOOR = 0.005
#: Smallest scale of all, so that a constant zero can be divided by.
ABSOLUTE_FLOOR = 1e-6
#: Mantissa bits of bfloat16: a loss logged from bf16 moves in steps of 2**-7 of its power of two, so that the MAD can
#: be 0.
BF16_MANTISSA_BITS = 7
#: Makes the median absolute deviation of a normal distribution its standard deviation.
MAD_TO_SIGMA = 1.4826
#: 90 % quantile of the normal distribution, sigmas above the median.
Q90_SIGMAS = 1.2816

__all__ = ["RobustBaseline", "median"]


def median(values: list[float]) -> float:
    """Return the median of at least one finite value."""
    return _middle(sorted(values))


def _middle(ordered: list[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else 0.5 * (ordered[half - 1] + ordered[half])


class RobustBaseline:
    """Tells what the next value of a metric should look like: ``location`` and ``scale``, both robust.

    The location is the smallest of the medians of the last 128, 32 and 9 values: the short ones follow a falling loss,
    the long one keeps a slow rise visible. The scale comes from what each value missed its own location by, so
    that the slope of the curve does not count as noise.

    Example:
        >>> baseline = RobustBaseline()
        >>> for i in range(40):
        ...     baseline.learn(2.0 + 0.1 * (i % 2))
        >>> round(baseline.location(), 2), round(baseline.scale(), 2)
        (2.05, 0.1)
    """

    __slots__ = ("_residuals", "_scale", "_since_scale", "_values", "_windows", "points")

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=WINDOW_POINTS)
        self._residuals: deque[float] = deque(maxlen=SCALE_POINTS)
        self._scale = math.inf
        self._since_scale = SCALE_EVERY_POINTS
        #: Values learnt since the start or the last ``restart``.
        self.points = 0
        self._windows = self._sort_windows()

    def _sort_windows(self) -> tuple[tuple[int, list[float]], ...]:
        """Return (size, the newest so many values in order): kept in order, because sorting each time is the cost."""
        values = list(self._values)
        return tuple((size, sorted(values[-size:])) for size in (WINDOW_POINTS, RECENT_POINTS, NEWEST_POINTS))

    def __getstate__(self) -> tuple[Any, ...]:
        return (self._values, self._residuals, self._scale, self._since_scale, self.points)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._values, self._residuals, self._scale, self._since_scale, self.points = state
        self._windows = self._sort_windows()

    def location(self) -> float:
        """Return the value to measure the next one from. At least one value must have been learnt."""
        (_, old), (_, recent), (_, newest) = self._windows
        return min(_middle(old), _middle(recent), _middle(newest))

    def level(self) -> float:
        """Return the level that the metric is on, for people and for the way back: it follows noise less."""
        (_, old), (_, recent), (_, newest) = self._windows
        return min(_middle(old), _middle(recent), _middle(newest) + self.scale())

    def scale(self) -> float:
        """Return one robust standard deviation, > 0; infinite before the first value."""
        if self._since_scale >= SCALE_EVERY_POINTS and self._values:
            self._scale = self._measure()
            self._since_scale = 0
        return self._scale

    def learn(self, value: float, location: float | None = None) -> None:
        """Take a finite value that belongs to the usual behaviour.

        Args:
            value: the value.
            location: what ``location()`` says now, where the caller has asked already.
        """
        if self._values:
            self._residuals.append(value - (self.location() if location is None else location))
        for size, window in self._windows:
            if len(window) == size:
                del window[bisect_left(window, self._values[-size])]
            insort(window, value)
        self._values.append(value)
        self._since_scale += 1
        self.points += 1

    def restart(self, values: list[float]) -> None:
        """Forget everything and learn ``values`` instead: a new level was accepted."""
        points = self.points
        self.__init__()  # type: ignore[misc]  # the fresh state, spelled once
        for value in values:
            self.learn(value)
        self.points = max(points, self.points)

    def _measure(self) -> float:
        location = abs(self.location())
        floor = max(RELATIVE_FLOOR * location, ABSOLUTE_FLOOR, self._quantum(location))
        if not self._residuals:
            return floor
        ordered = sorted(self._residuals)
        middle = ordered[len(ordered) // 2]
        deviation = median([abs(residual - middle) for residual in ordered])
        upper = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))] - middle
        return max(MAD_TO_SIGMA * deviation, upper / Q90_SIGMAS, floor)

    def _quantum(self, location: float) -> float:
        """Return the step in which the values move: bf16's, or the smallest gap where they are coarser (integers)."""
        bf16 = 2.0 ** (math.floor(math.log2(location)) - BF16_MANTISSA_BITS) if location > 0 else 0.0
        gaps = [b - a for a, b in pairwise(self._windows[0][1]) if b > a]
        return max(bf16, min(gaps, default=0.0))
