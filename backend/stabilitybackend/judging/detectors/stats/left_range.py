"""Metrics that left their own past at a resume, split into inputs of training and outcomes. Pure.

A loss off at a resume may have many causes: repeated data, a sampler that lost its ratio, a restarted schedule of any
kind. The job often logs the cause, under a name of its own. Its values reveal it: it leaves the range of its own past
with the first points after the resume, no later than the loss.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from stabilitybackend.judging.detectors.stats.before_fork import BEFORE_POINTS, SIGMA_FLOOR
from stabilitybackend.judging.detectors.stats.robust import robust_sigma
from stabilitybackend.schema.metric_roles import dataset_of, is_of_evaluation, role_of

__all__ = ["BEFORE_POINTS", "SINCE_POINTS", "Left", "inputs_that_left", "left_range"]

#: Points after the resume in which a metric has to leave the BEFORE_POINTS before it.
SINCE_POINTS = 8
#: Fewest points of a past.
LEAST_POINTS = 16
#: The first points are all on one side outside all of the past, and so many robust sigmas off. For any noise, so many
#: of 48 metrics do by chance at one resume in 3,000: 48 * 2 * (1 / 65)**3.
OUT_POINTS, SIGMAS = 3, 6.0
#: Largest meaningful distance: of a metric that never moved before.
MAX_SIGMAS = 1_000.0
#: Largest difference of equal branches at the same steps, sigmas.
SAME_SIGMAS = 3.0
#: Words of outcomes. All other names may be inputs.
_OUTCOMES = frozenset((
    "loss", "losses", "nll", "ce", "xent", "crossentropy", "elbo", "mse", "mae", "rmse", "ppl", "perplexity", "bpb",
    "bpc", "acc", "accuracy", "error", "err", "grad", "grads", "gradient", "gradients", "gnorm", "norm", "norms",
    "reward", "rewards", "return", "returns", "advantage", "kl", "entropy", "logit", "logits", "prob", "probs", "score",
    "f1", "auc", "bleu", "rouge", "iou", "dice", "psnr", "fid", "correct", "precision", "recall", "update", "updates",
    "rms", "clip", "clipped", "clipfrac", "confidence", "mfu", "tflops", "speed", "throughput", "latency",
))  # fmt: skip
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+[0-9]?")


class Left(NamedTuple):
    """A metric that left its own past at a resume.

    Args:
        step: the first one outside. level: predicted by its past; now: median of its first points; sigmas: distance in
            its own noise. counter: it only ever rose before, and is back below that.
    """

    metric: str
    step: int
    level: float
    now: float
    sigmas: float
    counter: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of ``evidence["left_at_resume"]``."""
        return {
            "metric": self.metric, "step": self.step, "from": float(f"{self.level:.6g}"),
            "to": float(f"{self.now:.6g}"), "sigmas": round(self.sigmas, 1),
        }  # fmt: skip

    @property
    def clause(self) -> str:
        """The event as a clause."""
        if self.counter:
            return f"{self.metric} began again at {self.now:.4g}, it was {self.level:.4g} before"
        return f"{self.metric} went from {self.level:.4g} to {self.now:.4g} at step {self.step}"


def is_outcome(metric: str) -> bool:
    """Return whether a metric is an outcome of training, by its name.

    Example:
        >>> [is_outcome(name) for name in ("loss/code", "train/acc1", "image_to_text", "seq_len", "eval/x")]
        [True, True, False, False, True]
    """
    words = {word.lower().rstrip("0123456789") for word in _WORD.findall(metric)}
    known = role_of(metric) in ("loss", "grad_norm", "val_loss") or dataset_of(metric) is not None
    return known or is_of_evaluation(metric) or not _OUTCOMES.isdisjoint(words)


def left_range(
    metric: str,
    before: Sequence[tuple[int, float]],
    since: Sequence[tuple[int, float]],
    old: Mapping[int, float] | None = None,
) -> Left | None:
    """Return the departure of a metric from its own past with the first points after a resume; None for none.

    Args:
        before: (step, value) up to the fork step, the newest BEFORE_POINTS. since: the first ones after it.
        old: values of the discarded branch at these steps: equal ones are unrelated to the resume.
    """
    past = [(step, value) for step, value in before[-BEFORE_POINTS:] if math.isfinite(value)]
    came = [(step, value) for step, value in since[:SINCE_POINTS] if math.isfinite(value)]
    if len(past) < LEAST_POINTS or len(came) < OUT_POINTS:
        return None
    values = [value for _, value in past]
    half, stride = len(past) // 2, max((past[-1][0] - past[0][0]) / (len(past) - 1), 1e-9)
    slope = (median(values[half:]) - median(values[:half])) / ((len(past) - half) * stride)
    middle, last = median(values), past[-1][0]
    center = median([step for step, _ in past])
    rest = [value - middle - slope * (step - center) for step, value in past]
    usual = median(rest)
    sigma = max(robust_sigma(rest), SIGMA_FLOOR * max(abs(middle), abs(values[-1])), 1e-12)
    off = [(step, value, value - middle - usual - slope * (step - center)) for step, value in came]
    low, high = min(rest) - usual, max(rest) - usual
    out = [
        (step, value, one / sigma) for step, value, one in off if not low <= one <= high and abs(one) > SIGMAS * sigma
    ]
    first = [one for _, _, one in out[:OUT_POINTS]]
    together = [step for step, _, _ in out[:OUT_POINTS]] == [step for step, _, _ in off[:OUT_POINTS]]
    if len(first) < OUT_POINTS or not together or min(first) * max(first) < 0:
        return None
    if old and _same_there(off, old, sigma):
        return None
    level = middle + usual + slope * (last - center)
    rising = all(earlier <= later for earlier, later in pairwise(values)) and slope > 0
    distance = min(median([abs(one) for _, _, one in out]), MAX_SIGMAS)
    now = median([value for _, value, _ in out])
    return Left(metric, out[0][0], level, now, distance, rising and now < values[0])


def _same_there(off: Sequence[tuple[int, float, float]], old: Mapping[int, float], sigma: float) -> bool:
    gaps = [abs(value - old[step]) for step, value, _ in off if step in old]
    return len(gaps) >= OUT_POINTS and median(gaps) <= SAME_SIGMAS * sigma


def inputs_that_left(found: Sequence[Left], main: str | None) -> list[Left]:
    """Return the inputs that left no later than the main metric, the clearest first.

    Args:
        found: all metrics that left their range. main: the loss, None or one that did not leave: then all count.
    """
    loss = next((one for one in found if one.metric == main), None)
    inputs = [one for one in found if one.metric != main and not is_outcome(one.metric)]
    clear = [one for one in inputs if loss is None or one.step <= loss.step]
    return sorted(clear, key=lambda one: (one.step, -one.sigmas, one.metric))
