"""Says whether the loss after a fork is too low to be true: lower than the weights can be that were loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .before_fork import LEVEL_POINTS, BeforeFork, paired
from .fingerprint import DIFFERS, correlation, sureness
from .robust import MEDIAN_ERROR, median

#: Points after the fork that are needed.
LOW_POINTS = 12
#: Too low against the branch that was left: by so many standard errors of the paired difference.
PAIRED_ERRORS = 3.0
#: Too low against the level before the fork: so many standard errors with such pairs, and without any.
LEVEL_ERRORS, LEVEL_ERRORS_ALONE = 3.0, 5.0
#: A correlation of two branches at the same steps that is no chance: one in 30,000.
SAME_SIGMAS = 4.0

#: A low loss is followed for so many points; then it is the usual one. By chance its end is seen once in as many.
PATIENCE_POINTS = 2_048
#: Points up there that the end takes at least: a spike out of a low loss is none.
BACK_POINTS = 9

__all__ = ["BACK_POINTS", "LOW_POINTS", "PATIENCE_POINTS", "WayBack", "falsely_low"]


class LowLoss(NamedTuple):
    """A loss that is too low.

    Args:
        level: where it should be.
        low: where it is.
        evidence: facts behind it.
        same: the batches are, one by one, those of the branch that was left at the same steps.
    """

    level: float
    low: float
    evidence: dict[str, Any]
    same: bool = False


def falsely_low(
    before: BeforeFork, after: Sequence[tuple[int, float]], *, min_drop: float, by: float
) -> LowLoss | None:
    """Compare the first losses after a fork with those before it and with the branch that was left.

    Args:
        before: what was known at the fork.
        after: (step, loss) since the fork, LOW_POINTS at least.
        min_drop: smallest amount that counts, as a fraction of the level.
        by: sensitivity, > 0.
    """
    slope = min(0.0, before.slope)  # a loss that falls is expected to go on falling
    missing = [before.level + slope * (LEVEL_POINTS / 2 + i) - loss for i, (_, loss) in enumerate(after)]
    drop, least = median(missing), min_drop * abs(before.level)
    # It is low from the first batch on, or it is no matter of the resume.
    if drop < least or median(missing[: LOW_POINTS // 2]) < 0.5 * drop:
        return None
    errors = drop / (MEDIAN_ERROR * before.drag * before.sigma * math.sqrt(1 / len(after) + 1 / LEVEL_POINTS))
    low = median([loss for _, loss in after[-LOW_POINTS:]])
    pair = paired(before, after)
    if pair is None:  # no branch, or one that was sick
        return LowLoss(before.level, low, {}) if errors > LEVEL_ERRORS_ALONE / by and drop > 2 * least else None
    above, error = pair
    # A branch that was as low at the same steps says that it is the data, and right.
    if errors <= LEVEL_ERRORS / by or -above <= max(PAIRED_ERRORS / by * error, least):
        return None
    pairs = [(loss, before.left[at]) for at, loss in after if at in before.left]
    r, same = _same_order(pairs)
    facts = {"below_left_branch": above, "paired_errors": -above / error, "same_order_r": r}
    level = median([old for _, old in pairs])
    return LowLoss(level, level + above if same else low, facts, same)


def _same_order(pairs: Sequence[tuple[float, float]]) -> tuple[float, bool]:
    """Return r of two branches over the same steps without their trends, and whether it proves the same data in order.

    Sources that alternate agree a few steps beside as well, and prove nothing.
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
    """Watches a low loss until it is proved, against its own noise, to be back at its level.

    Each point says how much likelier it is up there than down here; these logarithms are added up from where their sum
    was lowest: Page's test (Continuous inspection schemes, Biometrika 1954), optimal for a change at an unknown point.
    It is wrong less than once in PATIENCE_POINTS where their logarithm is asked for (Lorden 1971). A median of a fixed
    number of points would be half way back by chance every few hundred points where the drop is not twice the noise.
    The few points that showed the drop place it badly, so that the points down here go on to say where that is.

    Attributes:
        level: where the loss should be. low: where it is, the mean of ``known`` points; below ``level``.
        sigma: noise of a point. known: points that ``low`` is from.
        first: step from which on the points speak for the level. points: since then. proof: sum of the logarithms.
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
        most = max(0.5 * drop, self.sigma)  # an outlier says no more than a point that is up there, or a sigma off
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
