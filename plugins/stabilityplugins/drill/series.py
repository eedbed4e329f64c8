"""Every logged metric of the resumed leg against the straight one, measured in the job's own noise.

The noise of a metric is how far two straight starts are apart. A metric that differs between them while their weights
are equal does not come from the training (a time, a speed, memory): it is not compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from stabilityplugins.drill.comparisons import Legs
from stabilityplugins.drill.trace import LegTrace

__all__ = ["Series", "compare_series", "same_training"]

Verdict = Literal["identical", "within the job's own noise", "different", "not compared"]

#: A difference counts as more than noise when it is this much of the largest one between two straight starts: of
#: three numbers from one distribution, two are rarely three times as far apart as the other pair over a whole stretch.
_NOISE_FACTOR = 3.0
#: Names of the probe's metrics, for a job that logs none.
LOSS, GRAD_NORM = "loss (backward)", "grad norm (gradients)"


class Series(msgspec.Struct):
    """One metric after the resume.

    Args:
        name, rank: which. verdict: in words. steps: compared. since: first step that differs by more than noise.
        mean: of resumed minus straight over all steps. last: of the last one. noise: largest distance of two straight
            starts up to there, None where the job is deterministic.
        why: why it is not compared.
    """

    name: str
    rank: int
    verdict: Verdict
    steps: int = 0
    since: int | None = None
    mean: float | None = None
    last: float | None = None
    noise: float | None = None
    why: str = ""


def same_training(one: LegTrace, other: LegTrace) -> bool:
    """Whether two starts have the same weights after each round that both have."""
    ranks = {*one.ranks} & {*other.ranks}
    return bool(ranks) and all(
        a.weights == b.weights
        for rank in ranks
        for a, b in zip(one.ranks[rank].rounds, other.ranks[rank].rounds, strict=False)
    )


def compare_series(legs: Legs) -> list[Series]:
    """Return each metric's comparison: of rank 0 and of the ranks that log others, first those that differ first."""
    error = legs.at.step_error or 0
    begin = legs.step(-1)
    still = same_training(legs.straight, legs.again)
    straight, again, resumed = (_values(leg) for leg in (legs.straight, legs.again, legs.resumed))
    found = []
    for rank, name in resumed:
        if (rank, name) not in straight or (rank and not legs.same_world):
            continue
        # The probe counts in rounds, the job's log in its own steps.
        by_round = name in (LOSS, GRAD_NORM)
        moved, after = (legs.at.resumed, legs.at.resumed) if by_round else (-error, begin)
        now = {step + moved: value for step, value in resumed[rank, name].items()}
        found.append(_one(rank, name, straight[rank, name], again.get((rank, name), {}), now, after, still))
    return sorted(found, key=lambda one: (one.since is None, one.since or 0, one.name != "loss", one.rank, one.name))


def _values(leg: LegTrace) -> dict[tuple[int, str], Mapping[int, float]]:
    found: dict[tuple[int, str], Mapping[int, float]] = {
        (rank, name): steps for rank, names in sorted(leg.metrics.items()) for name, steps in names.items()
    }
    lead = leg.lead
    if lead is not None:
        logged = {name for _, name in found}
        if "loss" not in logged:
            found[lead.rank, LOSS] = {one.round: one.loss for one in lead.rounds if one.loss is not None}
        if "grad_norm" not in logged:
            found[lead.rank, GRAD_NORM] = {one.round: one.grad_norm for one in lead.rounds}
    return {key: steps for key, steps in found.items() if steps}


def _one(
    rank: int,
    name: str,
    straight: Mapping[int, float],
    again: Mapping[int, float],
    resumed: Mapping[int, float],
    begin: int,
    still: bool,
) -> Series:
    steps = sorted(step for step in resumed if step in straight and step > begin)
    if not steps:
        return Series(name, rank, "not compared", why="no step in common")
    apart = {step: _distance(straight[step], again[step]) for step in sorted({*straight} & {*again})}
    if still and any(apart.values()):
        return Series(name, rank, "not compared", len(steps), why="a time or a measurement: it differs in equal steps")
    noise = max(apart.values(), default=0.0)
    differences = [resumed[step] - straight[step] for step in steps]
    since = next(
        (step for step in steps if _distance(resumed[step], straight[step]) > _NOISE_FACTOR * _until(apart, step)), None
    )
    found = Series(name, rank, "identical", len(steps), since)
    finite = [value for value in differences if math.isfinite(value)]
    if any(_distance(resumed[step], straight[step]) for step in steps):
        found.verdict = "different" if since is not None else "within the job's own noise"
        found.mean = sum(finite) / len(finite) if finite else None
        found.last = differences[-1]
        found.noise = noise or None
    return found


def _until(apart: Mapping[int, float], step: int) -> float:
    return max((value for at, value in apart.items() if at <= step), default=0.0)


def _distance(one: float, other: float) -> float:
    """Return how far two values are apart: 0 for two NaN, infinite where only one is a number."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    return abs(one - other) if math.isfinite(one) and math.isfinite(other) else math.inf
