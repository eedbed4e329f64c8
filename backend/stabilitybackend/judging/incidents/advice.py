"""The one advice of a run, for all its open incidents: wait, correct a cause, roll back to a checkpoint. Pure.

Two incidents of one run never advise different steps: the most urgent one is primary, and its checkpoint is older than
the first sign of any open or accepted one.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from stabilitybackend.judging.incidents.affecting import (
    RATE_POINTS,
    damage_intervals,
    first_sign,
    in_one_dataset,
    interval_of,
    marked_by_rate,
    open_or_accepted,
    rates_of,
)
from stabilitybackend.judging.incidents.rollback_target import (
    RollbackTarget,
    Tried,
    Usable,
    bad_batches,
    target,
    tried,
    usual_wait,
)
from stabilitybackend.schema.evidence import CurveFacts, facts
from stabilitybackend.schema.incidents import Fix, Incident
from stabilitybackend.schema.metric_roles import GRAD_NORM, LR, role_of

__all__ = ["Advice", "advice_of", "demand_of", "jumped_rate"]

#: Factor on the learning rate where a rollback alone is not expected to help.
LR_SCALE = 0.5
#: Rollbacks to before the first sign without success that rule out the weights as the cause: the first goes by the
#: evidence, the second further back with a new seed and half the rate. Nothing is left for a third.
VAIN_ROLLBACKS = 2
#: Rise of a learning rate right before the onset (``RATE_POINTS``) that makes it a suspect, percent.
RATE_RISE_PERCENT = 50.0

Asked = Literal["wait", "inspect", "roll_back"]
#: Rising urgency.
_URGENCY: tuple[Asked, ...] = ("wait", "inspect", "roll_back")
#: Kind -> correction needed before a rollback, causes before their effects.
_FIXES: dict[str, Fix] = {
    "learning_rate": "schedule",
    "data_mix_drift": "mixture",
    "repeat_data": "data position",
    "resume_artifact": "resume",
    "level_shift": "change",
}
#: Kinds that a bad batch may cause, and those caused by bad data if one data set carries them.
_BY_BATCH = frozenset({"spike", "nonfinite"})
_BY_DATA = frozenset({"divergence"})


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand of one open incident by itself.

    Args:
        action: the least one.
        halves: a rollback alone is not expected to help.
        until: of ``wait``: its last step.
        known: of ``wait``: number of earlier spikes behind it.
        again: rollbacks that did not help, newest first.
    """

    action: Asked
    halves: bool = False
    until: int | None = None
    known: int = 0
    again: tuple[Tried, ...] = ()


@dataclass(frozen=True, slots=True)
class Advice:
    """The one advice of a run.

    Args:
        primary: the incident with the most urgent demand; of those to inspect the one whose cause is corrected first,
            of equals the first.
        action, until, known, again: of its demand.
        fix_first: correction needed before a rollback.
        incurable: rollbacks did not help, and another one will not.
        back: target of a rollback, None without a checkpoint from before the first sign; of an incurable one, the start
            after the correction.
        sign: first step of any open or accepted incident.
        affecting: incidents that the checkpoint must predate, first onset first.
        rates: incidents of the learning rate during or right before the primary one.
        lr_scale, reseed: other changes of a rollback.
        good_data: no evidence of a bad batch.
    """

    primary: Incident
    action: Asked
    until: int | None
    known: int
    again: tuple[Tried, ...]
    fix_first: Fix
    incurable: bool
    back: RollbackTarget | None
    sign: int
    affecting: tuple[Incident, ...]
    rates: tuple[Incident, ...]
    lr_scale: float | None
    reseed: bool
    good_data: bool


