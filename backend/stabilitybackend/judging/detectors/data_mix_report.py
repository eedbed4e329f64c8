"""One change of the data mixture, and how it is reported: text and evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .engine.base import Event, State
from .stats.levels import Level, percent

__all__ = ["MixEvent", "worded"]


@dataclass(slots=True)
class MixEvent(Event):
    """One change of the mixture.

    Attributes:
        now: newest step of it. before, sigma, after: the level that was left, its noise, and the new level.
        fork, fork_text: the first step after the resume that it began at, and what happened there.
        ramp: it came steadily and not at once. points: that show it.
        loss_before, loss_after, loss_moved: level of the loss before, its newest points, and by how many percent it
            moved with the mixture.
        also: other shares that moved, each with level before and after. blocks: levels since the onset.
        explained_by: what is known to have changed the mixture.
    """

    now: int
    before: float
    sigma: float
    after: float
    fork: int | None
    fork_text: str
    ramp: bool
    points: int
    loss_before: Level | None
    loss_after: list[float] = field(default_factory=list)
    loss_moved: float | None = None
    also: dict[str, list[float]] = field(default_factory=dict)
    blocks: list[float] = field(default_factory=list)
    explained_by: list[str] = field(default_factory=list)


def worded(event: MixEvent, state: State, back: int | None) -> tuple[str, dict[str, Any]]:
    """Return text and evidence of an event.

    Args:
        back: the first step at the level before, None where it did not come back.
    """
    change = percent(event.after, event.before)
    shown = f" ({change:+.0f} %)" if change is not None else ""
    verb = "has moved steadily" if event.ramp else "moved"
    text = f"{event.metric} {verb} from {event.before:.4g} to {event.after:.4g}{shown}, onset at step {event.onset}."
    if event.fork is not None:
        text += f" It began right after step {event.fork - 1}, where {event.fork_text}:"
        text += " was the sampler's state restored?"
    if event.loss_moved is not None:
        text += f" The loss moved with it by {event.loss_moved:+.1f} %."
    if event.also:
        text += f" So did {', '.join(list(event.also)[:4])}."
    if event.explained_by:
        text += f" {'; '.join(event.explained_by)}."
    text += {
        "open": "",
        "recovered": f" It is back at its level since step {back}.",
        "resolved": " It is stable: this is the usual level from here on.",
    }[state]
    evidence: dict[str, Any] = {
        "level_before": event.before,
        "level_after": event.after,
        "sigma": event.sigma,
        "rise_percent": change,
        "direction": "up" if event.after > event.before else "down",
        "score_unit": "robust sigmas",
        "points": event.points,
        "after_fork": None if event.fork is None else event.fork - 1,
        "ramp": event.ramp,
        "loss_percent": event.loss_moved,
        "also": dict(list(event.also.items())[:16]),
        "explained_by": list(event.explained_by),
        "recovered_at": back,
    }
    if event.ramp:
        evidence["explained_by"].append("a steady ramp, as a planned change of the mixture is")
    return text, evidence
