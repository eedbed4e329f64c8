"""Says what a run's weights suffer from, since when, and what caused it: what any way back has to go by. Pure."""

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

#: A learning rate that was off until so many logged points before an onset may be its cause: the weights that it made
#: are what the next batches meet.
RATE_POINTS = 8


def in_one_dataset(incident: Incident) -> bool:
    """Say whether it is a rise of one data set that the whole loss hardly shows: nobody goes back for that."""
    return incident.kind in ("spike", "level_shift", "divergence") and dataset_of(incident.metric or "") is not None


def earliest_step(incident: Incident) -> int:
    """Return the step at which it may have begun, rather too early than too late.

    That is the step behind the last good point, the early end of its onset's band, or where another series had moved.
    """
    curve = facts(incident.evidence, CurveFacts)
    moved = [one.onset_step for one in curve.moved_first if one.onset_step is not None]
    return min([first_suspect_step(incident), *moved, *curve.onset_band[:1]])


def first_suspect_step(incident: Incident) -> int:
    """Return the first step after the last good point: what lies between two logged points, nobody saw."""
    return min(incident.onset_step, max(0, incident.onset_step - math.ceil(interval_of(incident)) + 1))


def accepted(incident: Incident) -> bool:
    """Say whether an incident is over without having come back: its level counts as the usual one since.

    What another one explains is that one's.
    """
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
    """Return what the newest weights suffer from: what is open or was given up, of the kinds that one goes back for.

    What was given up counts until training came down to the level from before it: an incident that is open now and
    began at a usual loss no higher than that shows it.
    """
    every = list(incidents)
    opened = [one for one in every if _open(one) and kind_of(one.kind).rollback_helps and not in_one_dataset(one)]
    return opened + [one for one in every if accepted(one) and not any(_outgrown(one, now) for now in opened)]


def _outgrown(old: Incident, now: Incident) -> bool:
    before, level = facts(old.evidence, CurveFacts), facts(now.evidence, CurveFacts).window.level
    was = before.level_before if before.level_before is not None else before.window.level
    return was is not None and level is not None and now.metric == old.metric and level <= was


def rates_of(incidents: Iterable[Incident]) -> list[Incident]:
    """Return the incidents of the learning rate that are not on a branch that was left."""
    return [one for one in incidents if kind_of(one.kind).root_cause and not one.dead]


def marked_by_rate(incident: Incident, rates: Iterable[Incident]) -> list[Incident]:
    """Return those of ``rates`` that were off when an incident began, or until right before."""
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
    """Return the first step at which any of the incidents shows, or the rate that caused it; None for no incident.

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
    """Return the open incidents from whose onset on no checkpoint is good: those that one would go back for."""
    return [
        one
        for one in incidents
        if kind_of(one.kind).rollback_helps
        and _open(one)
        and not in_one_dataset(one)
        and (kind_of(one.kind).damages_weights or (one.suggestion is not None and one.suggestion.to_step is not None))
    ]


def damage_intervals(incidents: Iterable[Incident]) -> list[tuple[int, int]]:
    """Return (first step that may be bad, first step that was good again) of each damage that came back by itself.

    What the weights were in between is not to be trusted, although the incident is over.
    """
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
    """Return which incident the state after ``step`` is from inside of, None where it is from before all of them.

    Args:
        spoiled: what ``affects_weights`` returned.

    Returns:
        The one that began first.
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
    """Return where a checkpoint lies, seen from an onset."""
    distance = onset_step - step
    if distance == 0:
        return "at the onset"
    steps = f"{abs(distance):,} {'step' if abs(distance) == 1 else 'steps'}"
    return f"{steps} {'before' if distance > 0 else 'after'} the onset"
