"""How much neighbouring points of a loss resemble each other, measured over the run's own past."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from .fingerprint import correlation
from .robust import MAD_TO_SIGMA, median

#: Each point is measured from the mean of so many on both sides: the slope of the curve is none of its noise.
SIDE_POINTS = 16
#: Points of a stretch that is measured at once, and how many of them are new: the others are its two sides.
STRETCH_POINTS = 96
NEW_POINTS = STRETCH_POINTS - 2 * SIDE_POINTS
#: Outliers are cut at so many sigmas: they are to be judged by this, and must not speak for it.
CUT_SIGMAS = 3.0
#: Stretches that count; older ones fade.
STRETCHES = 64
#: A mean of points that resemble their neighbours is less certain than one of as many others: at most so much less.
MAX_DRAG = 3.0

__all__ = ["NEW_POINTS", "STRETCH_POINTS", "Alike", "drag_of"]


def drag_of(neighbours: float) -> float:
    """Return by how much the error of a mean is larger than that of as many independent points, 1 to MAX_DRAG.

    Args:
        neighbours: their correlation. The factor is that of an autoregression of order 1: Box, Jenkins, Reinsel and
            Ljung, Time Series Analysis, chapter 2.1.

    Example:
        >>> drag_of(0.0), drag_of(0.6), drag_of(-0.3)
        (1.0, 2.0, 1.0)
    """
    alike = min(max(0.0, neighbours), (MAX_DRAG**2 - 1) / (MAX_DRAG**2 + 1))
    return math.sqrt((1 + alike) / (1 - alike))


@dataclass(slots=True)
class Alike:
    """The correlation of neighbouring points, the mean of many short stretches.

    Batches drawn at random have none. In text that is read in its order, or in blocks of one source, neighbours share
    documents: a high point is followed by others, and many points tell less than as many independent ones.

    Example:
        >>> import random
        >>> rng, shuffled, in_order, loss = random.Random(1), Alike(), Alike(), 0.0
        >>> for _ in range(20):
        ...     shuffled.add([rng.gauss(2, 0.1) for _ in range(96)])
        ...     in_order.add([loss := 0.7 * loss + rng.gauss(0, 0.1) for _ in range(96)])
        >>> round(shuffled.neighbours, 1), round(in_order.neighbours, 1)
        (0.0, 0.6)
    """

    _sum: float = 0.0
    _stretches: float = 0.0

    @property
    def neighbours(self) -> float:
        """The correlation less its standard error, 0 to 1; 0 while nothing is known, where neighbours rather differ."""
        if not self._stretches:
            return 0.0
        return max(0.0, self._sum / self._stretches - 1 / math.sqrt(NEW_POINTS * self._stretches))

    def add(self, values: Sequence[float]) -> None:
        """Take the newest STRETCH_POINTS finite values, of which NEW_POINTS were not the middle of one before."""
        width = 2 * SIDE_POINTS + 1
        sums = list(accumulate(values, initial=0.0))
        missed = [
            value - (after - before) / width
            for value, before, after in zip(values[SIDE_POINTS:], sums, sums[width:], strict=False)
        ]
        most = CUT_SIGMAS * MAD_TO_SIGMA * median([abs(one) for one in missed])
        cut = [max(-most, min(one, most)) for one in missed]
        self._sum += correlation(cut[:-1], cut[1:])
        self._stretches += 1
        if self._stretches > STRETCHES:
            self._sum, self._stretches = self._sum / 2, self._stretches / 2
