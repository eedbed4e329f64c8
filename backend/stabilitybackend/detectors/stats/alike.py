"""How much neighbouring points of a loss resemble each other, measured over the run's own past."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .fingerprint import correlation
from .robust import MAD_TO_SIGMA, median

#: Points that are measured at once; half of them are new. What neighbours share may last for long.
STRETCH_POINTS = 128
NEW_POINTS = STRETCH_POINTS // 2
#: Outliers are cut at so many sigmas: they are to be judged by this, and must not speak for it.
CUT_SIGMAS = 3.0
#: Stretches that count; older ones fade.
STRETCHES = 64
#: Neighbours are taken for as alike as may be by chance, this many standard errors above what was measured.
LIKELY_ERRORS = 2.0
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
    documents: a high point is followed by others, and many points tell less than as many independent ones. A young run
    can't know which of both it is; so it asks for more than an old one.

    Example:
        >>> import random
        >>> rng, shuffled, in_order, loss = random.Random(1), Alike(), Alike(), 0.0
        >>> for _ in range(20):
        ...     shuffled.add([rng.gauss(2, 0.1) for _ in range(128)])
        ...     in_order.add([loss := 0.7 * loss + rng.gauss(0, 0.1) for _ in range(128)])
        >>> round(shuffled.neighbours, 1), round(in_order.neighbours, 1)
        (0.0, 0.7)
    """

    _sum: float = 0.0
    _stretches: float = 0.0

    @property
    def is_known(self) -> bool:
        """Whether anything was measured."""
        return self._stretches > 0

    @property
    def neighbours(self) -> float:
        """The largest correlation that is likely, 0 to 1; 0 while nothing is known, where neighbours rather differ."""
        if not self._stretches:
            return 0.0
        likely = self._sum / self._stretches + LIKELY_ERRORS / math.sqrt(NEW_POINTS * self._stretches)
        return min(max(0.0, likely), 1.0)

    def add(self, values: Sequence[float], least_sigma: float = 0.0) -> None:
        """Take the newest finite values, STRETCH_POINTS of them where there are so many, NEW_POINTS of them new.

        Args:
            values: oldest first.
            least_sigma: what the noise counts as at least; the rest of it is taken to be each point's own.
        """
        missed = _beside_a_fall(values)
        sigma = MAD_TO_SIGMA * median([abs(one) for one in missed])
        cut = [max(-CUT_SIGMAS * sigma, min(one, CUT_SIGMAS * sigma)) for one in missed]
        shared = min(1.0, sigma / least_sigma) ** 2 if least_sigma else 1.0
        self._sum += shared * correlation(cut[:-1], cut[1:])
        self._stretches += 1
        if self._stretches > STRETCHES:
            self._sum, self._stretches = self._sum / 2, self._stretches / 2


def _beside_a_fall(values: Sequence[float]) -> list[float]:
    """Return by how much values miss the curve that comes nearest to them among those that never rise.

    Learning makes a loss fall, steeply at first: that is no resemblance of its batches. Isotonic regression by pooling
    neighbours that rise (Ayer, Brunk, Ewing, Reid and Silverman, Annals of Mathematical Statistics 1955).

    Example:
        >>> _beside_a_fall([9.0, 5.0, 3.0, 4.0, 2.0])
        [0.0, 0.0, -0.5, 0.5, 0.0]
    """
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] < mean:
            before, points = pools.pop()
            mean, count = (before * points + mean * count) / (points + count), points + count
        pools.append((mean, count))
    curve = [mean for mean, count in pools for _ in range(count)]
    return [value - fitted for value, fitted in zip(values, curve, strict=True)]
