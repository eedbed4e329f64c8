"""A loss that is too low after a resume, and how it is reported: text and evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .engine.base import Event, State
from .stats.before_fork import BeforeFork
from .stats.levels import percent
from .stats.low_loss import WayBack

#: The guesses where nothing else explains it.
KNOWN_DATA = (
    "Either data is fed which these weights have learnt already (is the loader's place restored?), or the loss is "
    "computed otherwise (label smoothing, dropout, masks)."
)
#: The same where the batches are, one by one, those of the branch that was left.
SAME_BATCHES = (
    "The batches are those of the branch that was left, in its order: the loader's place is restored. Is the loss "
    "computed as before (label smoothing, dropout, masks), and are the weights those of the fork step?"
)
#: The same where the shares of a declared mixture are known to be off.
OTHER_SHARES = "The data are taken in other shares since then, and another mixture has another loss: see there."

__all__ = ["KNOWN_DATA", "OTHER_SHARES", "REST_POINTS", "SAME_BATCHES", "LowEvent", "worded"]

#: The claim is held for so many points after it: the baselines of the others have to learn the true level again.
REST_POINTS = 32


@dataclass(slots=True)
class LowEvent(Event):
    """A loss that is too low since a fork.

    Attributes:
        before: what was known at the fork. level, low: where the loss should be, and where it is.
        evidence: facts behind it. points: since the fork.
        same: the batches are, one by one, those of the branch that was left.
        by_mixture: another mixture has another loss: that is the event, and this is what follows from it.
        recent: newest three points. back: the step at which it was back.
        rest: points until the claim ends; negative: what ended it was another event.
    """

    before: BeforeFork
    level: float
    low: float
    evidence: dict[str, Any]
    way: WayBack
    points: int = 0
    same: bool = False
    by_mixture: bool = False
    recent: list[tuple[int, float]] = field(default_factory=list)
    back: int | None = None
    rest: int = REST_POINTS

    @property
    def gave_way(self) -> bool:
        """Whether it was reported as an event of its own before the shares of the data explained it."""
        return self.by_mixture and self.severity != "info"


def worded(event: LowEvent, state: State) -> tuple[str, dict[str, Any]]:
    """Return text and evidence of what is known now."""
    change = percent(event.low, event.level)
    shown = f" ({change:+.1f} %)" if change is not None else ""
    text = f"{event.before.text[:1].upper()}{event.before.text[1:]}, and the loss came back at {event.low:.4g}"
    text += f" where {event.level:.4g} was to be expected{shown}. "
    if event.by_mixture:
        text += OTHER_SHARES
    else:
        text += SAME_BATCHES if event.same else KNOWN_DATA
    if event.rest < 0:
        text += f" It ended at step {event.back}: the loss rose far above its true level, which is another event."
    elif state == "recovered" and event.same:
        text += f" It was back at the level of that branch at step {event.back}."
    elif state == "recovered":
        text += f" It jumped back to the true level at step {event.back}: that is the end of it, not a spike."
    elif state == "resolved" and not event.gave_way:
        text += " It has stayed so: this counts as the usual level from here on."
    evidence = {
        "level_before": event.level,
        "level_after": event.low,
        "sigma": event.before.sigma,
        "rise_percent": change,
        "direction": "down",
        "score_unit": "robust sigmas",
        "points": event.points,
        "fork_step": event.before.step - 1,
        "recovered_at": event.back,
        **event.evidence,
    }
    return text, evidence
