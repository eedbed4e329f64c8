"""State of a run's loss at a fork step: level, noise, trend, and the discarded branch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stabilitybackend.judging.detectors.engine.context import Context

from .fingerprint import correlation
from .levels import Level, level_of
from .robust import MEDIAN_ERROR, MIDMEAN_ERROR, median, midmean

#: Points before a fork, the newest of them for the level itself; fewer than LEAST: no state.
BEFORE_POINTS = 64
LEVEL_POINTS = 16
LEAST_POINTS = 12
#: Points after a fork judged one by one; so many of the last FORK_WINDOW that far away make an event, as odd batches
#: are single. IDEFICS' bumps were within 50 points of the resume.
FORK_POINTS = 50
FORK_CONFIRM, FORK_WINDOW = 3, 5
#: Smallest sigma, as a fraction of the level: a smooth curve must not make a wiggle look large.
SIGMA_FLOOR = 0.002
#: Factor between two learning rates or gradient norms that are far apart.
FAR = 2.0
#: A learning rate off by this fraction, a distant gradient norm, a share of the data off by these sigmas and this
#: fraction are possible causes.
LR_DIFFERS, SHARE_SIGMAS, SHARE_FRACTION = 0.1, 4.0, 0.03
#: Standard errors of points above the past, or above another branch, taken together: reached by none of 2,600 forks put
#: into healthy public logs.
TOGETHER_ERRORS = 4.5
#: Two branches on the same data differ by less than this part of the noise of one.
SAME_DATA = 0.4
#: Declared changes with one of these words excuse another loss.
EXCUSING = ("seed", "skip", "data", "mix", "batch")
#: Declared changes that are kept.
MAX_CHANGES = 16
#: Largest loss of certainty of a mean of correlated points, as a factor.
MAX_DRAG = 3.0

__all__ = [
    "BEFORE_POINTS",
    "FAR",
    "FORK_CONFIRM",
    "FORK_POINTS",
    "FORK_WINDOW",
    "LEAST_POINTS",
    "LEVEL_POINTS",
    "LR_DIFFERS",
    "SIGMA_FLOOR",
    "BeforeFork",
    "above_left",
    "before_fork",
    "differences",
    "drifted",
    "far",
    "paired",
    "rate_undone",
    "small_rise",
]


@dataclass(slots=True)
class BeforeFork:
    """State at a fork step.

    Args:
        step: first step after the fork.
        text: the fork, one plain clause.
        level, sigma: of the loss, from the newest points up to the fork step.
        slope: of the loss, per point.
        past: the newest losses up to the fork step, oldest first.
        drag: factor on errors of medians by correlated neighbours, 1 to MAX_DRAG.
        left: step -> loss of the discarded branch.
        changes: declared ones.
        lr, grad_norm: the learning rate at the fork step and the usual gradient norm, NaN for none.
    """

    step: int
    text: str
    level: float
    sigma: float
    slope: float
    past: list[float]
    drag: float
    left: dict[int, float]
    changes: dict[str, Any]
    lr: float
    grad_norm: float

    @property
    def lr_scale(self) -> float:
        """Declared factor of the learning rate, 1 for none."""
        scale = self.changes.get("lr_scale")
        return float(scale) if isinstance(scale, int | float) and 0 < scale < math.inf else 1.0

    def declared(self) -> list[str]:
        """Return the declared changes that excuse another loss, each as one clause."""
        named = [name for name, value in self.changes.items() if value and any(word in name for word in EXCUSING)]
        return [f"declared: {name} = {self.changes[name]}" for name in named]

    def lr_differs(self, lr: float, by: float) -> bool:
        """Return whether ``lr`` is further than the fraction ``by`` from the declared one."""
        expected = self.lr * self.lr_scale
        return math.isfinite(lr) and expected > 0 and abs(lr / expected - 1) > by


def drag_of(neighbours: float) -> float:
    """Return the factor on the error of a mean of correlated points, 1 to MAX_DRAG.

    Args:
        neighbours: their correlation. The factor is that of an autoregression of order 1: Box, Jenkins, Reinsel and
            Ljung, Time Series Analysis, chapter 2.1.

    Example:
        >>> drag_of(0.0), drag_of(0.6), drag_of(-0.3)
        (1.0, 2.0, 1.0)
    """
    alike = min(max(0.0, neighbours), (MAX_DRAG**2 - 1) / (MAX_DRAG**2 + 1))
    return math.sqrt((1 + alike) / (1 - alike))


def before_fork(
    step: int,
    text: str,
    data: Mapping[str, Any],
    losses: Sequence[float],
    metric: str | None,
    context: Context,
    left: int,
) -> BeforeFork | None:
    """Return the state at a fork step, None for too few points.

    Args:
        step, text, data: of the fork's mark.
        losses: the newest losses up to the fork step, oldest first.
        metric: name of the loss.
        context: of the run.
        left: points kept of the discarded branch.
    """
    if len(losses) < LEAST_POINTS:
        return None
    half = len(losses) // 2
    slope = (median(losses[half:]) - median(losses[:half])) / (len(losses) - half)
    flat = [value - slope * i for i, value in enumerate(losses)]
    level = median(losses[-LEVEL_POINTS:])
    sigma = max(level_of(flat)[1], SIGMA_FLOOR * abs(level))
    branch: Iterable[tuple[int, float]] = data.get("left_behind", {}).get(metric, [])
    return BeforeFork(
        step, text, level, sigma, slope, list(losses), drag_of(correlation(flat[:-1], flat[1:])),
        left={at: value for at, value in list(branch)[:left] if math.isfinite(value)},
        changes={str(name): value for name, value in list((data.get("changes") or {}).items())[:MAX_CHANGES]},
        lr=context.lr.before(step),
        grad_norm=context.grad_norm.usual(step),
    )  # fmt: skip


def paired(before: BeforeFork, after: Sequence[tuple[int, float]]) -> tuple[float, float] | None:
    """Return the distance of the losses since a fork above the discarded branch at the same steps, and its error.

    Same data on both branches cancels the noise of the batches. None for fewer than LEAST_POINTS common steps, or a
    damaged discarded branch.
    """
    pairs = [(loss, before.left[at]) for at, loss in after if at in before.left]
    if len(pairs) < LEAST_POINTS or median([old for _, old in pairs]) > before.level + 3 * before.sigma:
        return None
    above, sigma = level_of([loss - old for loss, old in pairs])
    if sigma > SAME_DATA * before.sigma:  # another order: the difference has the noise of both
        sigma = max(sigma, 2**0.5 * before.sigma)
    return above, float(MEDIAN_ERROR * max(sigma, 0.5 * SIGMA_FLOOR * abs(before.level)) / len(pairs) ** 0.5)


def above_left(before: BeforeFork, out: Sequence[tuple[int, float]], since: Sequence[tuple[int, float]]) -> list[float]:
    """Return the distances of the losses above the discarded branch, at the same steps.

    Args:
        before: state at the fork.
        out: (step, loss) of the high points, if most of them have such a step.
        since: (step, loss) since the fork otherwise, at least LEAST_POINTS: equal branches until then prove a complete
            restore.
    """
    high = [loss - before.left[at] for at, loss in out if at in before.left]
    if 2 * len(high) > len(out):
        return high
    older = [loss - before.left[at] for at, loss in since if at in before.left]
    return older if len(older) >= LEAST_POINTS else []


def small_rise(
    before: BeforeFork, after: Sequence[tuple[int, float]], *, drift: float, least: float, by: float
) -> Sequence[tuple[int, float]]:
    """Return the newest points since a fork that lie above the run's past together; none for none.

    Groups of 12, 24, 48 are compared with as many steps of the discarded branch, and with the newest 16 and 64 points
    before the fork: a falling loss is below both, at any slope, so that a fall needs no line through it. Correlated
    neighbours count as fewer points.

    Args:
        before: state at the fork.
        after: (step, loss) since the fork, oldest first.
        drift: part of a rise from before the fork.
        least: smallest rise that counts.
        by: one over the sensitivity.
    """
    count = LEAST_POINTS
    while count <= len(after):
        newest = after[-count:]
        now = midmean([loss for _, loss in newest]) - drift
        above, error = paired(before, newest) or (0.0, math.inf)
        # On another order of the data the other branch is no better a measure than the level.
        same_data = error < MEDIAN_ERROR * SAME_DATA * before.sigma / count**0.5
        if same_data and now > before.level and above > max(TOGETHER_ERRORS * by * error, least):
            return newest
        for past in (before.past[-LEVEL_POINTS:], before.past):
            error = MIDMEAN_ERROR * before.drag * before.sigma * (1 / count + 1 / len(past)) ** 0.5
            if now - midmean(past) > max(TOGETHER_ERRORS * by * error, least):
                return newest
        count *= 2
    return ()


def differences(before: BeforeFork, context: Context, shares: Mapping[str, tuple[Level, list[float]]]) -> list[str]:
    """Return differences from before a fork, the likeliest cause first, each as one clause.

    Args:
        shares: metric -> its level before the fork, and its values since then.
    """
    found, lr = [], context.lr.last
    if before.lr_differs(lr, LR_DIFFERS):
        declared = f", times {before.lr_scale:g} as declared" if before.lr_scale != 1 else ""
        found.append(f"the learning rate is {lr:.4g}; at the fork step it was {before.lr:.4g}{declared}")
    grads = [value for at, value in context.grad_norm.values if at >= before.step]
    if grads and far(median(grads), before.grad_norm):
        change = f"the gradient norm went from {before.grad_norm:.4g} to {median(grads):.4g}"
        found.append(f"{change}: was the optimizer's state restored?")
    for name, ((level, sigma), newest) in shares.items():
        now = median(newest)
        if abs(now - level) > max(SHARE_SIGMAS * sigma / len(newest) ** 0.5, SHARE_FRACTION * abs(level)):
            found.append(f"{name} went from {level:.4g} to {now:.4g}: was the sampler's state restored?")
    return found


def drifted(shares: Mapping[str, tuple[Level, list[float]]]) -> list[str]:
    """Return the shares all of whose values since the fork lie far on one side of their level."""
    found = []
    for name, ((level, sigma), newest) in shares.items():
        away = max(SHARE_SIGMAS * sigma, SHARE_FRACTION * abs(level)) * (2 if len(newest) == 1 else 1)
        if newest and (min(newest) > level + away or max(newest) < level - away):
            found.append(f"{name} drifted")
    return found


def far(value: float, usual: float) -> bool:
    """Return whether a value is at least FAR times off; unknown ones are not.

    Example:
        >>> far(3e-5, 3e-4), far(2.9e-4, 3e-4), far(0.0, 3e-4), far(float("nan"), 3e-4)
        (True, False, True, False)
    """
    if not math.isfinite(value) or not usual > 0 or value < 0:
        return False
    return not 1 / FAR < value / usual < FAR


def rate_undone(rate: float, last: float, times: float) -> bool:
    """Return whether a rate suddenly moved back by more than half of its deviation, in its logarithm.

    So returns a rate to its continued schedule; a decay, however far, stays off.

    Args:
        rate, last: the newest two.
        times: factor on the expected rate, not 1.

    Example:
        >>> rate_undone(2e-5, 2e-4, times=10.0), rate_undone(1.9e-4, 2e-4, times=10.0), rate_undone(1e-4, 1e-5, 0.1)
        (True, False, True)
    """
    if not min(rate, last, times) > 0:
        return False
    return abs(math.log(rate / last * times)) < 0.5 * abs(math.log(times))
