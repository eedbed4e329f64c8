"""Says what to do about an incident: wait, go back and to where, change, look at; each with its source. Pure.

The advice is made from what is known at a step: the incidents with their evidence, the checkpoints, and what the run
went through before. Whoever reads it decides; nothing here acts. All open incidents of a run that one goes back for
have the one advice of the run (``way.py``) and each its own checklist.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from stabilitybackend.judging.incidents import references as lit
from stabilitybackend.judging.incidents.illness import alone, given_up, interval_of
from stabilitybackend.judging.incidents.recipe import recipe_checks
from stabilitybackend.judging.incidents.rollback_target import Usable
from stabilitybackend.judging.incidents.suggest_machine import MACHINE_RULES
from stabilitybackend.judging.incidents.suggestion import Case, JobNow, over, suggestion
from stabilitybackend.judging.incidents.way import Way, asks_of, jumped_rate, way_of
from stabilitybackend.judging.incidents.way_text import way_text
from stabilitybackend.schema.evidence import SHARED_DATA, Growing, SharedDataFacts, facts
from stabilitybackend.schema.incidents import Action, Incident, Suggestion
from stabilitybackend.schema.kinds import kind_of
from stabilitybackend.schema.metric_roles import GRAD_NORM, role_of
from stabilitybackend.schema.resumes import ORDERS

__all__ = ["suggest"]

#: So many spikes in the last points make them a habit of the optimizer and not of one batch.
MANY_SPIKES = 3
MANY_SPIKES_POINTS = 1_000
#: Gradients that were so much smaller than usual before the onset, and then so many times larger than that.
QUIET_RATIO = 0.7
BURST_RATIO = 3.0
#: A burst of the gradients that is evidence for the optimizer's state by itself.
HUGE_BURST_RATIO = 10.0
#: Trouble so many logged points after a fork is also looked at as a bad resume.
FORK_POINTS = 16
#: A loss of a model that only guesses is ln(classes or vocabulary); no vocabulary has more entries.
MOST_CLASSES = 1_000_000


#: A job that is under way, and goes back on order.
_AT_WORK = JobNow()


def suggest(
    incident: Incident,
    checkpoints: Usable,
    now_step: int,
    history: Iterable[Incident] = (),
    job: JobNow = _AT_WORK,
) -> Suggestion | None:
    """Return the suggestion for an incident, or None where there is nothing to say.

    Args:
        incident: with its evidence; the suggestion that it has does not count.
        checkpoints: those that can be gone back to.
        now_step: newest step of the run.
        history: the run's incidents, oldest first; of this one what is given as ``incident`` counts.
        job: as it is now. Of one that is over only its death and its machines are worth advice.
    """
    rule, advice = _RULES.get(incident.kind), kind_of(incident.kind).advice
    if rule is None and not advice:
        return None
    if job.over and incident.state == "open" and not _outlives(incident):
        return None
    others = [other for other in history if other.incident_id != incident.incident_id]
    case = Case(incident, checkpoints, now_step, others, job)
    if asks_of(incident, now_step, others) is not None:
        way = way_of([*others, incident], checkpoints, now_step)
        if way is not None:
            return _of_run(case, way)
    if alone(incident):
        return _dataset(case)
    if given_up(incident) and incident.kind != "level_shift":
        return suggestion("none", _GIVEN_UP, checklist=_checks(case))
    if incident.state != "open" and incident.kind not in _ALSO_AFTERWARDS:
        return over(incident)
    if rule is None:
        return suggestion("inspect", advice)
    return rule(case)


def _outlives(incident: Incident) -> bool:
    """Say whether an incident is worth advice when its run has ended: how that ended, and its machines."""
    return incident.kind == "process_death" or kind_of(incident.kind).about == "gpu"


_GIVEN_UP = (
    "It did not come back, and its level counts as the usual one since. Until training is down at the level from "
    "before it, a rollback goes to a checkpoint from before it."
)


# --- what one goes back for ----------------------------------------------------------------------------------------


def _of_run(case: Case, way: Way) -> Suggestion:
    """Return the advice of the run, with the checklist of this incident."""
    action: Action = way.action
    if action == "roll_back" and (way.back is None or case.job.no_rollback):
        action = "wait" if way.back is None else "restart"
    sources = [lit.MEGATRON] if way.lead.kind == "nonfinite" else []
    if way.action == "wait" or way.again:
        sources.insert(0, lit.IDEFICS)
    elif way.lr_scale is not None:
        sources.insert(0, lit.OPT)
    if way.fix_first == "resume":
        sources.append(lit.RESUMES)
    if way.back is not None:
        sources.append(way.back.source)
    until = way.until if way.action == "wait" else None
    return suggestion(
        action,
        way_text(way, case.incident, case.checkpoints, _own(case), case.job.no_rollback),
        way.back,
        lr_scale=way.lr_scale,
        reseed=way.reseed,
        wait_steps=None if until is None else max(0, until - case.onset),
        until_step=until,
        fix_first=way.fix_first,
        leads=way.lead.incident_id,
        checklist=_checks(case),
        sources=sources,
    )


def _own(case: Case) -> str:
    """Return what is to be done about this incident before the run's advice."""
    incident = case.incident
    if incident.kind == "nonfinite" and role_of(incident.metric or "") == GRAD_NORM:
        return (
            "Look at the loss: while it is finite the optimizer or the loss scaler skips such a step. If it lasts for "
            "more than a few steps, or the loss follows:"
        )
    return ""


