"""Says when an incident may have begun: a climb is seen late, so its onset is a band and not a step. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from stabilitybackend.judging.detection.attribution import CONFIRMED_SIGMAS, LOSS_FLOOR, usual
from stabilitybackend.judging.detectors.stats.robust import MEDIAN_ERROR
from stabilitybackend.judging.detectors.stats.together import MEAN_ERRORS

__all__ = ["BAND_POINTS", "onset_band"]

#: Points before the onset that are looked at for a climb that began earlier.
BAND_POINTS = 512
#: Points of a block whose median is compared; the error of a median of so many is 0.44 sigma.
BLOCK_POINTS = 8
BLOCK_ERROR = MEDIAN_ERROR / math.sqrt(BLOCK_POINTS)
#: A climb that grows with the square of the steps in a loss that falls is hidden for as long as it then takes to be
#: back at where it began; noise hides it for as long again.
HIDDEN_TIMES = 2

Points = Sequence[tuple[int, float]]


def onset_band(
    before: Points,
    since: Points,
    onset_step: int,
    seen_step: int,
    found: tuple[float, float] | None = None,
    gradients: Points = (),
) -> list[int] | None:
    """Return the first and the last step at which an incident may have begun, both inclusive; None where it is exact.

    It is exact where the first point is already far outside the noise. Otherwise it began after the loss was last as
    low as ever. What took so many steps from there until it was seen may have been hidden for HIDDEN_TIMES as many
    before: in the noise, and by the fall of the loss. Whoever goes back has to go back further than that. Weights that
    grow show in the gradient norm first: it may have begun where that one was last as low as ever, if that is earlier.

    Args:
        before: (step, value) with rising steps, before the onset; BAND_POINTS are enough.
        since: from the onset on, up to where it was seen.
        onset_step, seen_step: of the incident.
        found: level and robust sigma that the detector measured. It follows a loss that falls steeply, where the spread
            of the points before is mostly the fall.
        gradients: the gradient norm over the same steps, before and since; empty where it is not logged.
    """
    calm = usual((value for _, value in before[-4 * BLOCK_POINTS :]), LOSS_FLOOR)
    first = next((value for _, value in since), math.nan)
    known = [one for one in (calm, found) if one is not None]
    if calm is None or not math.isfinite(first) or any(first - at >= CONFIRMED_SIGMAS * wide for at, wide in known):
        return None
    late = min(onset_step, _last_low(_blocks([*before, *since]), calm[1], onset_step))
    early = max(0, min(late - HIDDEN_TIMES * (seen_step - late), _rose(gradients, onset_step, seen_step)))
    return [early, onset_step] if early < onset_step else None


def _rose(gradients: Points, onset_step: int, seen_step: int) -> int:
    """Return the last step up to which the gradient norm was as low as ever, the onset where it says nothing.

    Ever: it has to have been calm for as long as it has been higher, and no longer than that: one that rises all the
    time rises for itself, and how low it was when the run began means nothing. It is higher where half of what came
    since is above all that came before.
    """
    calm = usual([value for step, value in gradients if step < onset_step][-4 * BLOCK_POINTS :], LOSS_FLOOR)
    if calm is None:
        return onset_step
    blocks = _blocks(gradients)
    for at, (first, _) in enumerate(blocks):
        rose = _last_low(blocks[at:], calm[1], seen_step)
        since = [middle for step, middle in blocks if step > rose]
        if since and seen_step - rose <= rose - first and median(since) > max(m for s, m in blocks[at:] if s <= rose):
            return min(rose, onset_step)
    return onset_step


def _blocks(points: Points) -> Points:
    """Return (last step, median) of each block of finite values."""
    finite = [(step, value) for step, value in points if math.isfinite(value)]
    blocks = [finite[at : at + BLOCK_POINTS] for at in range(0, len(finite) - BLOCK_POINTS + 1, BLOCK_POINTS)]
    return [(block[-1][0], median(value for _, value in block)) for block in blocks]


def _last_low(blocks: Points, spread: float, otherwise: int) -> int:
    """Return the last step up to which the blocks were as low as ever."""
    if len(blocks) < 2:
        return otherwise
    limit = min(middle for _, middle in blocks) + MEAN_ERRORS * math.sqrt(2) * BLOCK_ERROR * spread
    return max(step for step, middle in blocks if middle <= limit)
