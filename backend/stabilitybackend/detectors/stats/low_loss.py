"""Says whether the loss after a fork is too low to be true: lower than the weights can be that were loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from .before_fork import LEVEL_POINTS, BeforeFork, paired
from .fingerprint import correlation
from .robust import MEDIAN_ERROR, median

#: Points after the fork that are needed.
LOW_POINTS = 12
#: Too low against the branch that was left: by so many standard errors of the paired difference.
PAIRED_ERRORS = 3.0
#: Too low against the level before the fork: so many standard errors with such pairs, and without any.
LEVEL_ERRORS, LEVEL_ERRORS_ALONE = 3.0, 5.0
#: The branch that was left explains a low loss unless the new one lies below it by this part of what is missing.
SAME_DROP = 0.4
#: A loss that falls is expected to go on falling, this much faster than it did: only what lies below that is too low.
FALL_MARGIN = 1.5

__all__ = ["LOW_POINTS", "LowLoss", "falsely_low"]


class LowLoss(NamedTuple):
    """A loss that is too low.

    Args:
        level: where it should be.
        low: where it is.
        evidence: facts behind it.
    """

    level: float
    low: float
    evidence: dict[str, Any]


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
    slope = FALL_MARGIN * min(0.0, before.slope)
    missing = [before.level + slope * (LEVEL_POINTS / 2 + i) - loss for i, (_, loss) in enumerate(after)]
    drop, least = median(missing), min_drop * abs(before.level)
    # It is low from the first batch on, or it is no matter of the resume.
    if drop < least or median(missing[: LOW_POINTS // 2]) < 0.5 * drop:
        return None
    errors = drop / (MEDIAN_ERROR * before.drag * before.sigma * math.sqrt(1 / len(after) + 1 / LEVEL_POINTS))
    low = median([loss for _, loss in after[-LOW_POINTS:]])
    alone = errors > LEVEL_ERRORS_ALONE / by and drop > 2 * least
    pair = paired(before, after)
    if pair is None:  # no branch, or one that was sick: nothing to compare with
        return LowLoss(before.level, low, {}) if alone else None
    above, error = pair
    clear = errors > LEVEL_ERRORS / by and -above > max(PAIRED_ERRORS / by * error, least)
    # A branch that was as low at the same steps says that it is the data, and right.
    if not clear and not (alone and -above > SAME_DROP * drop):
        return None
    pairs = [(loss, before.left[at]) for at, loss in after if at in before.left]
    facts = {"below_left_branch": above, "paired_errors": -above / error, "same_order_r": _same_order(pairs)}
    return LowLoss(median([old for _, old in pairs]), low, facts)


def _same_order(pairs: Sequence[tuple[float, float]]) -> float:
    """Return r of two branches over the same steps without their trends: 1 is the same data in the same order."""
    half = len(pairs) // 2
    flat: list[list[float]] = []
    for branch in ([new for new, _ in pairs], [old for _, old in pairs]):
        slope = (median(branch[half:]) - median(branch[:half])) / (len(branch) - half)
        flat.append([value - slope * i for i, value in enumerate(branch)])
    return round(correlation(*flat), 3)
