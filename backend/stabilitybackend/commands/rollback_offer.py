"""The rollback that a run offers: to which checkpoint, with what changed. Made once, shown everywhere. Pure.

The header, a card, an incident's page, the API and the command line all show this one; none of them chooses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import asdict

from stabilitybackend.incidents.rollback_target import SKIP_PAST_ONSET_BATCHES, UsableOf, spoiling, target
from stabilitybackend.incidents.suggest import suggest
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.kinds import kind_of
from stabilitybackend.schema.lineage import Checkpoint, Offer, OfferedCheckpoint

__all__ = ["MAX_OFFERED", "way_back"]

#: Checkpoints that are offered, newest first; the suggested one is always among them.
MAX_OFFERED = 40


def way_back(
    incidents: Sequence[Incident],
    checkpoints: Sequence[Checkpoint],
    last_step: int | None,
    about: Incident | None = None,
    cannot: Mapping[str, str] = MappingProxyType({}),
) -> Offer:
    """Return the rollback that is offered.

    Args:
        incidents: of the run, oldest first.
        checkpoints: newest first.
        last_step: newest step of the effective timeline, None before the first.
        about: the incident that somebody looks at: it is gone back for although it is over.
        cannot: what the job does not promise to change -> why; nothing of that is suggested.
    """
    usable = [c for c in checkpoints if c.usable and c.step <= (last_step or 0)]
    lead = _lead(incidents, about)
    known = UsableOf(checkpoints)
    chosen, skip_to, lr_scale, reseed = None, None, None, False
    if lead is None:
        chosen = max((c.step for c in usable), default=None)
        text = "No incident is open that one would go back for: the newest checkpoint, and nothing else is changed."
    else:
        onset, now = lead.onset_step, max(last_step or 0, lead.now_step)
        advice = suggest(lead, known, now, incidents) if lead.state == "open" else None
        if advice is None or advice.skip_range is None:
            back = target(lead, known, now, others=spoiling(incidents))
            chosen = None if back is None else back.to_step
            skip_to = onset + SKIP_PAST_ONSET_BATCHES if back is None else back.skip_range[1]
        else:
            chosen, skip_to = advice.to_step, advice.skip_range[1]
            lr_scale, reseed = advice.lr_scale, advice.reseed
        skip_to = None if "skip_batches" in cannot else max(skip_to, last_step or 0)
        text = _reason(lead, chosen, skip_to is None)
    offered = usable[:MAX_OFFERED]
    offered += [c for c in usable[MAX_OFFERED:] if c.step == chosen][:1]
    return Offer(
        incident_id=None if lead is None else lead.incident_id,
        onset_step=None if lead is None else lead.onset_step,
        to_step=chosen,
        skip_batches=None if chosen is None or skip_to is None else skip_to - chosen,
        lr_scale=None if "lr_scale" in cannot else lr_scale,
        reseed=reseed and "seed" not in cannot,
        cannot=dict(cannot),
        text=text,
        checkpoints=[
            OfferedCheckpoint(
                **asdict(c), skip_batches=None if skip_to is None else skip_to - c.step, where=_where(c.step, lead)
            )
            for c in offered
        ],
    )


def _lead(incidents: Collection[Incident], about: Incident | None) -> Incident | None:
    """Return the incident that began first among those to go back for."""
    every = spoiling(incidents)
    if about is not None and kind_of(about.kind).curable and not about.dead:
        every.append(about)
    return min(every, key=lambda one: (one.onset_step, one.incident_id), default=None)


def _reason(lead: Incident, chosen: int | None, met_again: bool) -> str:
    what = f"the {'open ' if lead.state == 'open' else ''}{kind_of(lead.kind).short} at step {lead.onset_step}"
    if chosen is None:
        return f"No checkpoint from before {what} is at hand, so none is suggested."
    behind = "the batches behind it are left out"
    if met_again:
        behind = "the job does not promise to leave out the batches behind it"
    return f"The checkpoint of step {chosen} is from before {what}; {behind}."


def _where(step: int, lead: Incident | None) -> str:
    """Return where a checkpoint lies, seen from the onset; "" where there is none."""
    if lead is None:
        return ""
    distance = lead.onset_step - step
    if distance == 0:
        return "at the onset"
    steps = f"{abs(distance):,} {'step' if abs(distance) == 1 else 'steps'}"
    return f"{steps} {'before' if distance > 0 else 'after'} the onset"
