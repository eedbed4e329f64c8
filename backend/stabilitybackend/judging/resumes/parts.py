"""State of each part of a resume: equal, different, or unseen."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.judging.resumes.branches import lr_scale
from stabilitybackend.judging.resumes.overlap import EARLY_POINTS, ForkMeasures
from stabilitybackend.judging.resumes.reported_parts import Reports, environment_of, loader_of, rng_of
from stabilitybackend.judging.resumes.residuals import SAME_R, median_of
from stabilitybackend.schema.metric_roles import GRAD_NORM, LR, SHARE_OF, role_of
from stabilitybackend.schema.resumes import PARTS, Part, PartSeen, ResumeVerdict

__all__ = ["RATE_EQUAL", "RATE_NEAR", "RATE_POINTS", "mixture_of", "off_of", "parts_of", "rate_ratios"]

#: Tolerance of numerics: a first difference of this part of the batch noise. bfloat16 rounds each value by up to 2**-9;
#: the mean over some thousand tokens differs by far less, other weights by far more.
NUMERICS = 0.01
#: After a certain equal first batch, the next ones need a correlation of so many sigmas: one in 700.
NEXT_SIGMAS = 3.0
#: Distance of the first losses since the fork from the old branch's on the same data, standard errors.
OFF_ERRORS = 5.0
#: The same batch without an id: in other models the same order of data gives r >= 0.96, a part of each batch less.
SURE_R = 0.96
#: Rates are equal within this fraction: schedules are computed in other orders of operations.
RATE_EQUAL = 1e-4
#: Tolerance of a rate scaled by a command, fraction.
RATE_NEAR = 0.02
#: Common points for a judgement of a rate: some frameworks apply a change one step later, warm-ups a few.
RATE_POINTS = 8
#: Named inputs.
MAX_INPUTS = 4
#: A changed share of the data: by so many standard errors of its mean, and by this fraction. The latter is that
#: of ``stats/before_fork``.
SHARE_ERRORS, SHARE_FRACTION = 5.0, 0.03


def parts_of(seen: ForkMeasures | None, verdict: ResumeVerdict, reports: Reports) -> list[PartSeen]:
    """Return all seven parts, in their order."""
    if seen is None or not len(seen.common):
        why = "no step was trained on both branches"
        rules: dict[Part, Callable[[], PartSeen]] = {
            "rng": lambda: rng_of(reports) if seen is None else _rng(seen, reports),
            "loader": lambda: loader_of(seen, verdict, reports.position),
            "mixture": lambda: _no_mixture(why) if seen is None else mixture_of(seen),
            "environment": lambda: environment_of(reports),
        }
        return [rules.get(part, partial(PartSeen, part, "not_seen", why))() for part in PARTS]
    return [
        _weights(seen, verdict),
        _optimizer(seen, verdict),
        _rate(seen, verdict),
        _rng(seen, reports),
        loader_of(seen, verdict, reports.position),
        mixture_of(seen),
        environment_of(reports),
    ]


def _ratio_of_rates(seen: ForkMeasures) -> tuple[float, int, bool] | None:
    """Return (median of new over old rate at the same steps, count, whether all are equal); None without any."""
    ratios = rate_ratios(seen)
    if ratios is None:
        return None
    return median_of(ratios), len(ratios), bool(np.abs(ratios - 1).max() <= RATE_EQUAL)


def rate_ratios(seen: ForkMeasures) -> NDArray[np.float64] | None:
    """Return new over old rate at each common step, float64[n > 0]; None unless logged on both branches."""
    for name, (_, old, new) in seen.curves.items():
        if role_of(name) == LR:
            good = np.isfinite(old) & np.isfinite(new) & (old > 0) & (new > 0)
            if good.any():
                return np.asarray(new[good] / old[good], np.float64)
    return None


def _on_same_data(seen: ForkMeasures, verdict: ResumeVerdict) -> bool:
    return verdict in ("identical", "same_data")


def _weights(seen: ForkMeasures, verdict: ResumeVerdict) -> PartSeen:
    first = int(seen.common[0])
    if seen.surely_equal:
        return PartSeen("weights", "equal", f"the loss at step {first} is bit-equal")
    if not _on_same_data(seen, verdict):
        return PartSeen("weights", "not_seen", "other batches: the losses can't be compared one by one")
    if not seen.noise > 0 or not math.isfinite(gap := abs(float(seen.gap[0]))):
        return PartSeen("weights", "not_seen", "too few points before the fork to know the noise")
    share = gap / seen.noise
    if share <= NUMERICS and _same_gradient(seen):
        return PartSeen(
            "weights", "equal", f"the loss at step {first} differs by {100 * share:.2g} % of the batch noise"
        )
    off = off_of(seen)
    if off is not None and _certainly_same(seen):
        why = f"on the same batches the first losses lie {off:+.4g} off: "
        if off < 0:  # no older or damaged weights are better
            why += "the loss is computed otherwise (label smoothing, dropout, masks), or the weights know these batches"
            return PartSeen("weights", "not_seen", why)
        why += "weights or optimizer are not those of the fork, or the loss is computed otherwise"
        return PartSeen("weights", "different", why)
    return PartSeen(
        "weights", "not_seen", f"the loss at step {first} differs by {100 * share:.2g} % of the batch noise"
    )


def _certainly_same(seen: ForkMeasures) -> bool:
    """Return whether neither data nor numerics can explain other losses.

    A part of each batch is enough for correlated losses; the same batch needs an equal id, or all of its noise.
    """
    if mixture_of(seen).known == "different" or abs(float(seen.gap[0])) <= 10 * NUMERICS * seen.noise:
        return False
    if seen.ids is not None:
        first = int(seen.common[0])
        return seen.ids.met.get(first) == first
    return seen.same is not None and seen.same.r >= SURE_R


def _same_gradient(seen: ForkMeasures) -> bool:
    """Return whether the gradient norm of the first common step is equal within numerics, where it is logged."""
    for name, (steps, old, new) in seen.curves.items():
        if role_of(name) == GRAD_NORM and len(steps) and steps[0] == seen.common[0]:
            return bool(abs(new[0] - old[0]) <= NUMERICS * abs(old[0]))
    return True


def off_of(seen: ForkMeasures) -> float | None:
    """Return the distance of the first losses from the old branch's, None for no clear one."""
    gaps = seen.gap[np.isfinite(seen.gap)]
    early = gaps[:EARLY_POINTS]
    if len(early) < EARLY_POINTS:
        return None
    error = float(np.std(early, ddof=1)) / len(early) ** 0.5
    mean = float(np.mean(early))
    return mean if abs(mean) > OFF_ERRORS * error and abs(mean) > seen.noise * 10 * NUMERICS else None