def advice_of(incidents: Collection[Incident], checkpoints: Usable, now_step: int) -> Advice | None:
    """Return the one advice of a run, None without an open incident that a rollback would help.

    Args:
        incidents: all of the run, oldest first.
        checkpoints: usable ones.
        now_step: newest step of the run.
    """
    asked = {
        one.incident_id: (one, asks) for one in incidents if (asks := demand_of(one, now_step, incidents)) is not None
    }
    if not asked:
        return None
    primary, asks = min(asked.values(), key=_rank)
    affecting = sorted(
        open_or_accepted([*incidents, *(one for one, _ in asked.values())]), key=lambda one: one.onset_step
    )
    affecting = list({one.incident_id: one for one in affecting}.values())
    rates = tuple(rate for rate in rates_of(incidents) if rate in marked_by_rate(primary, [rate]))
    again = max((one.again for _, one in asked.values()), key=len)
    fix_first: Fix = "schedule" if _broken(primary, rates, again) else _first_fix([one for one, _ in asked.values()])
    sign = first_sign(affecting, incidents)
    assert sign is not None  # advice is made for ill runs only
    incurable = sum(one.outside for one in again) >= VAIN_ROLLBACKS
    tried_step = min((one.back.step for one in again), default=math.inf)
    by_rate = bool(rates) or jumped_rate(primary) != ""
    suspects = [one for one, _ in asked.values() if one.kind in _BY_BATCH or (one.kind in _BY_DATA and one.dataset)]
    data = bool(suspects) and not by_rate and not again and fix_first in ("", "change")
    # Of a wait: the range at its end.
    ranges = [bad_batches(one, max(now_step, asked[one.incident_id][1].until or 0)) for one in suspects]
    bad = (min(first for first, _ in ranges), max(last for _, last in ranges)) if data else None
    below = tried_step + 1 if incurable else tried_step
    back = target(sign, checkpoints, now_step, below, bad, damage_intervals(incidents))
    changes = back is not None and not incurable
    halves = changes and not by_rate and any(one.halves for _, one in asked.values())
    return Advice(
        primary,
        "inspect" if incurable else asks.action,
        None if incurable else asks.until,
        asks.known,
        again,
        (fix_first or "cause") if incurable else fix_first,
        incurable,
        back,
        sign,
        tuple(affecting),
        rates,
        LR_SCALE if halves else None,
        changes and bool(again),
        not data,
    )


def demand_of(incident: Incident, now_step: int, incidents: Collection[Incident]) -> Demand | None:
    """Return the demand of an incident by itself, None for none.

    Args:
        incidents: of the run; it may be among them.
    """
    if incident.state != "open" or incident.dead or incident.severity == "info" or in_one_dataset(incident):
        return None
    curve = facts(incident.evidence, CurveFacts)
    others = [one for one in incidents if one.incident_id != incident.incident_id]
    again = tuple(tried(incident, others))
    if incident.kind == "spike":
        wait, known = usual_wait(incident, others)
        lost = incident.recovery == "none"
        if lost or now_step - incident.onset_step >= wait:
            return Demand("roll_back", halves=lost or bool(again), again=again)
        return Demand("wait", bool(again), incident.onset_step + wait, known, again)
    if incident.kind == "divergence":
        return Demand("roll_back", halves=True, again=again)
    if incident.kind == "nonfinite":
        if role_of(incident.metric or "") == GRAD_NORM:
            return Demand("inspect", again=again)
        first = any(
            role_of(move.metric) == GRAD_NORM and move.onset_step is not None and move.onset_step < incident.onset_step
            for move in curve.moved_first
        )
        return Demand("roll_back", halves=first or bool(again), again=again)
    if incident.kind == "level_shift":
        return None if any(curve.explained_by) else Demand("roll_back", again=again)
    return Demand("inspect", again=again) if incident.kind in _FIXES else None


def _rank(asked: tuple[Incident, Demand]) -> tuple[int, int, int, str]:
    """Return the sort key of a demand, the primary one first."""
    one, asks = asked
    causes = [*_FIXES] if asks.action == "inspect" else []
    cause = causes.index(one.kind) if one.kind in causes else len(_FIXES)
    return -_URGENCY.index(asks.action), cause, one.onset_step, one.incident_id


def jumped_rate(incident: Incident) -> str:
    """Return a sentence on a jump of the learning rate right before the onset, "" for none."""
    curve = facts(incident.evidence, CurveFacts)
    reach = RATE_POINTS * interval_of(incident)
    jumps = [fact for fact in curve.nearby if fact.what == "lr" and -reach <= fact.distance <= 0]
    rising = any(
        role_of(move.metric) == LR and (move.rise_percent or 0.0) >= RATE_RISE_PERCENT for move in curve.moved_first
    )
    return f"{jumps[0].text} at step {jumps[0].step}" if jumps and rising else ""


def _broken(primary: Incident, rates: Collection[Incident], again: Collection[Tried]) -> bool:
    """Return whether the schedule needs a correction: not for a rate that returned by itself.

    A rate that left its past again after a rollback is a fault of the schedule.
    """
    if rates:
        return bool(again) or any(rate.state == "open" for rate in rates)
    return jumped_rate(primary) != ""


def _first_fix(incidents: Collection[Incident]) -> Fix:
    found = [fix for kind, fix in _FIXES.items() if any(one.kind == kind for one in incidents)]
    return found[0] if found else ""
