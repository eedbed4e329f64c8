"""Advice about an incident: wait, roll back, change, inspect; each with its source. Pure.

Input is the state at a step: incidents with evidence, checkpoints, and the run's history. All open incidents that a
rollback helps share the one advice of the run (``advice.py``), each with its own checklist.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from stabilitybackend.judging.incidents import references as lit
from stabilitybackend.judging.incidents.advice import Advice, advice_of, demand_of, jumped_rate
from stabilitybackend.judging.incidents.affecting import accepted, in_one_dataset, interval_of, where_from
from stabilitybackend.judging.incidents.recipe import recipe_checks
from stabilitybackend.judging.incidents.rollback_target import GUARD_STEPS, RollbackTarget, Usable
from stabilitybackend.judging.incidents.suggestion import Case, JobNow, over, suggestion
from stabilitybackend.schema.evidence import (
    SHARED_DATA,
    DeathFacts,
    GpuFaultFacts,
    Growing,
    HangFacts,
    SdcFacts,
    SharedDataFacts,
    StragglerFacts,
    facts,
)
from stabilitybackend.schema.incidents import Action, Incident, RolledBack, Suggestion
from stabilitybackend.schema.json_data import MAX_NAMED
from stabilitybackend.schema.kinds import kind_of
from stabilitybackend.schema.metric_roles import GRAD_NORM, role_of
from stabilitybackend.schema.resumes import ORDER_NOT_FOLLOWED
from stabilitybackend.schema.verdicts import SuspectGpu

__all__ = ["suggest"]

#: Base of every ``lr_scale``.
LR_RELATIVE = "that the schedule of the restored checkpoint gives at each step"


#: Correction -> first sentence, while it is due.
_FIX = {
    "mixture": "The sampler draws another mixture than it should: correct the sampler first.",
    "data position": (
        "On data that the model has seen the loss is lower than the truth: correct the data position first, with "
        "several ranks that of each."
    ),
    "resume": "Something was not restored as it was: go through the list first, a rollback meets the same again.",
}


def advice_text(advice: Advice, incident: Incident, checkpoints: Usable, own: str = "", no_rollback: str = "") -> str:
    """Return the text of the suggestion of an open incident.

    Args:
        advice: of the run.
        incident: the suggestion's own.
        checkpoints: usable ones.
        own: steps to take for ``incident`` before, sentences.
        no_rollback: why the job can't be rolled back, half a sentence; "" for no reason.
    """
    sentences = [_in_vain(advice)]
    if incident.incident_id != advice.primary.incident_id:
        sentences.append(
            f"One advice for this run, led by the {kind_of(advice.primary.kind).short} "
            f"at step {advice.primary.onset_step}."
        )
    sentences += [_schedule(advice), _FIX.get(advice.fix_first, ""), own]
    if advice.fix_first == "change":
        sentences.append(f"Find out what changed at step {advice.primary.onset_step}. If nothing was meant to:")
    if advice.back is None:
        sentences.append(_no_checkpoint(advice, checkpoints))
    if advice.action == "wait":
        sentences.append(_wait(advice))
    if advice.back is not None and advice.incurable:
        sentences.append(
            f"With that corrected, go on from the checkpoint of step {advice.back.to_step}, which is from before "
            f"all of it. {_again(advice.back)}"
        )
    elif advice.back is not None:
        sentences.append(_rollback(advice, _back_to(advice, advice.back, no_rollback)))
    return " ".join(sentence for sentence in sentences if sentence)


def _rollback(advice: Advice, back_to: str) -> str:
    if advice.action == "wait":
        return f"If it does not come back by itself: {back_to}"
    if advice.primary.kind == "learning_rate":
        return f"While the loss is as it was, correct it and train on; if the loss has moved, {back_to}"
    if advice.fix_first in _FIX:
        return f"Then, where it lasted for more than a small share of the run, {back_to}"
    if advice.fix_first == "schedule":
        return f"Then {back_to}"
    return back_to[0].upper() + back_to[1:]


def _in_vain(advice: Advice) -> str:
    """Return the sentences about rollbacks that did not help, "" for none."""
    if not advice.again:
        return ""
    if not advice.incurable:
        return (
            f"The rollback to step {min(one.back.step for one in advice.again)} did not cure it: look for a cause "
            "in the program (optimizer, schedule, data order) first, for going further back helps only where the "
            "checkpoint was ill."
        )
    first = "" if len(advice.again) <= MAX_NAMED else f"{len(advice.again) - MAX_NAMED} before, then "
    steps = "; ".join(_tried(one.back) for one in reversed(advice.again[:MAX_NAMED]))
    return (
        f"Another rollback will not help: {len(advice.again)} did not cure it ({first}{steps}), and what causes it "
        "comes again from any checkpoint. Find it in the code, the data or the schedule and correct it first."
    )


def _tried(back: RolledBack) -> str:
    """Return one rollback with its changes."""
    scale, seed, skip = (back.changes.get(name) for name in ("lr_scale", "seed", "skip_batches"))
    changed = [f"learning rate times {scale:g}"] if isinstance(scale, int | float) else []
    changed += ["a new seed"] if seed is not None else []
    changed += [f"{skip} batches left out"] if skip else []
    return f"to step {back.step}{': ' if changed else ''}{', '.join(changed)}"


def _schedule(advice: Advice) -> str:
    """Return the sentences about a learning rate that left its past before the primary incident, "" for none."""
    if advice.rates or advice.primary.kind == "learning_rate":
        rate = min(
            (*advice.rates, *([advice.primary] if advice.primary.kind == "learning_rate" else [])),
            key=lambda i: i.onset_step,
        )
        known = f"Look at the schedule first: {rate.text[:1].lower()}{rate.text[1:]}"
        if rate.state == "open":
            return f"{known} While it stays so nothing else helps: a rollback goes back into the same rate."
        if advice.again:
            return f"{known} It left its past after the rollback as well: the schedule sets it, and does so again."
        return f"{known} It is back, so that a rollback helps if nothing sets it again."
    jump = jumped_rate(advice.primary)
    if not jump:
        return ""
    return f"Look at the schedule first: {jump}. While it stays so a rollback goes back into the same rate."


def _wait(advice: Advice) -> str:
    based = (
        f"{advice.known} earlier {'spike' if advice.known == 1 else 'spikes'} of this run"
        if advice.known
        else "this run had no earlier one"
    )
    assert advice.until is not None  # of every one that is waited for
    steps = advice.until - advice.primary.onset_step
    return (
        f"Wait until step {advice.until} ({steps} steps from the onset; {based}): a spike that comes at once mostly "
        "recovers."
    )


def _back_to(advice: Advice, back: RollbackTarget, no_rollback: str) -> str:
    """Return the sentences about a rollback (of a job without any: restart), the first without a capital."""
    does = "start the job again from" if no_rollback else "roll back to"
    distance = advice.primary.onset_step - back.to_step
    text = f"{does} the checkpoint of step {back.to_step}, {distance} steps before the onset"
    text += _why_there(advice)
    if back.passed is not None:
        text += f" (the one of step {back.passed} was saved inside of damage that came back)"
    if back.bad is not None:
        first, last = back.bad
        text += f", and leave out the batches of the steps {first} to {last}"
        if last > back.to_step + back.lost:
            text += ", and where the bad ones end is not known yet"
        text += "."
    elif advice.again:
        text += ", with a new seed."
    else:
        text += ". No batches are left out: the data are not the cause."
    if advice.lr_scale is not None:
        text += f" Go on with {advice.lr_scale:g} times the learning rate {LR_RELATIVE}."
    text += f" {_again(back)}"
    return f"{text} A rollback can't be ordered: {no_rollback}." if no_rollback else text


def _again(back: RollbackTarget) -> str:
    """Return the cost of a rollback, without numbers that grow with each step."""
    return f"The steps from {back.to_step + 1} on are trained again."


def _why_there(advice: Advice) -> str:
    """Return why the first sign is before the onset, "" where it is not."""
    first = advice.affecting[0]
    if first.incident_id != advice.primary.incident_id:
        since = "is open too" if first.state == "open" else "was given up and never came back"
        return f" and older than the {kind_of(first.kind).short} at step {first.onset_step}, which {since}"
    if advice.sign < advice.primary.onset_step - GUARD_STEPS:
        return f" and before the first sign, which may have been step {advice.sign}"
    return ""


def _no_checkpoint(advice: Advice, checkpoints: Usable) -> str:
    """Return the sentences for a run without a checkpoint from before the first sign."""
    first, after = advice.affecting[0], advice.affecting[0].incident_id != advice.primary.incident_id
    lost, oldest, newest = checkpoints.lost(advice.sign - GUARD_STEPS), checkpoints.oldest(), checkpoints.newest()
    maybe = advice.sign < first.onset_step - GUARD_STEPS
    if maybe:
        began = f"at step {advice.sign}" if advice.sign > 0 else "with the run's first steps"
        text = f"No checkpoint is sure to be from before the {kind_of(first.kind).short} that shows since step "
        text += f"{first.onset_step}: it may have begun {began}"
    else:
        text = f"No checkpoint from before step {advice.sign}"
        text += f" (the {kind_of(first.kind).short} at step {first.onset_step})" if after else ""
        text += " is at hand, so there is nothing to go back to"
    if advice.sign < GUARD_STEPS and not maybe:
        text += ": it began with the run's first steps, so start again with what is wrong corrected."
    elif lost is not None:
        text += f"; that of step {lost[0]} {lost[1]}."
    elif oldest is not None and maybe:
        text += f". The oldest one is that of step {oldest}, {where_from(oldest, first.onset_step)}."
    elif oldest is not None:
        each = f"those of the steps {oldest} to {newest} are" if newest != oldest else f"that of step {oldest} is"
        text += f": {each} from inside it."
    else:
        text += "; the job has announced none that is still there."
    return f"{text} Save one as soon as it is over."


def _throughput(case: Case) -> Suggestion:
    text = "The job trains on, but slower. Find the phase that grew, then the rank, then the machine."
    return suggestion("inspect", text, checklist=lit.LOADER_CHECKS)


def _straggler(case: Case) -> Suggestion:
    rank, node = case.incident.rank, case.incident.node
    who = " ".join(word for word in (f"rank {rank}" if rank is not None else "", f"on {node}" if node else "") if word)
    waits = facts(case.incident.evidence, StragglerFacts).waits
    text = f"Look at {who or 'the slow rank'} first: its data, then its machine."
    if waits is not False:
        begin = "All ranks wait" if waits else "Where ranks meet in each step, all wait"
        text = f"{begin} for {who or 'one of them'}. A job with a spare node loses less by swapping it than by waiting."
    return suggestion("inspect", text, checklist=lit.STRAGGLER_CHECKS)


# --- verdicts of liveness ---------------------------------------------------------------------------------------------


def _hang(case: Case) -> Suggestion:
    found = case.incident.verdict.kind
    action = _HANG_ACTIONS.get(found, "inspect")
    text = _HANGS.get(found, "Look at the suspect rank first: its stack shows what it waits for.")
    if found == "peer_missing" and case.incident.onset_step < 0:
        text = _NOT_COME
    checks = lit.COLLECTIVE_CHECKS if found in ("collective_stuck", "peer_missing", "desync") else lit.HANG_CHECKS
    if facts(case.incident.evidence, HangFacts).finished:
        return suggestion("inspect", f"{_DONE_FIRST} The job does not end by itself.", sources=[lit.HANG_CAUSES])
    if action == "restart":
        text += _where(case)
    return suggestion(action, text, checklist=checks, sources=[lit.HANG_CAUSES])


#: For a rank that has finished while the others wait for it.
_DONE_FIRST = "The suspect is done and the others train on: give all ranks as many batches (drop_last, Join)."
#: For a rank that is awaited before the first step. The variables are those of torch's rendezvous.
_NOT_COME = (
    "Read the log of the rank that has not come: did its process start, does it still load, does its node reach"
    " MASTER_ADDR at MASTER_PORT? Its launcher may start with a node too few."
)
#: Class of a hang's verdict -> first sentence.
_HANGS: Mapping[str, str] = {
    "data_loader": "The suspect's data loader is stuck: look at its storage and its workers before a restart.",
    "peer_missing": "The others wait for the suspect: its stack, its exit and its node say why it stays away.",
    "livelock": "The suspect computes without making a step: its stack names the loop. A restart alone meets it again.",
    "gil_held": "A native call holds Python's lock: the C part of the stack or the driver. Look at its GPU as well.",
    "stopped": (
        "The process is stopped, not broken: find who stopped it (SIGSTOP, a debugger, a frozen group), let it go on."
    ),
    "blocked": "The suspect sleeps in a system call: its stack names the line of code, its wchan the reason.",
    "lock": (
        "The suspect waits for a lock that is not given back: the stacks of its other threads show who holds it. A"
        " thread that ended with it, as by an exception after acquire(), never gives it back: take it by `with`."
    ),
    "io": "The suspect waits for a disk or file system in the kernel: no signal ends that. Look at the mount first.",
    "collective_stuck": (
        "Start the job again, without a node that is named: all joined and none came out, which nothing in it mends."
    ),
    "desync": "Ranks called different collectives: that is a bug of the program, and comes again after a restart.",
    "overdue": (
        "A long phase takes longer than ever. Look at its storage; declare its length (expect_s) if it is right."
    ),
    "node_lost": "A node is silent and the others wait: start again without it, and have it looked at.",
}
#: Other actions than inspect, by class.
_HANG_ACTIONS: Mapping[str, Action] = {"collective_stuck": "restart", "node_lost": "restart", "overdue": "wait"}


def _agent_lost(case: Case) -> Suggestion:
    verdict = case.incident.verdict
    if verdict.training == "stands":
        return suggestion(
            "restart",
            "The node is silent and the others are stalled: start again without it." + _where(case),
            checklist=lit.NODE_CHECKS,
        )
    if verdict.kind == "agent_dead":
        text = "Only our agent ended; the ranks start it again by themselves. What they log stays in the spool."
        return suggestion("wait", text, checklist=lit.NODE_CHECKS)
    text = "The job itself may be well. Look at the node and its network; the spool keeps what it logs."
    return suggestion("wait", text, checklist=lit.NODE_CHECKS)


def _death(case: Case) -> Suggestion:
    known = facts(case.incident.evidence, DeathFacts)
    if case.incident.state != "open":
        text = "Nothing to do: the job runs again."
        return suggestion("none", text, checklist=known.explained.next, sources=[known.explained.source])
    if case.incident.severity == "info":
        return suggestion("none", "Somebody stopped it by hand (Ctrl-C): nothing to do unless that was a mistake.")
    first: str
    checks: Sequence[str]
    first, checks = _DEATHS.get(case.incident.verdict.kind, ("", ()))
    if known.hung:
        first, checks = "It hung and was ended: read the incident of the hang, its suspect is the one to look at.", ()
    elif known.explained.next:
        first, *checks = known.explained.next
    text = f"{first} Start the job again if its launcher does not.".lstrip() + _where(case)
    return suggestion("restart", text, checklist=checks, sources=[known.explained.source])


#: Class of a death's verdict -> first sentence, and checklist.
_DEATHS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "oom_kill": (
        "Host memory ran out, the node's or its container's, not the GPU's: the same again will end alike.",
        lit.OOM_CHECKS,
    ),
    "preempted": ("The job was asked to end: nothing in it is broken.", ()),
    "signal": ("Somebody or something ended it from outside: find out who before it happens again.", lit.SIGNAL_CHECKS),
    "crash": ("It crashed in native code.", lit.CRASH_CHECKS),
    "exit_code": ("It ended by itself: its own log says why.", ()),
    "exception": ("Read the exception first: a bug comes again after a restart.", ()),
}


def _where(case: Case) -> str:
    newest = case.checkpoints.newest()
    return " No checkpoint is known." if newest is None else f" It can resume from the checkpoint of step {newest}."


# --- GPUs -------------------------------------------------------------------------------------------------------------


def _gpu_fault(case: Case) -> Suggestion:
    fault, critical = facts(case.incident.evidence, GpuFaultFacts), case.incident.severity == "critical"
    if fault.foreign:
        return suggestion("none", "Nothing to do for this job: none of its ranks is on this GPU.")
    again = fault.history.faults
    source = [lit.XID_CATALOG if fault.xids else lit.GPU_THRESHOLDS]
    if fault.recovery_action:
        source = [lit.RECOVERY_ACTION]
    if fault.asks == "application" and not fault.blames_hardware:
        text = "Look for the bug in the program first: an address out of range, a wrong shape, a broken kernel."
        return suggestion("inspect", text, checklist=lit.APPLICATION_XID_CHECKS, sources=source)
    if fault.family in ("thermal", "power"):
        text = "The job goes on, slower. Look at the cooling and power of this node, and at its neighbours'."
        return suggestion("inspect", text, checklist=lit.THERMAL_CHECKS, sources=source)
    if fault.asks == "application":
        text = "The job that met the error has to start again; the GPU replaces the memory row with its next reset."
        return suggestion("restart", text + _where(case), checklist=lit.GPU_CHECKS, sources=source)
    advice = _WAYS.get(fault.asks)
    if advice is None:
        return suggestion(
            "inspect" if again else "wait", "Nothing to do now: watch whether it comes again.", sources=source
        )
    text = f"{'Start the job again without this GPU' if critical else 'At the next stop'}: {advice}."
    if again:
        text += f" It is fault number {again} of this GPU in two weeks: take it out, don't only reset it."
    if critical:
        return suggestion("restart", text + _where(case), checklist=lit.GPU_CHECKS, sources=[*source, *_lemon(again)])
    return suggestion("inspect", text, checklist=lit.GPU_CHECKS, sources=[*source, *_lemon(again)])


_WAYS: Mapping[str, str] = {
    "reset": "reset the GPU before anything runs on it",
    "reboot": "reboot its node before anything runs on it",
    "drain": "take it out of use and have it tested",
}


def _lemon(again: int) -> list[str]:
    return [lit.LEMON_NODES] if again else []


def _sdc_suspect(case: Case) -> Suggestion:
    found, sources = facts(case.incident.evidence, SdcFacts), [lit.MEGATRON, lit.GEMINI_REPLAY]
    who = _suspect_of(case, found)
    if case.incident.severity != "critical":
        text = f"Run the same step again on {who}, and on another device: only a difference proves it. At the next stop"
        text += " give its data to another rank: the sign goes with the data or stays with the device."
        return suggestion("inspect", text, checklist=lit.SDC_CHECKS, sources=sources)
    good = case.checkpoints.newest(case.onset - 1 if found.whole_until is None else found.whole_until)
    back = "from a checkpoint before it" if good is None else f"from the checkpoint of step {good}"
    if case.incident.state != "open":
        text = f"The ranks are equal again. Where nothing was loaded since, compare all their weights, and test {who}."
        return suggestion("inspect", text, checklist=lit.SDC_CHECKS, sources=sources)
    text = f"The ranks train on different states. Start the job again without the device of {who}, {back}: those since"
    text += " may hold either state. Test the device before it computes again: a rollback alone leaves it in the job."
    return suggestion("restart", text, checklist=lit.SDC_CHECKS, sources=sources)


def _suspect_of(case: Case, found: SdcFacts) -> str:
    """Return "rank 2 on gpu-03, GPU 5 (GPU-1f...)" with its facts; both of two candidates."""
    if case.incident.rank is None:
        return f"one of ranks {' and '.join(map(str, found.ranks[:2]))}" if found.ranks else "the suspect"
    gpu = found.gpus[0] if found.gpus else SuspectGpu()
    node = f" on {case.incident.node}" if case.incident.node else ""
    index = "" if gpu.index is None else f", GPU {gpu.index}"
    return f"rank {case.incident.rank}{node}{index}{f' ({gpu.uuid})' if gpu.uuid else ''}"


#: Incident kind -> its rule.
MACHINE_RULES: Mapping[str, Callable[[Case], Suggestion]] = {
    "throughput": _throughput,
    "straggler": _straggler,
    "hang": _hang,
    "agent_lost": _agent_lost,
    "process_death": _death,
    "gpu_fault": _gpu_fault,
    "sdc_suspect": _sdc_suspect,
}


#: Spikes in the last points that are a habit of the optimizer, not one batch.
MANY_SPIKES = 3
MANY_SPIKES_POINTS = 1_000
#: Ratio of gradients to usual ones before the onset that marks them as quiet, and of the burst after it.
QUIET_RATIO = 0.7
BURST_RATIO = 3.0
#: A burst of the gradients that is evidence for the optimizer's state by itself.
HUGE_BURST_RATIO = 10.0
#: Distance of an incident from a fork that makes a bad resume a suspect, logged points.
FORK_POINTS = 16
#: The loss of a guessing model is ln(classes or vocabulary); no vocabulary has more entries.
MOST_CLASSES = 1_000_000


#: A job under way that accepts rollbacks.
_AT_WORK = JobNow()


def suggest(
    incident: Incident,
    checkpoints: Usable,
    now_step: int,
    history: Iterable[Incident] = (),
    job: JobNow = _AT_WORK,
) -> Suggestion | None:
    """Return the suggestion for an incident, or None for none.

    Args:
        incident: with its evidence; its old suggestion does not count.
        checkpoints: usable ones.
        now_step: newest step of the run.
        history: the run's incidents, oldest first, replaced by ``incident`` for this one.
        job: its state. After its end only its death and its machines get advice.
    """
    rule = _RULES.get(incident.kind)
    general = kind_of(incident.kind).advice
    if rule is None and not general:
        return None
    if job.over and incident.state == "open" and not _outlives(incident):
        return None
    others = [other for other in history if other.incident_id != incident.incident_id]
    case = Case(incident, checkpoints, now_step, others, job)
    if demand_of(incident, now_step, others) is not None:
        advice = advice_of([*others, incident], checkpoints, now_step)
        if advice is not None:
            return _of_run(case, advice)
    if in_one_dataset(incident):
        return _dataset(case)
    if accepted(incident) and incident.kind != "level_shift":
        return suggestion("none", _ACCEPTED, checklist=_checks(case))
    if incident.state != "open" and incident.kind not in _ALSO_AFTERWARDS:
        return over(incident)
    if rule is None:
        return suggestion("inspect", general)
    return rule(case)


def _outlives(incident: Incident) -> bool:
    """Return whether an incident gets advice after the end of its run."""
    return incident.kind == "process_death" or kind_of(incident.kind).about == "gpu"


_ACCEPTED = (
    "It did not come back, and its level counts as the usual one since. Until training is down at the level from "
    "before it, a rollback goes to a checkpoint from before it."
)


# --- reasons to go back --------------------------------------------------------------------------------------------


def _of_run(case: Case, advice: Advice) -> Suggestion:
    """Return the advice of the run, with the checklist of this incident."""
    action: Action = advice.action
    if action == "roll_back" and (advice.back is None or case.job.no_rollback):
        action = "wait" if advice.back is None else "restart"
    sources = [lit.MEGATRON] if advice.primary.kind == "nonfinite" else []
    if advice.action == "wait" or advice.again:
        sources.insert(0, lit.IDEFICS)
    elif advice.lr_scale is not None:
        sources.insert(0, lit.OPT)
    if advice.fix_first == "resume":
        sources.append(lit.RESUMES)
    if advice.back is not None:
        sources.append(advice.back.source)
    until = advice.until if advice.action == "wait" else None
    return suggestion(
        action,
        advice_text(advice, case.incident, case.checkpoints, _own(case), case.job.no_rollback),
        advice.back,
        lr_scale=advice.lr_scale,
        reseed=advice.reseed,
        wait_steps=None if until is None else max(0, until - case.onset),
        until_step=until,
        fix_first=advice.fix_first,
        leads=advice.primary.incident_id,
        checklist=_checks(case),
        sources=sources,
    )


def _own(case: Case) -> str:
    """Return the steps to take for this incident before the run's advice."""
    incident = case.incident
    if incident.kind == "nonfinite" and role_of(incident.metric or "") == GRAD_NORM:
        return (
            "Look at the loss: while it is finite the optimizer or the loss scaler skips such a step. If it lasts for "
            "more than a few steps, or the loss follows:"
        )
    return ""


