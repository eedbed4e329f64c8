"""A loss after a fork that is lower than the loaded weights allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .before_fork import LEVEL_POINTS, BeforeFork, paired
from .fingerprint import DIFFERS, correlation, sureness
from .robust import MEDIAN_ERROR, median

#: Points needed after the fork.
LOW_POINTS = 12
#: Least distance below the discarded branch, standard errors of the paired difference.
PAIRED_ERRORS = 3.0
#: Least distance below the level before the fork, standard errors: with such pairs, and without any.
LEVEL_ERRORS, LEVEL_ERRORS_ALONE = 3.0, 5.0
#: A correlation of two branches at the same steps beyond chance: one in 30,000.
SAME_SIGMAS = 4.0

#: Points for which a low loss is followed; then it is the usual one. By chance its end is seen once in as many.
PATIENCE_POINTS = 2_048
#: Fewest points of its end: a spike out of a low loss is none.
BACK_POINTS = 9

__all__ = ["BACK_POINTS", "LOW_POINTS", "PATIENCE_POINTS", "WayBack", "falsely_low"]


class LowLoss(NamedTuple):
    """A loss that is too low.

    Args:
        level: expected.
        low: actual.
        evidence: facts behind it.
        same: the batches equal, one by one, those of the discarded branch at the same steps.
    """

    level: float
    low: float
    evidence: dict[str, Any]
    same: bool = False


def falsely_low(
    before: BeforeFork, after: Sequence[tuple[int, float]], *, min_drop: float, by: float
) -> LowLoss | None:
    """Compare the first losses after a fork with those before it and with the discarded branch.

    Args:
        before: state at the fork.
        after: (step, loss) since the fork, LOW_POINTS at least.
        min_drop: smallest amount that counts, as a fraction of the level.
        by: sensitivity, > 0.
    """
    slope = min(0.0, before.slope)  # a loss that falls is expected to go on falling
    missing = [before.level + slope * (LEVEL_POINTS / 2 + i) - loss for i, (_, loss) in enumerate(after)]
    drop, least = median(missing), min_drop * abs(before.level)
    # Low from the first batch on, or unrelated to the resume.
    if drop < least or median(missing[: LOW_POINTS // 2]) < 0.5 * drop:
        return None
    errors = drop / (MEDIAN_ERROR * before.drag * before.sigma * math.sqrt(1 / len(after) + 1 / LEVEL_POINTS))
    low = median([loss for _, loss in after[-LOW_POINTS:]])
    pair = paired(before, after)
    if pair is None:  # no branch, or a diverged one
        return LowLoss(before.level, low, {}) if errors > LEVEL_ERRORS_ALONE / by and drop > 2 * least else None
    above, error = pair
    # A branch as low at the same steps proves the data, and correct ones.
    if errors <= LEVEL_ERRORS / by or -above <= max(PAIRED_ERRORS / by * error, least):
        return None
    pairs = [(loss, before.left[at]) for at, loss in after if at in before.left]
    r, same = _same_order(pairs)
    facts = {"below_left_branch": above, "paired_errors": -above / error, "same_order_r": r}
    level = median([old for _, old in pairs])
    return LowLoss(level, level + above if same else low, facts, same)


def _same_order(pairs: Sequence[tuple[float, float]]) -> tuple[float, bool]:
    """Return r of two branches over the same steps without their trends, and whether it proves the same data in order.

    Alternating sources agree a few steps away as well, and prove nothing.
    """
    half, count = len(pairs) // 2, len(pairs)
    flat: list[list[float]] = []
    for branch in ([new for new, _ in pairs], [old for _, old in pairs]):
        slope = (median(branch[half:]) - median(branch[:half])) / (count - half)
        flat.append([value - slope * i for i, value in enumerate(branch)])
    new, old = flat
    r, sides = correlation(new, old), range(1, count // 3 + 1)
    beside = max(max(correlation(new[by:], old[:-by]), correlation(new[:-by], old[by:])) for by in sides)
    sure = sureness(r, count)
    return round(r, 3), sure > SAME_SIGMAS and sure - sureness(beside, count) > DIFFERS


@dataclass(slots=True)
class WayBack:
    """Detects the return of a low loss to its level, against its own noise.

    Each point adds the logarithm of its likelihood up there over that down here, from the minimum of the sum on: Page's
    test (Continuous inspection schemes, Biometrika 1954), optimal for a change at an unknown point. It is wrong less
    than once in PATIENCE_POINTS with their logarithm as the limit (Lorden 1971). A median of a fixed number of points
    would be half way back by chance every few hundred points where the drop is not twice the noise. The few points of
    the drop locate it badly, so that the points down here refine it.

    Attributes:
        level: expected loss. low: actual one, the mean of ``known`` points; below ``level``.
        sigma: noise of a point. known: points behind ``low``.
        first: first step of the evidence for the level. points: since then. proof: sum of the logarithms.
        lows: sum of these points, as they would count down here.

    Example:
        >>> way = WayBack(level=2.5, low=2.3, sigma=0.1)
        >>> [step for step in range(100) if way.add(step, 2.3 if step < 50 or step == 20 else 2.5)][0], way.first
        (58, 50)
    """

    level: float
    low: float
    sigma: float
    known: int = LOW_POINTS
    first: int = 0
    points: int = 0
    proof: float = 0.0
    lows: float = 0.0

    def add(self, step: int, loss: float) -> bool:
        """Take the next point; return whether the loss is back, since ``first``."""
        drop, middle = self.level - self.low, 0.5 * (self.level + self.low)
        most = max(0.5 * drop, self.sigma)  # an outlier counts no more than a point that is up there, or a sigma off
        off = max(-most, min(loss - middle, most))
        if not self.points:
            self.first = step
        reach = middle + most - self.low  # as far on the other side, so that the mean stays where it is
        self.points, self.lows = self.points + 1, self.lows + self.low + max(-reach, min(loss - self.low, reach))
        self.proof += off * drop / self.sigma**2
        if self.proof <= 0:
            low = (self.known * self.low + self.lows) / (self.known + self.points)
            self.known, self.low = self.known + self.points, min(low, self.level)
            self.points, self.proof, self.lows = 0, 0.0, 0.0
        return self.points >= BACK_POINTS and self.proof > math.log(PATIENCE_POINTS)
