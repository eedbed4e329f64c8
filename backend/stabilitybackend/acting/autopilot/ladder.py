"""Decides on the autopilot's action: wait, roll back, leave it to people. Pure.

Time, checkpoint and changes follow the advice of the run (``incidents/advice.py``). A command without a person has
further conditions: it waits longer, takes only verified checkpoints, never goes to the same one twice, and asks people
where the advice or the job is unclear. The same incidents, position and earlier commands give the same decision.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from msgspec import structs

from stabilitybackend.acting.autopilot.policy import Policy
from stabilitybackend.judging.incidents.advice import Advice, advice_of, demand_of
from stabilitybackend.judging.incidents.rollback_target import UsableOf, usual_wait
from stabilitybackend.schema.commands import NOT_CARRIED_OUT, OPEN_STATES, CommandRequest, State
from stabilitybackend.schema.evidence import CurveFacts, facts
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.job.autopilot import PilotAction, PilotEntry, PilotPhase
from stabilitybackend.schema.kinds import kind_of
from stabilitybackend.schema.lineage import Checkpoint
from stabilitybackend.schema.resumes import ORDER_NOT_FOLLOWED

__all__ = ["IDLE", "PilotDecision", "PilotSituation", "decide", "gave_up"]

#: New seeds are below this.
_SEEDS = 1 << 31
#: A spike is coming back where its height, in the newer half of the points since the onset or at the newest point, is
#: at most this share of that in the older half. It then gets this many times the usual time at most. On tuning seeds a
#: steeper fall (0.7) costs about as many steps as it saves: after 50 steps a falling spike can't be classified
#: (docs/autopilot.md).
_COMING_BACK, _PATIENCE = 0.9, 3
#: Fewest points for this test.
_FEW_POINTS = 8
#: Never a reason: mostly accounting, to be judged by people.
_NEVER = "level_shift"


@dataclass(frozen=True, slots=True)
class PilotSituation:
    """Input of a decision.

    Args:
        incidents: of the run, oldest first.
        checkpoints: as the API has them.
        now_step: newest step of the run.
        head_key: the ranks' key of the present segment.
        cannot: changes that the job does not promise -> reason.
        entries: earlier ones, oldest first.
        outcomes: id of an entry -> state of its command; none for a forgotten one.
        curve: of an incident's metric, its effective values from the onset on; may read them lazily.
        no_rollback: why the job would not obey a rollback, a clause; "" for no reason.
    """

    run_id: str
    incidents: Sequence[Incident]
    checkpoints: Sequence[Checkpoint]
    now_step: int
    head_key: str
    cannot: Mapping[str, str]
    entries: Sequence[PilotEntry]
    outcomes: Mapping[str, State]
    curve: Callable[[Incident], Sequence[float]] = lambda incident: ()
    no_rollback: str = ""


@dataclass(frozen=True, slots=True)
class PilotDecision:
    """A decision.

    Args:
        phase, text: for people.
        until_step: the step it waits for. to_step: of the rollback.
        entry: new one, to be stored, and carried out unless a dry run. None for none.
        request: the command of the entry.
    """

    phase: PilotPhase
    text: str
    until_step: int | None = None
    to_step: int | None = None
    incident_id: str | None = None
    entry: PilotEntry | None = None
    request: CommandRequest | None = None


#: The usual decision.
IDLE = PilotDecision("idle", "Nothing is open that one goes back for.")


def decide(now: PilotSituation, policy: Policy) -> PilotDecision:
    """Return the decision."""
    advice = advice_of(now.incidents, _usable(now, policy), now.now_step)
    if advice is None:
        return IDLE
    primary = advice.primary
    if (why := _held(now, policy, advice)) is not None:
        return PilotDecision(why[0], why[1], incident_id=primary.incident_id)
    known = [one for one in now.entries if one.dry_run == policy.dry_run]
    if (before := _answered(known, now)) is not None:
        return PilotDecision(before[0], before[1], incident_id=primary.incident_id)
    goes = _order(now, policy, advice, known)
    seen = _seen(advice, policy)
    until = max(seen + policy.wait_steps, advice.until or 0)
    what = _name(primary)
    if advice.action == "wait" or now.now_step < until:
        then = goes if isinstance(goes, str) else f"rolls back to step {goes.to_step:,}{_changes(goes)}"
        then = f"asks people: {then}" if isinstance(goes, str) else then
        text = f"The {what} may pass: waits until step {until:,}, then {then}."
        to_step = None if isinstance(goes, str) else goes.to_step
        return PilotDecision("waits", text, until, to_step, primary.incident_id)
    patient = seen + _PATIENCE * max(policy.wait_steps, _usual(now, primary))
    if now.now_step < patient and _comes_back(now, primary):
        text = f"The {what} is coming back: waits for it, until step {patient:,} at most."
        return PilotDecision("waits", text, patient, None, primary.incident_id)
    if isinstance(goes, str):
        return gave_up(now, policy, primary, goes)
    taken = next(one for one in now.checkpoints if one.step == goes.to_step and one.usable)
    entry = _entry(now, policy, primary, "roll_back", goes.reason, goes.to_step)
    seed = None if goes.seed is None else int(hashlib.sha256(entry.entry_id.encode()).hexdigest(), 16) % _SEEDS
    entry = structs.replace(
        entry, to_step=goes.to_step, segment=taken.segment, skip_range=goes.skip_range,
        skip_batches=goes.skip_batches, lr_scale=goes.lr_scale, seed=seed,
    )  # fmt: skip
    would = "Would roll" if policy.dry_run else "Rolls"
    text = f"{would} back to step {goes.to_step:,}{_changes(goes)}."
    return PilotDecision("under way", text, None, goes.to_step, primary.incident_id, entry, replace(goes, seed=seed))


def gave_up(now: PilotSituation, policy: Policy, primary: Incident, why: str) -> PilotDecision:
    """Return the decision to leave an incident to people; why: a clause."""
    entry = _entry(now, policy, primary, "gave_up", why, None)
    return PilotDecision(
        "handed over", f"Leaves the {_name(primary)} to people: {why}.", None, None, primary.incident_id, entry
    )


# --- what holds it back --------------------------------------------------------------------------------------------


def _held(now: PilotSituation, policy: Policy, advice: Advice) -> tuple[PilotPhase, str] | None:
    """Return the reason against any command, whatever the curves; None for none."""
    live = [one for one in now.incidents if one.state == "open" and not one.dead]
    for one in live:
        kind = kind_of(one.kind)
        if kind.stops_job or kind.about == "gpu" or one.kind == ORDER_NOT_FOLLOWED:
            return "held", f"Held back while this is open: {_name(one)}. The machines first."
    for one in live:
        if one.kind == _NEVER and demand_of(one, now.now_step, now.incidents) is not None:
            return "held", f"Held back: a {_name(one)} is for people. It may be accounting and no damage."
    if advice.primary.kind not in policy.act_on:
        allowed = ", ".join(policy.act_on)
        return "held", f"The {_name(advice.primary)} is left to people: the policy acts on {allowed}."
    if advice.action == "inspect" and not advice.incurable:
        return "held", f"The {_name(advice.primary)} is to be looked at first: nothing is ordered."
    return None


def _answered(known: Sequence[PilotEntry], now: PilotSituation) -> tuple[PilotPhase, str] | None:
    """Return the decision on earlier entries about open incidents, None for a new one."""
    live = {one.incident_id for one in now.incidents if one.state == "open" and not one.dead}
    for one in reversed(known):
        outcome = None if one.dry_run else now.outcomes.get(one.entry_id)
        if one.action == "gave_up" and one.incident_id in live:
            return "handed over", f"Left to people at step {one.step:,}: {one.text}."
        if one.action == "roll_back" and one.dry_run and one.incident_id in live:
            return "idle", f"Would have rolled back to step {one.to_step:,} at step {one.step:,}; that is still open."
        if one.action == "roll_back" and (outcome in OPEN_STATES or outcome == "acted"):
            return "under way", f"Its rollback to step {one.to_step:,} is under way ({outcome})."
    return None


# --- the order ------------------------------------------------------------------------------------------------------


def _order(now: PilotSituation, policy: Policy, advice: Advice, known: Sequence[PilotEntry]) -> CommandRequest | str:
    """Return the advised rollback, or a clause why people are asked."""
    if now.no_rollback:
        return now.no_rollback
    if advice.incurable:
        return f"{len(advice.again)} rollbacks did not cure it, the cause is elsewhere"
    if advice.fix_first:
        return f"a rollback helps only once this is corrected: {advice.fix_first}"
    if (failed := _failed(known, now)) is not None:
        return failed
    which = "verified" if policy.checkpoints == "verified" else "usable"
    if advice.back is None:
        return f"no {which} checkpoint that it has not used is older than the first sign (step {advice.sign:,})"
    begin = now.now_step - policy.limit.in_steps
    recent = sum(one.action == "roll_back" and one.step > begin and _done(one, now) for one in known)
    if recent >= policy.limit.actions:
        times = "once" if recent == 1 else f"{recent} times"
        return f"it has gone back {times} within {policy.limit.in_steps:,} steps, the policy allows no more"
    wanted = {
        "skip_batches": advice.back.bad is not None, "lr_scale": advice.lr_scale is not None, "seed": advice.reseed,
    }  # fmt: skip
    refused = [name for name, needed in wanted.items() if needed and name not in policy.changes]
    if refused:
        return f"the advice asks for {_words(refused)}, which the policy does not allow"
    blind = {"skip_batches", "skip_range"} <= now.cannot.keys()
    unable = [name for name in ("lr_scale", "seed") if wanted[name] and name in now.cannot]
    unable += ["skip_batches"] if wanted["skip_batches"] and blind else []
    if unable:
        return f"the advice asks for {_words(unable)}, and {now.cannot[unable[0]]}"
    bad = advice.back.bad
    by_range = bad is not None and "skip_range" not in now.cannot
    return CommandRequest(
        "rollback",
        to_step=advice.back.to_step,
        lr_scale=advice.lr_scale,
        seed=0 if advice.reseed else None,
        skip_range=list(bad) if bad is not None and by_range else None,
        skip_batches=None if bad is None or by_range else advice.back.skip,
        reason=f"{_name(advice.primary)} has lasted until step {now.now_step:,}; newest {which} checkpoint "
        f"from before its first sign (step {advice.sign:,})",
    )


def _failed(known: Sequence[PilotEntry], now: PilotSituation) -> str | None:
    """Return a clause if the last command on this head failed, else None."""
    for one in reversed(known):
        state = now.outcomes.get(one.entry_id)
        if one.head_key == now.head_key and state in NOT_CARRIED_OUT:
            return f"its rollback to step {one.to_step:,} was not carried out ({state})"
    return None


def _usable(now: PilotSituation, policy: Policy) -> UsableOf:
    """Return the possible checkpoints: never one of an earlier rollback."""
    used = {(one.to_step, one.segment) for one in now.entries if one.action == "roll_back" and _done(one, now)}
    verified = policy.checkpoints == "verified"
    return UsableOf(
        one for one in now.checkpoints if (one.complete or not verified) and (one.step, one.segment) not in used
    )


def _done(entry: PilotEntry, now: PilotSituation) -> bool:
    """Return whether an entry's rollback happened, or is under way."""
    return not entry.dry_run and now.outcomes.get(entry.entry_id) not in NOT_CARRIED_OUT