def _checks(case: Case) -> Sequence[str]:
    """Return what to go through about this incident."""
    kind, curve = case.incident.kind, case.curve
    if kind == "level_shift":
        before, after = curve.level_before or 0.0, curve.level_after or 0.0
        ratio = f"The new level is {after / (before or 1):.4g} x the old one: "
        exact = [ratio + "a plain fraction such as 3/2 points to accounting."] if before > 0 and after > 0 else []
        return [*exact, *lit.LEVEL_CHECKS, *_after_fork(case), *_optimizer_checks(case)]
    if kind in _CHECKS:
        own = _CHECKS[kind]
        return [*own, *_after_fork(case), *_optimizer_checks(case)] if kind == "nonfinite" else own
    return [*_after_fork(case), *_optimizer_checks(case)]


_CHECKS: Mapping[str, Sequence[str]] = {
    "nonfinite": lit.NONFINITE_CHECKS,
    "resume_artifact": lit.RESUME_CHECKS,
    "data_mix_drift": lit.MIX_CHECKS,
    "repeat_data": lit.REPEAT_CHECKS,
    "learning_rate": lit.RATE_CHECKS,
}


def _spike(case: Case) -> Suggestion:
    if case.curve.lone_since is not None:
        text = f"Look at the batches of the high points since step {case.curve.lone_since}: which data set, shard or "
        text += "worker brought them, and what changed there. No rollback is needed: each was back right after."
        return suggestion("inspect", text)
    if case.incident.state != "open":
        return over(case.incident, (*_after_fork(case), *(_optimizer_checks(case) if _many_spikes(case) else ())))
    return suggestion("wait", "Not sure yet whether this is one: nothing to do but to look again in some points.")


def _divergence(case: Case) -> Suggestion:
    return suggestion("wait", "The loss drifts: look at the learning rate, and again in some points.")


def _nonfinite(case: Case) -> Suggestion:
    if case.incident.state != "open":
        return over(case.incident, lit.NONFINITE_CHECKS[1:])
    text = "Not a number where that may be routine: look whether the loss stays finite, and again in some points."
    return suggestion("inspect", text, checklist=lit.NONFINITE_CHECKS, sources=[lit.MEGATRON])


def _after_fork(case: Case) -> tuple[str, ...]:
    """Return the list for a bad resume where the run had just been restarted or rolled back."""
    reach = FORK_POINTS * interval_of(case.incident)
    near = any(fact.what == "fork" and -reach <= fact.distance <= 0 for fact in case.curve.nearby)
    return lit.RESUME_CHECKS if near else ()


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
    lines += [_logit_line(case, logit) for logit in curve.growing[:2]]
    if case.incident.severity != "info" and (_unstable(case.incident) or _many_spikes(case)):
        lines += recipe_checks(case.job.recipe)
    return tuple(lines)


def _unstable(incident: Incident) -> bool:
    """Say whether an incident by itself is reason to look at the recipe: not one spike that may come back."""
    lost = incident.kind == "spike" and incident.recovery == "none"
    return lost or incident.kind in ("divergence", "nonfinite")


def _logit_line(case: Case, logit: Growing) -> str:
    name = logit.metric.lower()
    attention = "att" in name or "qk" in name
    line = lit.ATTENTION_LOGITS if attention else lit.OUTPUT_LOGITS
    if attention and case.job.recipe.qk_norm:
        line = lit.ATTENTION_LOGITS_WITH_NORM
    grew = f"{logit.metric} grew by {logit.rise_percent:.0f} %"
    if logit.since_step is not None and logit.start is not None and logit.end is not None:
        grew += f" since step {logit.since_step:,} (from {logit.start:.4g} to {logit.end:.4g})"
    return f"{line.format(grew=grew)} {lit.PROXIES}."


# --- data, resumes, levels -----------------------------------------------------------------------------------------


def _order(case: Case) -> Suggestion:
    text = (
        "What was ordered did not happen: correct the rollback handler, try it where nothing is lost, and order it "
        "again where the data or the rate still matters."
    )
    return suggestion("inspect", text, checklist=lit.ORDER_CHECKS)


