"""What is reported of a level shift: the words and the evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .engine.base import Detector, Event, Finding, State
from .stats.levels import change

__all__ = ["Jump", "ShiftEvent", "finding_of"]


class Jump(NamedTuple):
    """A jump that was seen and has to last."""

    onset: int
    seen: int
    before: float
    after: float
    sigma: float
    threshold: float


@dataclass(slots=True)
class ShiftEvent(Event):
    """A jump upwards that nothing explains, until it is over."""

    jump: Jump
    points: int = 0
    state: State = "open"
    recovered_step: int | None = None


def finding_of(shift: Detector, event: ShiftEvent, now_step: int, explained: tuple[str, ...] = ()) -> Finding:
    """Return what ``shift`` reports of a jump at step ``now_step``.

    Args:
        event: the alarm, or a jump that is known or harmless.
        explained: reasons that the run itself gives.
    """
    jump, state = event.jump, event.state
    way = jump.after - jump.before
    down = way < 0
    percent = 100 * way / abs(jump.before) if jump.before else None
    size = change(jump.after, jump.before, jump.sigma, digits=1)
    text = f"The loss went from {jump.before:.4g} to {jump.after:.4g}{size} at step {jump.onset} and stays there."
    if explained:
        text += " Explained: " + "; ".join(explained) + ". This is no alarm."
    elif down:
        text += (
            " A sudden drop is usually learning: a step of the learning rate that is not logged, or understanding"
            " after a plateau. This is no alarm; if the data began again, look for repeated data."
        )
    elif state == "recovered":
        text = (
            f"The loss went from {jump.before:.4g} to {jump.after:.4g}{size} at step {jump.onset}. It was back at "
            f"step {event.recovered_step}."
        )
    else:
        text += " Nothing that was logged explains it: compare data, learning rate and batch size around that step."
        if state == "resolved":
            text += " The new level is taken as the usual one now."
    return shift.finding(
        event,
        now_step,
        state,
        title=f"Loss {'drops' if down else 'jumps up'} to another level at step {jump.onset}",
        text=text,
        recovered_step=event.recovered_step,
        score=min(abs(way) / jump.sigma, 1e9),
        evidence={
            "direction": "down" if down else "up",
            "level_before": jump.before,
            "level_after": jump.after,
            "sigma": jump.sigma,
            "rise_percent": percent,
            "threshold": jump.threshold,
            "score_unit": "robust sigmas of the difference of two windows",
            "explained_by": list(explained),
            "recovered_at": event.recovered_step,
        },
    )
