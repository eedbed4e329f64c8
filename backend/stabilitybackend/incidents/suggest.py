"""Says what to do about an incident: wait, go back and to where, change, look at; each with its source. Pure.

The advice is made from what is known when a finding is made: the incident with its evidence, the checkpoints, and what
the run went through before. Whoever reads it decides; nothing here acts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from stabilitybackend.detectors.engine.metric_roles import GRAD_NORM, LR, role_of
from stabilitybackend.incidents import references as lit
from stabilitybackend.incidents.rollback_target import (
    Target,
    Usable,
    interval_of,
    spoiling,
    target,
    usual_wait,
    went_back_for,
)
from stabilitybackend.incidents.suggest_machine import MACHINE_RULES
from stabilitybackend.incidents.suggestion import Case, over, suggestion
from stabilitybackend.schema.incidents import Incident, Suggestion
from stabilitybackend.schema.kinds import kind_of

__all__ = ["has_advice", "suggest"]

#: What the learning rate is multiplied with where a rollback alone is not expected to help.
LR_SCALE = 0.5
#: So many spikes in the last points make them a habit of the optimizer and not of one batch.
MANY_SPIKES = 3
MANY_SPIKES_POINTS = 1_000
#: Gradients that were so much smaller than usual before the onset, and then so many times larger than that.
QUIET_RATIO = 0.7
BURST_RATIO = 3.0
#: A burst of the gradients that is evidence for the optimizer's state by itself.
HUGE_BURST_RATIO = 10.0
#: A learning rate that rose by so much, percent, so many logged points before the onset at most, is looked at first.
RATE_RISE_PERCENT = 50.0
SCHEDULE_POINTS = 8
#: Trouble so many logged points after a fork is also looked at as a bad resume.
FORK_POINTS = 16
#: A loss of a model that only guesses is ln(classes or vocabulary); no vocabulary has more entries.
MOST_CLASSES = 1_000_000


def has_advice(kind: str) -> bool:
    """Say whether there is ever something to suggest about incidents of a kind."""
    return kind in _RULES or bool(kind_of(kind).advice)


def suggest(
    incident: Incident,
    checkpoints: Usable,
    now_step: int,
    history: Iterable[Incident] = (),
) -> Suggestion | None:
    """Return the suggestion for an incident, or None where there is nothing to say.

    Args:
        incident: with its evidence; the suggestion that it has does not count.
        checkpoints: those that can be gone back to.
        now_step: newest step that the incident's detector saw.
        history: the run's incidents, oldest first; this one among them does not count.
    """
    rule, advice = _RULES.get(incident.kind), kind_of(incident.kind).advice
    if rule is None and not advice:
        return None
    if incident.state != "open" and incident.kind not in _ALSO_AFTERWARDS:
        return over(incident)
    if rule is None:
        return suggestion("inspect", advice)
    others = [other for other in history if other.incident_id != incident.incident_id]
    return rule(Case(incident, checkpoints, now_step, others))


# --- spikes, divergences, NaN --------------------------------------------------------------------------------------


def _spike(case: Case) -> Suggestion:
    incident = case.incident
    if incident.state != "open":
        return over(incident, (*_after_fork(case), *(_optimizer_checks(case) if _many_spikes(case) else ())))
    if incident.severity == "info":
        return suggestion("wait", "Not sure yet whether this is one: nothing to do but to look again in some points.")
    wait, known = usual_wait(incident, case.history)
    back, again = _back(case)
    if incident.recovery == "none" or case.now_step - case.onset >= wait:
        return _roll_back(case, back, again, lr_scale=LR_SCALE if incident.recovery == "none" or again else None)
    until = case.onset + wait
    based = (
        f"{known} earlier {'spike' if known == 1 else 'spikes'} of this run" if known else "this run had no earlier one"
    )
    text = (
        f"{_schedule(case)}Wait until step {until} ({wait} steps from the onset; {based}): a spike that comes at once "
        "mostly recovers. "
    )
    checks = (*_after_fork(case), *_optimizer_checks(case))
    if back is None:
        return suggestion("wait", text + _no_checkpoint(case), wait_steps=wait, checklist=checks, sources=[lit.IDEFICS])
    lr = LR_SCALE if again is not None else None
    text += f"If it does not come back by itself: {_way(case, back, lr, again)}"
    return suggestion(
        "wait",
        text,
        back,
        wait_steps=wait,
        lr_scale=lr,
        reseed=again is not None,
        checklist=checks,
        sources=[lit.IDEFICS, back.source],
    )


def _divergence(case: Case) -> Suggestion:
    if case.incident.severity == "info":
        return suggestion("wait", "The loss drifts: look at the learning rate, and again in some points.")
    back, again = _back(case)
    return _roll_back(case, back, again, lr_scale=LR_SCALE)


def _nonfinite(case: Case) -> Suggestion:
    incident = case.incident
    if incident.state != "open":
        return over(incident, lit.NONFINITE_CHECKS[1:])
    if role_of(incident.metric or "") == GRAD_NORM:
        back, _ = _back(case)
        text = (
            "Look at the loss: while it is finite the optimizer or the loss scaler skips such a step. If it lasts for "
            "more than a few steps, or the loss follows, go back."
        )
        return suggestion("inspect", text, back, checklist=lit.NONFINITE_CHECKS, sources=[lit.MEGATRON])
    back, again = _back(case)
    gradients_first = any(
        role_of(move.metric) == GRAD_NORM and move.onset_step is not None and move.onset_step < case.onset
        for move in case.curve.moved_first
    )
    lr = LR_SCALE if again is not None or gradients_first else None
    return _roll_back(case, back, again, lr_scale=lr, checks=lit.NONFINITE_CHECKS, sources=[lit.MEGATRON])


def _schedule(case: Case) -> str:
    """Return a first sentence where the learning rate jumped up right before the onset, else ""."""
    curve = case.curve
    reach = SCHEDULE_POINTS * interval_of(case.incident)
    jumps = [fact for fact in curve.nearby if fact.what == "lr" and -reach <= fact.distance <= 0]
    rising = any(
        role_of(move.metric) == LR and (move.rise_percent or 0.0) >= RATE_RISE_PERCENT for move in curve.moved_first
    )
    if not jumps or not rising:
        return ""
    return f"Look at the schedule first: {jumps[0].text} at step {jumps[0].step}. "


def _after_fork(case: Case) -> tuple[str, ...]:
    """Return the list for a bad resume where the run had just been restarted or rolled back."""
    reach = FORK_POINTS * interval_of(case.incident)
    near = any(fact.what == "fork" and -reach <= fact.distance <= 0 for fact in case.curve.nearby)
    return lit.RESUME_CHECKS if near else ()


def _back(case: Case) -> tuple[Target | None, int | None]:
    """Return where to go back to, and the step of the rollback that did not help; then it has to go further back."""
    again = went_back_for(case.incident, case.history)
    below = math.inf if again is None else again
    return target(case.incident, case.checkpoints, case.now_step, below, spoiling(case.history)), again


def _roll_back(
    case: Case,
    back: Target | None,
    again: int | None,
    *,
    lr_scale: float | None = None,
    checks: Iterable[str] = (),
    sources: Iterable[str] = (),
) -> Suggestion:
    checklist = [*checks, *_after_fork(case), *_optimizer_checks(case)]
    if back is None:
        return suggestion("wait", _schedule(case) + _no_checkpoint(case), checklist=checklist)
    found = lit.IDEFICS if again is not None else lit.OPT if lr_scale is not None else ""
    way = _way(case, back, lr_scale, again)
    return suggestion(
        "roll_back",
        _schedule(case) + way[0].upper() + way[1:],
        back,
        lr_scale=lr_scale,
        reseed=again is not None,
        checklist=checklist,
        sources=[found, back.source, *sources],
    )


def _way(case: Case, back: Target, lr_scale: float | None, again: int | None) -> str:
    """Return the sentences about a rollback."""
    first, last = back.skip_range
    text = (
        f"roll back to the checkpoint of step {back.to_step}, {case.onset - back.to_step} steps before the onset, and "
        f"skip {back.skip} batches (those of the steps {first} to {last}) so that the same data is not met again."
    )
    if lr_scale is not None:
        text += f" Go on with the learning rate times {lr_scale:g}."
    if again is not None:
        text += f" The rollback to step {again} did not cure it: this one goes further back if it can, with a new seed."
    return f"{text} {back.lost} steps are trained again."


def _no_checkpoint(case: Case) -> str:
    return (
        f"No checkpoint from before step {case.onset} is at hand, so there is nothing to go back to. "
        "Save one as soon as it is over."
    )


def _many_spikes(case: Case) -> bool:
    low = case.onset - MANY_SPIKES_POINTS * interval_of(case.incident)
    spikes = [i for i in case.history if i.kind == "spike" and i.severity != "info" and not i.dead]
    earlier = {spike.onset_step for spike in spikes if low <= spike.onset_step < case.onset}
    return len(earlier) + 1 >= MANY_SPIKES


def _optimizer_checks(case: Case) -> tuple[str, ...]:
    """Return what to change in optimizer or model where the evidence points to it; each line has its source."""
    lines: list[str] = []
    curve = case.curve
    quiet, burst = curve.gradients.quiet_ratio, curve.gradients.burst_ratio
    stale = quiet <= QUIET_RATIO and burst >= BURST_RATIO
    # A burst that one data set brought is that data's doing and means nothing for the optimizer.
    burst_alone = burst >= HUGE_BURST_RATIO and case.incident.dataset is None
    if stale or burst_alone or _many_spikes(case):
        why = (
            f"gradients were {quiet:.2g} x their usual size and then {burst:.2g} x that"
            if stale
            else f"the gradient norm rose {burst:.2g} x"
            if burst_alone
            else "spikes come again and again"
        )
        lines += [f"Adam's state is suspected ({why}): {lit.ADAM}.", *lit.ADAM_CHECKS]
    for logit in curve.growing[:2]:
        name = logit.metric.lower()
        line = lit.ATTENTION_LOGITS if "att" in name or "qk" in name else lit.OUTPUT_LOGITS
        lines.append(f"{line.format(metric=logit.metric, rise=logit.rise_percent)} {lit.PROXIES}.")
    return tuple(lines)


# --- data and resumes ----------------------------------------------------------------------------------------------


def _resume(case: Case) -> Suggestion:
    schedule = _schedule(case)
    text = "Something was not restored as it was. Go through the list; a rollback helps only once the cause is gone."
    # The bump passes, a learning rate that was not restored stays.
    return _inspect(case, schedule + text, lit.RESUME_CHECKS, lit.RESUMES, ended=bool(schedule))


def _mix(case: Case) -> Suggestion:
    text = "The sampler draws another mixture than before. Stop feeding it: correct the sampler, then go back"
    back, _ = _back(case)
    text += f" to the checkpoint of step {back.to_step} and train on from there." if back else " to a checkpoint."
    return _inspect(case, text, lit.MIX_CHECKS)


def _repeat(case: Case) -> Suggestion:
    text = (
        "The model sees data that it has seen: the loss is lower than the truth, and will jump when new data comes. "
        "Correct the data position before the next resume; go back if more than a small share was repeated."
    )
    return _inspect(case, text, lit.REPEAT_CHECKS, ended=True)


def _level(case: Case) -> Suggestion:
    incident, curve = case.incident, case.curve
    excuses = [text for text in curve.explained_by if text]
    if excuses:
        return suggestion(
            "none", f"Nothing to do if this was meant: {'; '.join(excuses[:3])}.", checklist=lit.LEVEL_CHECKS[:1]
        )
    if incident.severity == "info" or incident.state != "open":
        return suggestion("none", "Nothing to do: the loss found another level.", checklist=lit.LEVEL_CHECKS)
    before, after = curve.level_before or 0.0, curve.level_after or 0.0
    checks = list(lit.LEVEL_CHECKS)
    if before > 0 and after > 0:
        checks.insert(
            0,
            f"The new level is {after / before:.4g} x the old one: a plain fraction such as 3/2 points to accounting.",
        )
    back, again = _back(case)
    way = _roll_back(case, back, again, checks=checks)
    return replace(way, text=f"First find out what changed at step {case.onset}. If nothing was meant to: {way.text}")


def _plateau(case: Case) -> Suggestion:
    checks = list(lit.PLATEAU_CHECKS)
    curve = case.curve
    level = curve.window.level if curve.level_after is None else curve.level_after
    if level is not None and 0 < level < math.log(MOST_CLASSES):
        guess = f"{math.exp(level):.4g}"
        checks.insert(0, f"exp(loss) is {guess}: if there are so many classes or tokens, the model only guesses.")
    return suggestion("inspect", "The loss does not fall any more. More steps alone will not help.", checklist=checks)


# --- gradients ----------------------------------------------------------------------------------------


def _gradients(case: Case) -> Suggestion:
    return suggestion("none", lit.GRADIENTS, checklist=_optimizer_checks(case), sources=[lit.MEASURED_GRADIENTS])


# --- sentences -----------------------------------------------------------------------------------------------------


def _inspect(case: Case, text: str, checks: Iterable[str], source: str = "", *, ended: bool = False) -> Suggestion:
    """Return an ``inspect`` with the checkpoint that a rollback would go to."""
    if case.incident.state != "open" and not ended:
        return over(case.incident, checks)
    back, _ = _back(case)
    return suggestion("inspect", text, back, checklist=checks, sources=[source])


_RULES: Mapping[str, Callable[[Case], Suggestion]] = {
    "spike": _spike,
    "divergence": _divergence,
    "nonfinite": _nonfinite,
    "resume_artifact": _resume,
    "data_mix_drift": _mix,
    "repeat_data": _repeat,
    "level_shift": _level,
    "plateau": _plateau,
    "grad_norm": _gradients,
    **MACHINE_RULES,
}
#: Kinds about which there is more to say than that it is over, also when it is.
_ALSO_AFTERWARDS = frozenset(
    {"spike", "nonfinite", "resume_artifact", "data_mix_drift", "repeat_data", "level_shift", "process_death"}
)
