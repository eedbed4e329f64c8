"""Texts and evidence of curve events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stabilitybackend.judging.detectors.stats.levels import change, percent

from .engine import PATIENCE, CurveEvent

#: Least part of the batch for a guess by a level of the gradient norm alone.
LEAST_OF_BATCH = 0.1

__all__ = ["batch_of", "clauses", "evidence_of", "score_of", "text_of", "title_of"]


def clauses(explained: Sequence[str]) -> list[str]:
    """Return causes as text, without their kinds.

    Example:
        >>> clauses(["lr_jump: the learning rate went from 0.1 to 1"])
        ['the learning rate went from 0.1 to 1']
    """
    return [text.partition(": ")[2] for text in explained]


def title_of(event: CurveEvent, what: str) -> str:
    """Return the title of an event in its present state: only a rising one climbs.

    Args:
        what: name of the curve, e.g. ``loss of web``.
    """
    name = what[:1].upper() + what[1:]
    if event.outdone:
        return f"Lone high points of the {what} are higher since step {event.since}"
    if event.lone:
        return f"One high {what} at step {event.onset}"
    if event.kind == "divergence":
        rises = event.life == "rising"
        return f"{name} {'climbs since' if rises else 'climbed from'} step {event.onset}{'' if rises else ' on'}"
    return f"{name} {'spike' if event.kind == 'spike' else 'jumped to a higher level'} at step {event.onset}"


def text_of(event: CurveEvent, what: str, now_step: int, waits: Sequence[str], explained: Sequence[str]) -> str:
    """Return the sentences about an event.

    Args:
        what: as of ``title_of``. now_step: of the finding.
        waits: data sets whose own loss is not back. explained: changes at its onset.
    """
    size = change(event.peak, event.level, event.scale)
    if event.outdone:
        return (
            f"The {what} was up to {event.peak:.4g}{size} in {event.points} lone logged points from step {event.since} "
            f"on, each usual again right after. Nearly all of the {event.outdone} lone high points before were "
            f"lower, and the usual level is still {event.level:.4g}: a part of the data may have changed."
        )
    if event.lone:
        return (
            f"The {what} was {event.peak:.4g}{size}, at a level of {event.level:.4g}, and usual again right after. As "
            "a rule that is one odd batch."
        )
    verb = "climbed" if event.kind == "divergence" or event.life == "rising" else "rose"
    text = f"The {what} {verb} from {event.level:.4g} to {event.peak:.4g}{size}, onset at step {event.onset}."
    text += _ending(event, now_step, waits)
    if explained:
        text += f" It began with a known change: {'; '.join(clauses(explained))}."
    return text


def _ending(event: CurveEvent, now_step: int, waits: Sequence[str]) -> str:
    """Return the sentence about the recovery, within the evidence."""
    still = f" The loss of {' and '.join(waits)} has not come back: the event is not over." if waits else ""
    if event.life == "back":
        return f" It came back{'' if event.recovery == 'fast' else ' slowly'} at step {event.recovered_step}.{still}"
    if event.life == "regained":
        return (
            f" It did not come back within {PATIENCE} points; by step {now_step} training has come down to the level "
            f"from before it.{still}"
        )
    if event.new_level is not None:
        level = f"{event.new_level:.4g}{change(event.new_level, event.level, event.scale)}"
        if event.recovery == "none":
            return (
                f" It did not come back within {PATIENCE} points, longer than spikes of public runs took: its level is "
                f"{level}, from where later events are measured."
            )
        return (
            f" After {event.points} points its level was {level}, from where later events are measured; whether it "
            "comes back by itself was not known yet."
        )
    if event.life == "rising":
        return f" It was still rising at step {now_step}."
    if event.life == "coming back":
        return f" It was coming back at step {now_step}."
    return f" It was still high at step {now_step}; whether it comes back by itself was not known yet."


def batch_of(event: CurveEvent) -> str:
    """Return the guess of a smaller batch behind a gradient norm at a higher level, "" for none.

    The noise of a gradient is proportional to one over the root of the batch (arXiv 1812.06162).
    """
    if event.new_level is None or event.life != "new level" or event.recovery != "none":
        return ""
    if not event.new_level > event.level > 0:
        return ""
    times = event.new_level / event.level
    if times**-2 < LEAST_OF_BATCH:
        return ""
    return (
        f" {times:.2f} times as high ever since fits a batch of {100 * times**-2:.0f} % of the size, whose gradient is "
        "noisier (arXiv 1812.06162): look at batch size, accumulation and number of ranks at this step."
    )


def score_of(event: CurveEvent) -> float:
    """Return the height of an event, robust sigmas."""
    return max(0.0, min(event.score, 1e9))


def evidence_of(event: CurveEvent, threshold: str, explained: Sequence[str]) -> dict[str, Any]:
    """Return the facts of an event."""
    return {
        "level_before": event.level,
        "sigma": event.scale,
        "peak": event.peak,
        "rise_percent": percent(event.peak, event.level),
        "direction": "up",
        "score_unit": "robust sigmas",
        "threshold": threshold,
        "points": event.points,
        "back_below": event.back_below,
        "level_after": event.new_level,
        "life": event.life,
        "recovered_at": event.recovered_step,
        **({"regained": True} if event.life == "regained" else {}),
        **({"lone_since": event.since} if event.outdone else {}),
        "explained_by": list(explained),
    }
