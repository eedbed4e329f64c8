"""Incidents that affect a run's weights, their first signs and causes: the input of any rollback. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from itertools import pairwise
from statistics import median

from stabilitybackend.schema.evidence import CurveFacts, facts
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.kinds import kind_of
from stabilitybackend.schema.lineage import SpoiledBy
from stabilitybackend.schema.metric_roles import dataset_of

__all__ = [
    "RATE_POINTS",
    "accepted",
    "affects_weights",
    "damage_intervals",
    "damaged_by",
    "earliest_step",
    "first_sign",
    "first_suspect_step",
    "in_one_dataset",
    "interval_of",
    "marked_by_rate",
    "open_or_accepted",
    "rates_of",
    "rates_off_at",
]  # fmt: skip

#: A learning rate that was off until so many logged points before an onset may be its cause: it made the weights for
#: the next batches.
RATE_POINTS = 8


def in_one_dataset(incident: Incident) -> bool:
    """Return whether it is a rise of one data set hardly visible in the whole loss: no reason for a rollback."""
    return incident.kind in ("spike", "level_shift", "divergence") and dataset_of(incident.metric or "") is not None


def earliest_step(incident: Incident) -> int:
    """Return its earliest possible step: behind the last good point, the early end of its onset's band, or the first
    move of another series."""
    curve = facts(incident.evidence, CurveFacts)
    moved = [one.onset_step for one in curve.moved_first if one.onset_step is not None]
    return min([first_suspect_step(incident), *moved, *curve.onset_band[:1]])


def first_suspect_step(incident: Incident) -> int:
    """Return the first step after the last good point: steps between logged points are unseen."""
    return min(incident.onset_step, max(0, incident.onset_step - math.ceil(interval_of(incident)) + 1))


def accepted(incident: Incident) -> bool:
    """Return whether an incident ended without recovery, so that its level counts as usual since. Explained ones do not
    count."""
    kind, curve = kind_of(incident.kind), facts(incident.evidence, CurveFacts)
    return (
        incident.state == "resolved"
        and kind.rollback_helps
        and not kind.root_cause
        and not incident.dead
        and incident.severity != "info"
        and not in_one_dataset(incident)
        and not curve.regained
        and not any(curve.explained_by)
    )


def _open(incident: Incident) -> bool:
    return incident.state == "open" and not incident.dead and incident.severity != "info"


def open_or_accepted(incidents: Iterable[Incident]) -> list[Incident]:
    """Return the incidents that affect the newest weights: open or accepted, of kinds that a rollback helps.

    An accepted one counts until training reached the level from before it, proved by an open incident whose usual loss
    is no higher.
    """
    every = list(incidents)
    opened = [one for one in every if _open(one) and kind_of(one.kind).rollback_helps and not in_one_dataset(one)]
    return opened + [one for one in every if accepted(one) and not any(_outgrown(one, now) for now in opened)]


def _outgrown(old: Incident, now: Incident) -> bool:
    before, level = facts(old.evidence, CurveFacts), facts(now.evidence, CurveFacts).window.level
    was = before.level_before if before.level_before is not None else before.window.level
    return was is not None and level is not None and now.metric == old.metric and level <= was


def rates_of(incidents: Iterable[Incident]) -> list[Incident]:
    """Return the incidents of the learning rate on the effective path."""
    return [one for one in incidents if kind_of(one.kind).root_cause and not one.dead]


def marked_by_rate(incident: Incident, rates: Iterable[Incident]) -> list[Incident]:
    """Return those of ``rates`` that were off at the onset of an incident, or until right before."""
    others = (rate for rate in rates if rate.incident_id != incident.incident_id)
    return rates_off_at(incident.onset_step, interval_of(incident), others)


def rates_off_at(onset_step: int, interval: float, rates: Iterable[Incident]) -> list[Incident]:
    """Return those of ``rates`` that were off at a step, or until right before.

    Args:
        interval: usual distance of two logged points, steps.
    """
    late = onset_step - RATE_POINTS * interval
    return [rate for rate in rates if rate.onset_step <= onset_step and (rate.state == "open" or _ended(rate) >= late)]


def _ended(incident: Incident) -> int:
    ends = (incident.recovered_step, incident.closed_step, incident.now_step)
    return next(step for step in ends if step is not None)


def first_sign(incidents: Iterable[Incident], history: Iterable[Incident] = ()) -> int | None:
    """Return the first step of any of the incidents, or of the rate that caused it; None for no incident.

    Args:
        history: the run's incidents, of which those of the learning rate count.
    """
    rates = rates_of(history)
    signs = [
        sign
        for one in incidents
        for sign in (earliest_step(one), *(earliest_step(rate) for rate in marked_by_rate(one, rates)))
    ]
    return min(signs, default=None)


def affects_weights(incidents: Iterable[Incident]) -> list[Incident]:
    """Return the open incidents from whose onset on no checkpoint is good."""
    return [
        one
        for one in incidents
        if kind_of(one.kind).rollback_helps
        and _open(one)
        and not in_one_dataset(one)
        and (kind_of(one.kind).damages_weights or (one.suggestion is not None and one.suggestion.to_step is not None))
    ]


def damage_intervals(incidents: Iterable[Incident]) -> list[tuple[int, int]]:
    """Return (first possible bad step, first good step) of each damage that healed by itself: weights in between are
    suspect."""
    return [
        (earliest_step(one), one.recovered_step)
        for one in incidents
        if one.state == "recovered"
        and one.recovered_step is not None
        and kind_of(one.kind).damages_weights
        and not one.dead
        and one.severity != "info"
        and not in_one_dataset(one)
    ]


def damaged_by(step: int, spoiled: Collection[Incident]) -> SpoiledBy | None:
    """Return the incident that the state after ``step`` lies in, None for a state from before all of them.

    Args:
        spoiled: result of ``affects_weights``.

    Returns:
        The first one.
    """
    first = min(spoiled, key=lambda one: (one.onset_step, one.incident_id), default=None)
    if first is None or step < first.onset_step:
        return None
    late = step - first.onset_step
    when = "at the onset" if late == 0 else f"{late} {'step' if late == 1 else 'steps'} after the onset"
    what = kind_of(first.kind).short
    text = f"saved {when} of an open {what} (step {first.onset_step}): it may hold the damage already"
    return SpoiledBy(first.incident_id, first.kind, first.onset_step, text)


def interval_of(incident: Incident) -> float:
    """Return the usual distance between two logged points, from the drawn window, steps >= 1."""
    steps = facts(incident.evidence, CurveFacts).window.steps
    before = [step for step in steps if step < incident.onset_step]
    distances = [later - earlier for earlier, later in pairwise(before)]
    return max(1.0, float(median(distances))) if distances else 1.0


def where_from(step: int, onset_step: int) -> str:
    """Return the position of a checkpoint relative to an onset."""
    distance = onset_step - step
    if distance == 0:
        return "at the onset"
    steps = f"{abs(distance):,} {'step' if abs(distance) == 1 else 'steps'}"
    return f"{steps} {'before' if distance > 0 else 'after'} the onset"
