"""``run.should_skip``: whether an update is an outlier to leave out. Decided in the job, identically on all ranks."""

from __future__ import annotations

from math import isfinite

__all__ = ["IN_STEPS", "MOST", "SIGMAS", "SKIPPED", "SkipRule"]

#: Metric that counts the updates that were left out; logged at each.
SKIPPED = "skipped_updates"
#: Points that define the usual, newest ones, and those that it takes before anything is skipped. OLMo-core's
#: SkipStepOptimizer looks at as many.
WINDOW, FEW_POINTS = 128, 64
#: Robust sigmas above the usual level; OLMo-core's 6 of plain ones is too eager where noise has a heavy tail.
SIGMAS = 8.0
#: ... and at least so much of the level: noise that is very small makes no odd update.
LOSS_RISE, GRAD_RISE = 0.05, 1.0
#: Skips in so many steps, as of the autopilot's rollbacks. One more, and nothing is skipped any more.
MOST, IN_STEPS = 3, 1_000
#: Steps remembered: a rollback further back than that begins with no past.
KEPT = 8_192
#: Median absolute deviation to standard deviation of a normal distribution.
_MAD = 1.4826


class SkipRule:
    """Decides which updates to leave out, from the steps and values given before alone.

    No clock, no randomness, no file: equal inputs give equal answers. Skipped values are no part of
    the usual.

    Args:
        most, in_steps: at most ``most`` skips in any ``in_steps`` steps, however often they are trained. One that would
            be one more ends it: from then on nothing is skipped.
        sigmas: how far above the usual level.

    Attributes:
        skipped: how many were, so far.
        ended: why nothing is skipped any more, "" while it is.
    """

    def __init__(self, most: int = MOST, in_steps: int = IN_STEPS, sigmas: float = SIGMAS) -> None:
        self.most, self.in_steps, self.sigmas = most, in_steps, sigmas
        self.skipped = 0
        self.ended = ""
        #: (step, loss, gradient norm) of updates that were made, steps rising; None where it was not given.
        self._past: list[tuple[int, float, float | None]] = []
        #: Calls at which one was skipped: a rollback does not make them undone.
        self._skips: list[int] = []
        self._calls = 0
        self._last = -1

    def skips(self, step: int, loss: float, grad_norm: float | None) -> bool:
        """Return whether to leave out the update of ``step``; a repeated step means that the run went back.

        Args:
            loss, grad_norm: of all ranks together.
        """
        if self.ended:
            return False
        self._calls += 1
        if step <= self._last:
            self._past = [one for one in self._past if one[0] < step]
        self._last = step
        losses = [one[1] for one in self._past[-WINDOW:]]
        norms = [one[2] for one in self._past[-WINDOW:] if one[2] is not None]
        odd = self._odd(loss, losses, LOSS_RISE) or (grad_norm is not None and self._odd(grad_norm, norms, GRAD_RISE))
        if odd:
            self._skips = [one for one in self._skips if one > self._calls - self.in_steps]
            if len(self._skips) < self.most:
                self._skips.append(self._calls)
                self.skipped += 1
                return True
            self.ended = (
                f"the update of step {step} is odd, too, after {len(self._skips)} skipped ones within {self.in_steps} "
                "steps: it is no single batch. Nothing is skipped any more"
            )
        if isfinite(loss) and (grad_norm is None or isfinite(grad_norm)):
            self._past.append((step, loss, grad_norm))
            if len(self._past) > 2 * KEPT:
                del self._past[:-KEPT]
        return False

    def _odd(self, value: float, past: list[float], rise: float) -> bool:
        if len(past) < FEW_POINTS:
            return False
        if not isfinite(value):
            return True
        level = _median(past)
        if value - level <= rise * abs(level):
            return False  # nearly always: the spread is not needed
        return value - level > self.sigmas * _MAD * _median([abs(one - level) for one in past])


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
