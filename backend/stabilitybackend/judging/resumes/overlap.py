"""Common data of two branches of a fork: the loss at the same steps and at others, all other metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.judging.detectors.stats.left_range import (
    BEFORE_POINTS,
    SINCE_POINTS,
    Left,
    inputs_that_left,
    left_range,
)
from stabilitybackend.judging.detectors.stats.robust import MAD_TO_SIGMA
from stabilitybackend.judging.resumes.branches import BranchCurve, ForkBranches
from stabilitybackend.judging.resumes.residuals import (
    LEAST_POINTS,
    Agreement,
    RepeatedAt,
    laid,
    median_of,
    noise_of,
    on_grid,
)
from stabilitybackend.lineage.left_out import left_out
from stabilitybackend.schema.metric_roles import LR, role_of
from stabilitybackend.schema.resumes import Compared
from stabilityclient.wire import MAX_STEP

__all__ = ["EARLY_POINTS", "ForkMeasures", "measure"]

#: Steps since the fork whose ids are compared: effects of a resume on the data are in the first of them.
MAX_STEPS = 128
#: Ids needed at one distance.
LEAST_IDS = 3


@dataclass(frozen=True, slots=True)
class IdsCompared:
    """The new branch's ids against those of the old path.

    Attributes:
        points: steps of the new branch with an id, up to the end of the old one's. same: at their own step.
        shift: (distance in steps, count) of the most frequent other distance of earlier ids; None.
        missing: new ids, at steps at which the old branch has one.
        elsewhere: earlier ids of another step, at any distance.
        first_elsewhere: the first new step of these, and the earlier step of its batch.
        met: new step -> earlier step of its batch.
    """

    points: int
    same: int
    shift: tuple[int, int] | None
    missing: int
    elsewhere: int
    first_elsewhere: tuple[int, int] | None
    met: Mapping[int, int]


def compare_ids(branches: ForkBranches) -> IdsCompared | None:
    """Return the comparison of ids after the fork step with the old path, None where it has none.

    Only steps of both branches count: later ones may be a new epoch.
    """
    if branches.old is None or branches.run.ids is None:
        return None
    ids, old, new = branches.run.ids, branches.path(branches.old), branches.path(branches.new)
    first = branches.fork_step + 1
    met: dict[int, int] = {}
    points = missing = 0
    for step in range(first, min(branches.last_step + 1, first + MAX_STEPS)):
        batch, was = ids.on(new, step), ids.on(old, step)
        if batch is None or was is None:
            continue
        points += 1
        found = step if batch == was else ids.newest(old, batch, MAX_STEP)
        if found is None:
            missing += 1
        else:
            met[step] = found
    if not points:
        return None
    moved = [step for step, at in met.items() if at != step]
    shift = Counter(met[step] - step for step in moved).most_common(1)
    return IdsCompared(
        points=points,
        same=len(met) - len(moved),
        shift=shift[0] if shift and shift[0][1] >= LEAST_IDS else None,
        missing=missing,
        elsewhere=len(moved),
        first_elsewhere=(moved[0], met[moved[0]]) if moved else None,
        met=met,
    )


#: Common points that show a move of the loss by the resume itself, before its own learning hides it.
EARLY_POINTS = 8
#: Old and new points of one metric that are compared at most: effects of a fork are in the first of them.
MAX_POINTS = 512
#: Points before the fork that give the trend at the first ones after it.
TREND_BEFORE = 64
#: Points before and after the fork that give the resolution of a log.
CHANCE_POINTS = 512
#: Decimal digits, or bits, behind the point of a log that counts as exact.
EXACT_DIGITS, EXACT_BITS = 10, 30


@dataclass(frozen=True, slots=True)
class ForkMeasures:
    """Measures of a fork.

    Attributes:
        loss: its name. new_points: of the new branch. last_step: the newest of them.
        compared: every metric on both branches, the loss first.
        common: steps of the loss on both branches; gap: new minus old there.
        equal: of these, bit-equal ones from the first on. chance: probability of two equal values in this log.
        noise: one sigma from batch to batch. stride: steps from one logged loss to the next.
        skip: first and last step of the old branch whose batches were to be left out, None for none.
        same: the loss residuals at the same steps; elsewhere: the best other place; of the steps from ``skip`` on
            ``kept`` at the same steps, ``ordered`` behind the skipped range.
        plain_epochs: the old path had repeated itself at the distance of ``elsewhere`` before the fork as well.
        ids: batch ids, None without reports.
        ids_note: why they are not comparable.
        rates: possible factors of the learning rate over that of the old branch, by all requested changes.
        inputs: metrics of the training's input that left their own past with the first points since the fork.
        curves: name of a role, or of a metric without one -> (common steps, old values, new ones).
    """

    loss: str
    new_points: int
    last_step: int
    compared: list[Compared]
    common: NDArray[np.int64]
    gap: NDArray[np.float64]
    equal: int
    chance: float
    noise: float
    stride: int
    skip: tuple[int, int] | None
    same: Agreement | None
    kept: Agreement | None
    elsewhere: RepeatedAt | None
    ordered: Agreement | None
    plain_epochs: bool
    ids: IdsCompared | None
    ids_note: str
    rates: Sequence[float]
    inputs: Sequence[Left]
    curves: Mapping[str, tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]]
    declared: Mapping[str, Any]

    @property
    def surely_equal(self) -> bool:
        """Whether the first values are bit-equal, and not by chance."""
        return self.equal > 0 and self.chance**self.equal <= 1e-4


def measure(branches: ForkBranches, declared: Mapping[str, Any], *, search: bool) -> ForkMeasures | None:
    """Return the measures of a fork, None without a loss after it.

    Args:
        declared: requested or declared changes.
        search: look for the new interval elsewhere as well.
    """
    names = branches.run.metrics()
    if not names:
        return None
    loss = next(iter(names))
    new = branches.again(loss)
    if not len(new):
        return None
    new = BranchCurve(new.steps[:MAX_POINTS], new.values[:MAX_POINTS])
    last = int(new.steps[-1])
    left = branches.left(loss, None)
    apart = np.diff(new.steps if len(new) > 1 else left.steps)
    stride = max(1, int(median_of(apart))) if len(apart) else 1
    before = branches.before(loss, stride)
    common = {loss: _common(left, new)}
    for name in list(names)[1:]:
        other = branches.again(name)
        if len(other):
            common[name] = _common(
                branches.left(name, last), BranchCurve(other.steps[:MAX_POINTS], other.values[:MAX_POINTS])
            )
    steps, was, now = common[loss]
    same = was == now
    equal = len(same) if same.all() else int(np.argmin(same))
    sigma = noise_of(before)
    recent = BranchCurve(before.steps[-TREND_BEFORE:], before.values[-TREND_BEFORE:])
    path, mine = on_grid(before, left, sigma), on_grid(recent, new, sigma)
    agreed = kept = ordered = elsewhere = None
    skip = left_out(declared, branches.fork_step)
    plain = False
    if path is not None and mine is not None:
        first = int(new.steps[0])
        whole = laid(path, mine, first, last)
        if whole is not None:
            agreed, elsewhere = whole.agreement(), whole.elsewhere() if search else None
        behind = None if skip is None else laid(path, mine, max(first, skip[0]), last)
        if skip is not None and behind is not None:
            kept, ordered = behind.agreement(), behind.agreement(skip[1] - skip[0] + 1)
        if elsewhere is not None and elsewhere.steps < 0:
            past = before.steps[-elsewhere.points :]
            before_fork = laid(path, path, int(past[0]), int(past[-1]))
            back = None if before_fork is None else before_fork.agreement(elsewhere.steps)
            plain = back is not None and back.r > 0.5 * elsewhere.r
    return ForkMeasures(
        loss=loss,
        new_points=len(new),
        last_step=last,
        compared=[_compared(name, *curve) for name, curve in common.items() if len(curve[0])],
        common=steps,
        gap=now - was,
        equal=equal if len(steps) else 0,
        chance=_chance(np.concatenate([before.values[-CHANCE_POINTS:], left.values[:CHANCE_POINTS]]), sigma),
        noise=sigma,
        stride=stride,
        skip=skip,
        same=agreed,
        kept=kept,
        elsewhere=elsewhere,
        ordered=ordered,
        plain_epochs=plain,
        ids=compare_ids(branches),
        ids_note=branches.run.ids_note,
        rates=branches.rates(),
        inputs=_inputs(branches, names, loss, stride),
        curves={names[name]: curve for name, curve in common.items()},
        declared=declared,
    )


def _inputs(branches: ForkBranches, names: Mapping[str, str], loss: str, stride: int) -> list[Left]:
    found = []
    for name in names:
        since = branches.again(name)
        if len(since) < 2 or role_of(names[name]) == LR:
            continue
        past = branches.newest(name, stride, BEFORE_POINTS)
        old = branches.left(name, int(since.steps[:SINCE_POINTS][-1]))
        one = left_range(name, _pairs(past), _pairs(since), dict(_pairs(old)))
        found += [] if one is None else [one]
    return inputs_that_left(found, loss)


def _pairs(curve: BranchCurve) -> list[tuple[int, float]]:
    return list(zip(curve.steps.tolist(), curve.values.tolist(), strict=True))


def _common(left: BranchCurve, new: BranchCurve) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    steps, at_left, at_new = np.intersect1d(left.steps, new.steps, assume_unique=True, return_indices=True)
    return steps, left.values[at_left], new.values[at_new]


def _chance(values: NDArray[np.float64], sigma: float) -> float:
    """Return the probability of two equal losses in this log: rounded values often are.

    Two values that scatter by sigma and are written in steps of q are equal with probability q / (sigma 2 sqrt(pi)).
    For an unknown sigma (0: a falling curve without residuals) it is that of second differences, which a trend does not
    reach (Stoehr et al. 2008, DER_SNR): below q they hold only rounding.
    """
    values = values[np.isfinite(values)]
    least = _written_in(values)
    if not sigma > 0 and len(values) >= LEAST_POINTS:
        bends = MAD_TO_SIGMA / 6**0.5 * median_of(np.abs(np.diff(values, 2)))
        sigma = bends if bends >= least else 0.0
    return min(1.0, 0.282 * least / sigma) if sigma > 0 else 1.0


def _written_in(values: NDArray[np.float64]) -> float:
    """Return the resolution of values: the coarsest power of ten or of two that divides all of them."""
    with np.errstate(over="ignore", invalid="ignore"):  # of a loss of 1e308, which no power divides then
        for power in range(EXACT_BITS):
            if (np.ldexp(values, power) % 1 == 0).all():
                return 2.0**-power
            if power < EXACT_DIGITS and np.allclose(np.round(values, power), values, rtol=1e-12, atol=0):
                return 10.0**-power
    return 2.0**-EXACT_BITS


def _compared(name: str, steps: NDArray[np.int64], old: NDArray[np.float64], new: NDArray[np.float64]) -> Compared:
    same = (old == new) | (np.isnan(old) & np.isnan(new))
    finite = np.isfinite(old) & np.isfinite(new)
    gap = median_of((new - old)[finite]) if finite.any() else None
    positive = finite & (old > 0) & (new > 0)
    ratio = median_of(new[positive] / old[positive]) if positive.any() else None
    first = None if same.all() else int(steps[int(np.argmin(same))])
    return Compared(name, len(steps), int(same.sum()), first, gap, ratio)