def _optimizer(seen: ForkMeasures, verdict: ResumeVerdict) -> PartSeen:
    if seen.surely_equal and seen.equal >= 2:
        why = f"the losses of the first {seen.equal} steps are bit-equal, so were the updates between them"
        return PartSeen("optimizer", "equal", why)
    rate = _ratio_of_rates(seen)
    changed = lr_scale(seen.declared) != 1 or (rate is not None and not rate[2])
    if not seen.surely_equal or len(seen.common) < 2:
        return PartSeen("optimizer", "not_seen", "shows only where the first loss after the fork is bit-equal")
    if changed:
        return PartSeen("optimizer", "not_seen", "the learning rate is another: the second step says nothing")
    next_same = seen.ids is not None and seen.ids.met.get(int(seen.common[1])) == int(seen.common[1])
    alike = seen.same is not None and seen.same.r >= SAME_R and seen.same.sigmas >= NEXT_SIGMAS
    if not next_same and not alike:
        return PartSeen("optimizer", "not_seen", "whether the second batch is the same is not known")
    gap = float(np.max(np.abs(seen.gap[1:4])))
    grads = [pair for name, pair in seen.curves.items() if role_of(name) == GRAD_NORM and len(pair[0])]
    exact = any(int(steps[0]) == int(seen.common[0]) and old[0] == new[0] for steps, old, new in grads)
    if exact or gap > 10 * NUMERICS * seen.noise:
        what = "loss and gradient norm" if exact else "the loss"
        why = f"{what} of the first step bit-equal, from the second on the loss differs (by {gap:.3g}) at the same rate"
        return PartSeen("optimizer", "different", why)
    return PartSeen("optimizer", "not_seen", f"from the second step on the loss differs by {gap:.3g}: within numerics")


def _rate(seen: ForkMeasures, verdict: ResumeVerdict) -> PartSeen:
    rate, scale = _ratio_of_rates(seen), lr_scale(seen.declared)
    if rate is None:
        return PartSeen("learning_rate", "not_seen", "it is not logged on both branches")
    ratio, points, equal = rate
    at = f"at {points} common {'step' if points == 1 else 'steps'}"
    if scale == 1 and equal:
        return PartSeen("learning_rate", "equal", f"the same {at}")
    if any(abs(ratio / expected - 1) <= RATE_NEAR for expected in seen.rates if expected != 1 or scale != 1):
        return PartSeen("learning_rate", "different", f"times {ratio:.4g} {at}, as ordered", ordered=True)
    declared = f"times {scale:.4g} was ordered" if scale != 1 else "nobody declared a change"
    return PartSeen("learning_rate", "different", f"times {ratio:.4g} {at}; {declared}")


def _rng(seen: ForkMeasures, reports: Reports) -> PartSeen:
    if seen.declared.get("seed") is not None:
        return PartSeen("rng", "different", f"seed {seen.declared['seed']} was ordered", ordered=True)
    reported = rng_of(reports)
    if reported.known == "not_seen" and seen.surely_equal and seen.equal >= 2:
        return PartSeen("rng", "equal", f"{seen.equal} steps are bit-equal: it is the same, or nothing draws from it")
    return reported


def _no_mixture(why: str) -> PartSeen:
    return PartSeen("mixture", "not_seen", why)


def mixture_of(seen: ForkMeasures) -> PartSeen:
    """Return whether the training's input equals that of the discarded branch, at the same steps, and of before."""
    if seen.inputs:
        return PartSeen("mixture", "different", "; ".join(one.clause for one in seen.inputs[:MAX_INPUTS]))
    shares = {name: curve for name, curve in seen.curves.items() if name.startswith(SHARE_OF) and len(curve[0])}
    if not shares:
        return _no_mixture("no share of the data is logged on both branches")
    points = max(len(steps) for steps, _, _ in shares.values())
    for name, (_, old, new) in shares.items():
        gap = new - old
        gap = gap[np.isfinite(gap)]
        if len(gap) < EARLY_POINTS:
            continue
        mean, error = float(np.mean(gap)), float(np.std(gap, ddof=1)) / len(gap) ** 0.5
        usual = float(np.nanmean(np.abs(old)))
        if abs(mean) > max(SHARE_ERRORS * error, SHARE_FRACTION * usual):
            return PartSeen("mixture", "different", f"{name} lies {mean:+.4g} off over {len(gap)} common steps")
    if all(bool((old == new).all()) for _, old, new in shares.values()):
        return PartSeen("mixture", "equal", f"{', '.join(sorted(shares))}: bit-equal at {points} common steps")
    if points < EARLY_POINTS:
        return PartSeen("mixture", "not_seen", f"only {points} common steps")
    return PartSeen("mixture", "equal", f"{', '.join(sorted(shares))}: alike within their noise, {points} common steps")
