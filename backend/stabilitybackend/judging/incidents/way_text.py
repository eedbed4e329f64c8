"""Says the one advice of a run in words: what comes first, where to go back to and why there. Pure."""

from __future__ import annotations

from stabilitybackend.judging.incidents.illness import where_from
from stabilitybackend.judging.incidents.rollback_target import GUARD_STEPS, Target, Usable
from stabilitybackend.judging.incidents.way import Way, jumped_rate
from stabilitybackend.schema.incidents import Incident, RolledBack
from stabilitybackend.schema.json_data import MAX_NAMED
from stabilitybackend.schema.kinds import kind_of

__all__ = ["LR_RELATIVE", "way_text"]

#: What every ``lr_scale`` is relative to.
LR_RELATIVE = "that the schedule of the restored checkpoint gives at each step"


#: What to correct -> first sentence, while it is not corrected.
_FIX = {
    "mixture": "The sampler draws another mixture than it should: correct the sampler first.",
    "data position": (
        "On data that the model has seen the loss is lower than the truth: correct the data position first, with "
        "several ranks that of each."
    ),
    "resume": "Something was not restored as it was: go through the list first, a rollback meets the same again.",
}


def way_text(way: Way, incident: Incident, checkpoints: Usable, own: str = "", no_rollback: str = "") -> str:
    """Return the text of the suggestion of an open incident.

    Args:
        way: the advice of the run.
        incident: whose suggestion it is.
        checkpoints: those that can be gone back to.
        own: what is to be done about ``incident`` before, sentences.
        no_rollback: why nobody can order the job back, half a sentence; "" where somebody can.
    """
    sentences = [_in_vain(way)]
    if incident.incident_id != way.lead.incident_id:
        sentences.append(
            f"One advice for this run, led by the {kind_of(way.lead.kind).short} at step {way.lead.onset_step}."
        )
    sentences += [_schedule(way), _FIX.get(way.fix_first, ""), own]
    if way.fix_first == "change":
        sentences.append(f"Find out what changed at step {way.lead.onset_step}. If nothing was meant to:")
    if way.back is None:
        sentences.append(_no_checkpoint(way, checkpoints))
    if way.action == "wait":
        sentences.append(_wait(way))
    if way.back is not None and way.incurable:
        sentences.append(
            f"With that corrected, go on from the checkpoint of step {way.back.to_step}, which is from before all of "
            f"it. {_again(way.back)}"
        )
    elif way.back is not None:
        way_back = _way_back(way, way.back, no_rollback)
        if way.action == "wait":
            sentences.append(f"If it does not come back by itself: {way_back}")
        elif way.lead.kind == "learning_rate":
            sentences.append(f"While the loss is as it was, correct it and train on; if the loss has moved, {way_back}")
        elif way.fix_first in _FIX:
            sentences.append(f"Then, where it lasted for more than a small share of the run, {way_back}")
        elif way.fix_first == "schedule":
            sentences.append(f"Then {way_back}")
        else:
            sentences.append(way_back[0].upper() + way_back[1:])
    return " ".join(sentence for sentence in sentences if sentence)


def _in_vain(way: Way) -> str:
    """Return the sentences about the rollbacks that did not help, "" where there was none."""
    if not way.again:
        return ""
    if not way.incurable:
        return (
            f"The rollback to step {min(one.back.step for one in way.again)} did not cure it: look for a cause in the "
            "program (optimizer, schedule, data order) first, for going further back helps only where the checkpoint "
            "was ill."
        )
    first = "" if len(way.again) <= MAX_NAMED else f"{len(way.again) - MAX_NAMED} before, then "
    steps = "; ".join(_tried(one.back) for one in reversed(way.again[:MAX_NAMED]))
    return (
        f"Another rollback will not help: {len(way.again)} did not cure it ({first}{steps}), and what causes it comes "
        "again from any checkpoint. Find it in the code, the data or the schedule and correct it first."
    )


def _tried(back: RolledBack) -> str:
    """Return one rollback with what it changed."""
    scale, seed, skip = (back.changes.get(name) for name in ("lr_scale", "seed", "skip_batches"))
    changed = [f"learning rate times {scale:g}"] if isinstance(scale, int | float) else []
    changed += ["a new seed"] if seed is not None else []
    changed += [f"{skip} batches left out"] if skip else []
    return f"to step {back.step}{': ' if changed else ''}{', '.join(changed)}"


