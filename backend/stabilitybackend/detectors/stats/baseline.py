"""Robust location and scale of the recent past of one metric, in constant memory and little time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

import numpy as np

from .robust import MAD_TO_SIGMA, Q90_SIGMAS, median

#: Points that the slow location looks back on. OLMo-core's skip-step optimizer uses the same window.
WINDOW_POINTS = 128
#: Points of the fast location: follows a falling loss, so that a spike early in training is not hidden by older,
#: higher values.
RECENT_POINTS = 32
#: Points of the fastest location: while the loss falls steeply it lags only a few points behind.
NEWEST_POINTS = 9
#: Points that the scale looks back on while the run is young, so that its steep start does not pass as noise for long.
YOUNG_SCALE_POINTS = 64
#: Young runs fall steeply and are short: their location is at most 1 point old, and their scale as many as the location
#: of an older run.
YOUNG_POINTS = 256
#: Older runs fall slowly: the two fast medians are at most 16 points old, what takes long sorts 64. ``refresh`` gives
#: numbers of now where a value looks odd, so that this costs no score; it makes a quiet point 5 times cheaper.
LOCATION_EVERY_POINTS = 16
SCALE_EVERY_POINTS = 64
#: Smallest scale as a fraction of the location: a smooth curve must not make a tiny wiggle look huge.
RELATIVE_FLOOR = 0.005
#: Smallest scale of all, so that a constant zero can be divided by.
ABSOLUTE_FLOOR = 1e-6
#: Points on either side of a point whose median is its centre, and how many of its spreads count at most while the loss
#: falls: the location lags then, and the lag must not pass as noise.
CENTRED_SIDE = 4
#: Places of the others around each point that has CENTRED_SIDE on both sides.
_OTHERS = np.arange(YOUNG_SCALE_POINTS)[:, None] + np.delete(np.arange(2 * CENTRED_SIDE + 1), CENTRED_SIDE)
TREND_FACTOR = 2.0
#: Mantissa bits of bfloat16: a loss logged from bf16 moves in steps of 2**-7 of its power of two, so that the MAD can
#: be 0.
BF16_MANTISSA_BITS = 7

__all__ = ["YOUNG_POINTS", "RobustBaseline"]


@dataclass(slots=True)
class RobustBaseline:
    """Says what the next value of a metric should look like: ``location`` and ``scale``, both robust.

    The location is the smallest of the medians of the last 128, 32 and 9 values: the short ones follow a falling loss,
    the long one keeps a slow rise visible. The scale comes from what each value missed the location by, so that the
    slope of the curve does not count as noise.

    Learning is cheap and asking is cheap: the medians are taken again once in a few points, more often while the run
    is young. ``refresh`` takes them now.

    Example:
        >>> baseline = RobustBaseline()
        >>> for i in range(40):
        ...     baseline.learn(2.0 + 0.1 * (i % 2))
        >>> round(baseline.location(), 2), round(baseline.scale(), 2)
        (2.05, 0.1)
    """

    _values: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_POINTS))
    _residuals: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_POINTS))
    _location: float = math.nan
    _old: float = math.nan
    _newest: float = math.nan
    _scale: float = math.inf
    _since_location: int = 0
    _since_old: int = 0
    _since_scale: int = SCALE_EVERY_POINTS
    #: Values learnt since the start; a ``restart`` does not set it back.
    points: int = 0

    def location(self) -> float:
        """Return the value to measure the next one from. At least one value must have been learnt."""
        if self._since_location >= LOCATION_EVERY_POINTS or (self._since_location and self.points <= YOUNG_POINTS):
            self._locate()
        return self._location

    def level(self) -> float:
        """Return the level that the metric is on, for people and for the way back: it follows noise less."""
        self.location()
        newest = self._newest + self.scale()
        recent = median(list(islice(self._values, max(0, len(self._values) - RECENT_POINTS), None)))
        return min(self._old, recent, newest)

    def scale(self) -> float:
        """Return one robust standard deviation, > 0; infinite before the first value."""
        if self._since_scale >= self._scale_every() and self._values:
            self.refresh()
        return self._scale

    def least_scale(self) -> float:
        """Return the smallest scale at this location: a smooth curve must not make a tiny wiggle look huge."""
        location = abs(self.location())
        return max(RELATIVE_FLOOR * location, ABSOLUTE_FLOOR, self._step_of_values(location))

    def log_sigmas(self, value: float) -> float:
        """Return how far the logarithm of ``value`` > 0 is above those of the last 128 values, robust deviations.

        A loss whose noise is larger than its level (near 0) varies by factors: so many times the level is usual there.
        """
        logs = sorted(math.log(one) for one in self._values if one > 0)
        middle = median(logs)
        deviation = MAD_TO_SIGMA * median([abs(one - middle) for one in logs])
        upper = (logs[min(len(logs) - 1, int(0.9 * len(logs)))] - middle) / Q90_SIGMAS
        return (math.log(value) - middle) / max(deviation, upper, RELATIVE_FLOOR)

    def slow_location(self) -> float:
        """Return the median of the last 128 values, as of the last ``refresh`` or 64 points ago at most."""
        return self._old

    def highest(self) -> float:
        """Return the highest of the last 128 values. At least one must have been learnt."""
        return max(self._values)

    def newest(self, count: int) -> list[float]:
        """Return the values learnt last, oldest first, at most ``count`` and 128."""
        return list(self._values)[-count:]

    def learn(self, value: float) -> None:
        """Take a finite value that belongs to the usual behaviour."""
        if self._values:
            self._residuals.append(value - self.location())
        self._values.append(value)
        self._since_location += 1
        self._since_old += 1
        self._since_scale += 1
        self.points += 1

    def learn_block(self, values: Sequence[float]) -> None:
        """Take some finite values at once: what ``learn`` says of each, at a fraction of the cost."""
        location = self.location() if self._values else values[0]
        self._residuals.extend([value - location for value in values])
        self._values.extend(values)
        self._since_location += len(values)
        self._since_old += len(values)
        self._since_scale += len(values)
        self.points += len(values)

    def refresh(self) -> None:
        """Take all medians again, from the values of now, and the scale if it is 8 values old (32 in an old run).

        At least one value must have been learnt.
        """
        if self._since_old:
            self._locate(old=True)
        if self._since_scale >= self._scale_every() // 2:
            self._scale = self._measure()
            self._since_scale = 0

    def restart(self, values: Sequence[float]) -> None:
        """Forget everything and learn ``values`` instead: a new level was accepted."""
        points = self.points
        self.__init__()  # type: ignore[misc]  # the fresh state, spelled once
        for value in values:
            self.learn(value)
        self.points = max(points, self.points)
        if self._values:
            self._since_scale = SCALE_EVERY_POINTS
            self.refresh()

    def shift(self, by: float) -> None:
        """Move the level by ``by`` and keep the scale: the run goes on a little higher or lower than before."""
        self._values = deque([value + by for value in self._values], maxlen=WINDOW_POINTS)
        self._locate(old=True)

    def _scale_every(self) -> int:
        return LOCATION_EVERY_POINTS if self.points <= YOUNG_POINTS else SCALE_EVERY_POINTS

    def _locate(self, old: bool = False) -> None:
        """Take the fast medians, and the slow one where it is due: it hardly moves and is the costly one."""
        values = list(self._values)
        if old or self.points <= YOUNG_POINTS or self._since_old >= SCALE_EVERY_POINTS:
            self._old = median(values)
            self._since_old = 0
        self._newest = median(values[-NEWEST_POINTS:])
        self._location = min(self._old, median(values[-RECENT_POINTS:]), self._newest)
        self._since_location = 0

    def _measure(self) -> float:
        floor = self.least_scale()
        if not self._residuals:
            return floor
        young = self.points <= YOUNG_POINTS and len(self._residuals) > YOUNG_SCALE_POINTS
        ordered = sorted(list(self._residuals)[-YOUNG_SCALE_POINTS:] if young else self._residuals)
        middle = ordered[len(ordered) // 2]
        deviation = median([abs(residual - middle) for residual in ordered])
        upper = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))] - middle
        lagged = max(MAD_TO_SIGMA * deviation, upper / Q90_SIGMAS)
        if self._old > self._location:
            lagged = min(lagged, max(TREND_FACTOR * self._centred(), lagged - 0.5 * (self._old - self._location)))
        return max(lagged, floor)

    def _centred(self) -> float:
        """Return the spread around the medians of the points on both sides: it holds no slope of the curve."""
        values = list(self._values)[-YOUNG_SCALE_POINTS - 2 * CENTRED_SIDE :]
        if len(values) < YOUNG_SCALE_POINTS // 2:
            return math.inf
        side, every = CENTRED_SIDE, np.array(values)
        others = every.take(_OTHERS[: len(values) - 2 * side])
        others.sort(axis=1)
        ordered = np.abs(every[side:-side] - (0.5 * others[:, side - 1] + 0.5 * others[:, side]))
        ordered.sort()
        middle, upper = float(ordered[len(ordered) // 2]), float(ordered[int(0.8 * len(ordered))])
        return max(MAD_TO_SIGMA * middle, upper / Q90_SIGMAS)

    def _step_of_values(self, location: float) -> float:
        """Return the step in which the values move: bf16's, or the smallest gap where they are coarser (integers)."""
        bf16 = 2.0 ** (math.floor(math.log2(location)) - BF16_MANTISSA_BITS) if location > 0 else 0.0
        distinct = set(self._values)
        if len(distinct) > WINDOW_POINTS // 4:
            return bf16  # the smallest gap of so many values is far below their spread
        gaps = [b - a for a, b in pairwise(sorted(distinct))]
        return max(bf16, min(gaps, default=0.0))