def _comes_back(now: PilotSituation, incident: Incident) -> bool:
    """Return whether a spike gets smaller, or has just ended: bad data end from one step to the next."""
    level = facts(incident.evidence, CurveFacts).window.level
    if incident.kind != "spike" or level is None:
        return False
    heights = [value - level for value in now.curve(incident) if math.isfinite(value)]
    if len(heights) < _FEW_POINTS:
        return False
    half = len(heights) // 2
    return min(median(heights[half:]), heights[-1]) <= _COMING_BACK * median(heights[:half])


def _seen(advice: Advice, policy: Policy) -> int:
    """Return the step of the first detection, the start of the wait."""
    return min(
        [one.step for one in advice.affecting if one.state == "open" and one.kind in policy.act_on]
        or [advice.primary.step]
    )


def _usual(now: PilotSituation, incident: Incident) -> int:
    """Return the steps that the advice waits for such a spike: in a log with few rows more than the policy's."""
    return usual_wait(incident, [one for one in now.incidents if one.incident_id != incident.incident_id])[0]


# --- words ----------------------------------------------------------------------------------------------------------

_WORDS = {"skip_batches": "leaving out batches", "lr_scale": "a lower learning rate", "seed": "a new seed"}


def _entry(
    now: PilotSituation, policy: Policy, primary: Incident, action: PilotAction, text: str, to_step: int | None
) -> PilotEntry:
    parts = (now.run_id, now.head_key, action, primary.incident_id, str(to_step), str(policy.dry_run))
    entry_id = "p-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return PilotEntry(
        entry_id=entry_id, action=action, dry_run=policy.dry_run, step=now.now_step, head_key=now.head_key,
        incident_id=primary.incident_id, kind=primary.kind, onset_step=primary.onset_step, text=text,
    )  # fmt: skip


def _name(incident: Incident) -> str:
    return f"{kind_of(incident.kind).short} of step {incident.onset_step:,}"


def _words(names: Sequence[str]) -> str:
    return " and ".join(_WORDS[name] for name in names)


def _changes(request: CommandRequest) -> str:
    """Return the other changes of a rollback, as text after its step."""
    span, count = request.skip_range, request.skip_batches
    found = [
        f"leaves out the batches of steps {span[0]:,} to {span[1]:,}" if span else "",
        f"leaves out {count:,} batches" if count else "",
        f"LR x {request.lr_scale:g}" if request.lr_scale is not None else "",
        "new seed" if request.seed is not None else "",
    ]
    return "".join(f", {one}" for one in found if one)