def _schedule(way: Way) -> str:
    """Return the sentences about a learning rate that left its past before the lead began, else ""."""
    if way.rates or way.lead.kind == "learning_rate":
        rate = min((*way.rates, *([way.lead] if way.lead.kind == "learning_rate" else [])), key=lambda i: i.onset_step)
        known = f"Look at the schedule first: {rate.text[:1].lower()}{rate.text[1:]}"
        if rate.state == "open":
            return f"{known} While it stays so nothing else helps: a rollback goes back into the same rate."
        if way.again:
            return f"{known} It left its past after the rollback as well: the schedule sets it, and does so again."
        return f"{known} It is back, so that a rollback helps if nothing sets it again."
    jump = jumped_rate(way.lead)
    if not jump:
        return ""
    return f"Look at the schedule first: {jump}. While it stays so a rollback goes back into the same rate."


def _wait(way: Way) -> str:
    based = (
        f"{way.known} earlier {'spike' if way.known == 1 else 'spikes'} of this run"
        if way.known
        else "this run had no earlier one"
    )
    assert way.until is not None  # of every one that is waited for
    steps = way.until - way.lead.onset_step
    return (
        f"Wait until step {way.until} ({steps} steps from the onset; {based}): a spike that comes at once mostly "
        "recovers."
    )


def _way_back(way: Way, back: Target, no_rollback: str) -> str:
    """Return the sentences about a rollback, the first without a capital; of a job that takes none, about a restart."""
    does = "start the job again from" if no_rollback else "roll back to"
    text = f"{does} the checkpoint of step {back.to_step}, {way.lead.onset_step - back.to_step} steps before the onset"
    text += _why_there(way)
    if back.passed is not None:
        text += f" (the one of step {back.passed} was saved inside of damage that came back)"
    if back.bad is not None:
        first, last = back.bad
        text += f", and leave out the batches of the steps {first} to {last}; those before were good"
        if last > back.to_step + back.lost:
            text += ", and where the bad ones end is not known yet"
        text += f" (a job that can only skip right behind the checkpoint: {back.skip})."
    elif way.again:
        text += ", with a new seed."
    else:
        text += ". No batches are left out: the data are not the cause."
    if way.lr_scale is not None:
        text += f" Go on with {way.lr_scale:g} times the learning rate {LR_RELATIVE}."
    text += f" {_again(back)}"
    return f"{text} A rollback can't be ordered: {no_rollback}." if no_rollback else text


def _again(back: Target) -> str:
    """Return what a rollback costs. Their number grows with each step, and this text stands for as long as it may."""
    return f"The steps from {back.to_step + 1} on are trained again."


def _why_there(way: Way) -> str:
    """Return why the first sign lies before the onset, "" where it does not."""
    first = way.sick[0]
    if first.incident_id != way.lead.incident_id:
        since = "is open too" if first.state == "open" else "was given up and never came back"
        return f" and older than the {kind_of(first.kind).short} at step {first.onset_step}, which {since}"
    if way.sign < way.lead.onset_step - GUARD_STEPS:
        return f" and before the first sign, which may have been step {way.sign}"
    return ""


def _no_checkpoint(way: Way, checkpoints: Usable) -> str:
    """Return the sentences about a run without a checkpoint from before the first sign: no surer than that one is."""
    first, after = way.sick[0], way.sick[0].incident_id != way.lead.incident_id
    lost, oldest, newest = checkpoints.lost(way.sign - GUARD_STEPS), checkpoints.oldest(), checkpoints.newest()
    maybe = way.sign < first.onset_step - GUARD_STEPS
    if maybe:
        began = f"at step {way.sign}" if way.sign > 0 else "with the run's first steps"
        text = f"No checkpoint is sure to be from before the {kind_of(first.kind).short} that shows since step "
        text += f"{first.onset_step}: it may have begun {began}"
    else:
        text = f"No checkpoint from before step {way.sign}"
        text += f" (the {kind_of(first.kind).short} at step {first.onset_step})" if after else ""
        text += " is at hand, so there is nothing to go back to"
    if way.sign < GUARD_STEPS and not maybe:
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
