"""Suggestions and their input. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from stabilitybackend.judging.incidents.recipe import Recipe
from stabilitybackend.judging.incidents.references import RULE_OF_THUMB
from stabilitybackend.judging.incidents.rollback_target import RollbackTarget, Usable
from stabilitybackend.schema.evidence import CurveFacts, facts
from stabilitybackend.schema.incidents import Action, Fix, Incident, Suggestion
from stabilitybackend.schema.severity import IncidentStatus

__all__ = ["Case", "JobNow", "over", "suggestion"]

#: Lines of a checklist.
MAX_CHECKS = 10


@dataclass(frozen=True, slots=True)
class JobNow:
    """State of the job for advice.

    Args:
        over: the run has ended: no action is left in it.
        no_rollback: why it can't be rolled back, half a sentence; "" for no reason.
        recipe: choices in its config.
    """

    over: bool = False
    no_rollback: str = ""
    recipe: Recipe = field(default_factory=Recipe)


@dataclass(frozen=True, slots=True)
class Case:
    """Input of advice.

    Args:
        incident, checkpoints, now_step: as of ``suggest``.
        history: the other incidents of the run, oldest first.
        job: its state.
    """

    incident: Incident
    checkpoints: Usable
    now_step: int
    history: Collection[Incident]
    job: JobNow = JobNow()

    @property
    def curve(self) -> CurveFacts:
        return facts(self.incident.evidence, CurveFacts)

    @property
    def onset(self) -> int:
        return self.incident.onset_step


def suggestion(
    action: Action,
    text: str,
    back: RollbackTarget | None = None,
    *,
    lr_scale: float | None = None,
    reseed: bool = False,
    wait_steps: int | None = None,
    until_step: int | None = None,
    fix_first: Fix = "",
    leads: str = "",
    checklist: Iterable[str] = (),
    sources: Iterable[str] = (),
) -> Suggestion:
    """Return a suggestion.

    Args:
        back: target of a rollback, also of a possible later one.
        wait_steps, until_step, fix_first, leads: as in ``Suggestion``.
        checklist: lines to go through; those beyond MAX_CHECKS are left out.
        sources: of the experience; empty ones are ignored.
    """
    return Suggestion(
        action=action,
        to_step=None if back is None else back.to_step,
        skip_batches=None if back is None else back.skip,
        skip_range=None if back is None or back.bad is None else list(back.bad),
        lr_scale=lr_scale,
        reseed=reseed,
        wait_steps=wait_steps,
        until_step=until_step,
        fix_first=fix_first,
        leads=leads,
        checklist=list(checklist)[:MAX_CHECKS],
        text=text,
        source="; ".join(dict.fromkeys(source for source in sources if source)) or RULE_OF_THUMB,
    )


def over(incident: Incident, checks: Iterable[str] = ()) -> Suggestion:
    """Return the suggestion for a closed incident."""
    return suggestion("none", _OVER.get(incident.status, "Nothing to do: it is resolved."), checklist=checks)


#: End of an incident -> text, for other ends than resolved.
_OVER: Mapping[IncidentStatus, str] = {
    "recovered": "Nothing to do: it came back.",
    "accepted": "It has not come back; its level counts as the usual one since.",
    "ended": "Nothing to do for this one: the job ended with it. The incident of that end has the advice.",
}
