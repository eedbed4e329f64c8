"""The rollback that a run offers: checkpoint and changes, for all pages, API and command line. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import asdict

from stabilitybackend.acting.commands.request import withheld
from stabilitybackend.judging.incidents.advice import advice_of
from stabilitybackend.judging.incidents.affecting import damage_intervals, first_sign, open_or_accepted, where_from
from stabilitybackend.judging.incidents.rollback_target import UsableOf, bad_batches, target
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.kinds import kind_of
from stabilitybackend.schema.lineage import Checkpoint, Offer, OfferedCheckpoint

__all__ = ["MAX_OFFERED", "advised_rollback", "back_to"]

#: Offered checkpoints, newest first; the suggested one is always among them.
MAX_OFFERED = 40


def back_to(
    incidents: Sequence[Incident],
    checkpoints: Sequence[Checkpoint],
    last_step: int | None,
    about: Incident | None = None,
    cannot: Mapping[str, str] = MappingProxyType({}),
) -> Offer:
    """Return the offered rollback.

    Args:
        incidents: of the run, oldest first.
        checkpoints: newest first.
        last_step: newest step of the effective timeline, None before the first.
        about: an incident to roll back for even if closed.
        cannot: changes that the job does not promise -> reason; none of them is suggested.
    """
    usable = [c for c in checkpoints if c.usable and c.step <= (last_step or 0)]
    known, now = UsableOf(checkpoints), _now(incidents, last_step)
    advice = advice_of(incidents, known, now)
    affecting = _affecting(incidents, about)
    primary = affecting[0] if affecting else None
    chosen, bad, lr_scale, reseed = None, None, None, False
    sign = first_sign(affecting, incidents)
    blind = {"skip_batches", "skip_range"} <= cannot.keys()
    if sign is None:
        chosen = max((c.step for c in usable), default=None)
        text = "Nothing is wrong: the newest checkpoint is preselected, and nothing else is changed."
    else:
        back = None if advice is None else advice.back
        if advice is None or sign < advice.sign:
            again = about is not None and kind_of(about.kind).damages_weights
            suspects = bad_batches(about, now) if about is not None and again else None
            back = target(sign, known, now, bad=suspects, spoiled=damage_intervals(incidents))
        if advice is not None:
            lr_scale, reseed = advice.lr_scale, advice.reseed
        if back is not None:
            chosen, bad = back.to_step, None if blind else back.bad
        elif advice is not None and not advice.good_data and not blind:
            bad = bad_batches(advice.primary, now)
        text = _reason(affecting[0], chosen, back is not None and back.bad is not None, blind)
        if advice is not None and advice.incurable:
            text = (
                f"{len(advice.again)} rollbacks did not cure it: correct the cause first, then go on from here. {text}"
            )
    behind = None if bad is None or "skip_batches" in cannot else bad[1]
    offered = usable[:MAX_OFFERED]
    offered += [c for c in usable[MAX_OFFERED:] if c.step == chosen][:1]
    return Offer(
        incident_id=None if primary is None else primary.incident_id,
        onset_step=None if primary is None else primary.onset_step,
        to_step=chosen,
        skip_batches=None if chosen is None or behind is None else behind - chosen,
        skip_range=None if chosen is None or bad is None or "skip_range" in cannot else list(bad),
        lr_scale=None if "lr_scale" in cannot else lr_scale,
        reseed=reseed and "seed" not in cannot,
        cannot=dict(cannot),
        text=text,
        checkpoints=[
            OfferedCheckpoint(
                **asdict(c),
                skip_batches=None if behind is None else max(0, behind - c.step),
                where=_where(c.step, primary),
            )
            for c in offered
        ],
        withheld=withheld(checkpoints)[:MAX_OFFERED],
    )


def advised_rollback(
    incidents: Sequence[Incident], checkpoints: Sequence[Checkpoint], last_step: int | None
) -> Offer | None:
    """Return the rollback asked for by a run's incidents, None for none; arguments as of ``back_to``."""
    advice = advice_of(incidents, UsableOf(checkpoints), _now(incidents, last_step))
    if advice is None or advice.back is None or not (advice.action == "roll_back" or advice.incurable):
        return None
    return back_to(incidents, checkpoints, last_step)


def _now(incidents: Collection[Incident], last_step: int | None) -> int:
    """Return the newest step of any evidence."""
    return max([last_step or 0, *(one.now_step for one in incidents if one.state == "open" and not one.dead)])


def _affecting(incidents: Collection[Incident], about: Incident | None) -> list[Incident]:
    """Return the incidents that the checkpoint must predate, first onset first."""
    every = {one.incident_id: one for one in open_or_accepted(incidents)}
    if about is not None and kind_of(about.kind).rollback_helps and not about.dead:
        every[about.incident_id] = about
    return sorted(every.values(), key=lambda one: (one.onset_step, one.incident_id))


def _reason(primary: Incident, chosen: int | None, bad_data: bool, met_again: bool) -> str:
    what = f"the {'open ' if primary.state == 'open' else ''}{kind_of(primary.kind).short} at step {primary.onset_step}"
    if chosen is None:
        return f"No checkpoint is sure to be from before {what}, so none is suggested."
    behind = "the batches behind it are left out" if bad_data else "no batches are left out, the data are not the cause"
    if bad_data and met_again:
        behind = "the job does not promise to leave out the batches behind it"
    return f"The checkpoint of step {chosen} is from before {what}; {behind}."


def _where(step: int, primary: Incident | None) -> str:
    """Return the position of a checkpoint relative to the onset; "" for none."""
    return "" if primary is None else where_from(step, primary.onset_step)