def _resume(case: Case) -> Suggestion:
    jump = jumped_rate(case.incident)
    if case.incident.state != "open" and not jump:
        return over(case.incident, lit.RESUME_CHECKS)
    # The bump passes, a learning rate that was not restored stays.
    first = f"Look at the schedule first: {jump}. " if jump else ""
    text = "Something was not restored as it was. Go through the list; a rollback helps only once the cause is gone."
    return suggestion("inspect", first + text, checklist=lit.RESUME_CHECKS, sources=[lit.RESUMES])


def _dataset(case: Case) -> Suggestion:
    if case.incident.state == "recovered":
        return over(case.incident, lit.DATASET_CHECKS)
    if case.incident.state == "resolved":
        text = f"It did not come back. Where that was not meant, look at what {case.incident.dataset} reads since step "
        text += f"{case.onset}: going back would bring the same data again."
        return suggestion("none", text, checklist=lit.DATASET_CHECKS)
    text = (
        f"Only the data set {case.incident.dataset} is higher; the whole loss hardly shows it. Going back brings the "
        f"same data again: look at what it reads since step {case.onset}, and correct it or take it out of the mixture."
    )
    return suggestion("inspect", text, checklist=lit.DATASET_CHECKS)


def _mix(case: Case) -> Suggestion:
    if case.incident.state != "open":
        return over(case.incident, lit.MIX_CHECKS)
    text = (
        "The sampler draws another mixture than it should: nothing to do if that was meant, else correct the sampler."
    )
    return suggestion("inspect", text, checklist=lit.MIX_CHECKS)


def _repeat(case: Case) -> Suggestion:
    if any(case.curve.explained_by):
        excuses = "; ".join(case.curve.explained_by[:3])
        return suggestion("none", f"Nothing to do about it by itself: {excuses}.", checklist=lit.REPEAT_CHECKS)
    text = (
        "On data that the model has seen the loss is lower than the truth. Correct the data position before the next "
        "resume, with several ranks that of each; go back if more than a small share was repeated."
    )
    return suggestion("inspect", text, checklist=lit.REPEAT_CHECKS)


def _shared(case: Case) -> Suggestion:
    known = facts(case.incident.evidence, SharedDataFacts)
    if not known.offset_steps:
        text = (
            "Both runs read the same data at the same steps. That harms neither: compare their curves point by point. "
            "Where each was to have an order of its own, give them different seeds of the shuffle."
        )
        return suggestion("none", text)
    text = (
        f"If this run began with weights of run {known.other_name}, they have learned this data already: restore the "
        "loader's place with the weights, and set config fork_from, so that it is an alarm next time. If it did not, "
        "the data is new to this model and nothing is wrong."
    )
    return suggestion("inspect", text)


def _rate(case: Case) -> Suggestion:
    if case.incident.state != "open":
        return over(case.incident)
    text = "Nothing to do if it was meant; look at the schedule before the loss moves."
    return suggestion("inspect", text, checklist=lit.RATE_CHECKS)


def _level(case: Case) -> Suggestion:
    excuses = [text for text in case.curve.explained_by if text]
    if excuses:
        return suggestion(
            "none", f"Nothing to do if this was meant: {'; '.join(excuses[:3])}.", checklist=lit.LEVEL_CHECKS[:1]
        )
    if case.curve.all_alike and case.incident.state == "resolved":
        text = "It did not come back. Where that was not meant, look at what the data sets have in common since step "
        text += f"{case.onset}: labels, tokeniser, preprocessing, the code of the loss."
        return suggestion("none", text, checklist=_checks(case))
    before, after = case.curve.level_before, case.curve.level_after
    if given_up(case.incident) and before is not None and after is not None and after > before:
        text = f"Where that was not meant, find out what changed at step {case.onset}. {_GIVEN_UP}"
        return suggestion("inspect", text, checklist=_checks(case))
    return suggestion("none", "Nothing to do: the loss found another level.", checklist=_checks(case))


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


_RULES: Mapping[str, Callable[[Case], Suggestion]] = {
    "spike": _spike,
    "divergence": _divergence,
    "nonfinite": _nonfinite,
    "resume_artifact": _resume,
    ORDERS: _order,
    "data_mix_drift": _mix,
    "repeat_data": _repeat,
    SHARED_DATA: _shared,
    "learning_rate": _rate,
    "level_shift": _level,
    "plateau": _plateau,
    "grad_norm": _gradients,
    **MACHINE_RULES,
}
#: Kinds about which there is more to say than that it is over, also when it is.
_ALSO_AFTERWARDS = frozenset(
    {
        "spike",
        "nonfinite",
        "resume_artifact",
        ORDERS,
        "data_mix_drift",
        "repeat_data",
        SHARED_DATA,
        "level_shift",
        "process_death",
        "sdc_suspect",
    }
)