def _checks(case: Case) -> Sequence[str]:
    """Return the checklist of this incident."""
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
    """Return the checklist of a bad resume right after a restart or rollback."""
    reach = FORK_POINTS * interval_of(case.incident)
    near = any(fact.what == "fork" and -reach <= fact.distance <= 0 for fact in case.curve.nearby)
    return lit.RESUME_CHECKS if near else ()


def _many_spikes(case: Case) -> bool:
    low = case.onset - MANY_SPIKES_POINTS * interval_of(case.incident)
    spikes = [i for i in case.history if i.kind == "spike" and i.severity != "info" and not i.dead]
    earlier = {spike.onset_step for spike in spikes if low <= spike.onset_step < case.onset}
    return len(earlier) + 1 >= MANY_SPIKES


def _optimizer_checks(case: Case) -> tuple[str, ...]:
    """Return changes of optimizer or model by the evidence; each line has its source."""
    lines: list[str] = []
    curve = case.curve
    quiet, burst = curve.gradients.quiet_ratio, curve.gradients.burst_ratio
    stale = quiet <= QUIET_RATIO and burst >= BURST_RATIO
    # A burst of one data set is caused by its data, not by the optimizer.
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
    """Return whether an incident by itself is a reason to review the recipe: not one spike that may heal."""
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
    if accepted(case.incident) and before is not None and after is not None and after > before:
        text = f"Where that was not meant, find out what changed at step {case.onset}. {_ACCEPTED}"
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
    ORDER_NOT_FOLLOWED: _order,
    "data_mix_drift": _mix,
    "repeat_data": _repeat,
    SHARED_DATA: _shared,
    "learning_rate": _rate,
    "level_shift": _level,
    "plateau": _plateau,
    "grad_norm": _gradients,
    **MACHINE_RULES,
}
#: Kinds with own advice after their end.
_ALSO_AFTERWARDS = frozenset(
    {
        "spike",
        "nonfinite",
        "resume_artifact",
        ORDER_NOT_FOLLOWED,
        "data_mix_drift",
        "repeat_data",
        SHARED_DATA,
        "level_shift",
        "process_death",
        "sdc_suspect",
    }
)
