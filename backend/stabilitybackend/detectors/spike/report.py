"""What is reported of a spike: the words and the evidence."""

from __future__ import annotations

from dataclasses import replace

from stabilitybackend.detectors.engine.base import Detector, Finding, State
from stabilitybackend.detectors.engine.metric_roles import dataset_of
from stabilitybackend.detectors.stats.levels import change, percent

from .event import SpikeEvent

__all__ = ["finding_of", "lone_finding"]


def _ending(event: SpikeEvent) -> str:
    """Return the sentence that says whether the loss came back."""
    return {
        "pending": " It is still high; whether it comes back by itself is not known yet.",
        "fast": f" It was back at its level by itself at step {event.recovered_step}.",
        "slow": f" It came back slowly by itself, at step {event.recovered_step}.",
        "none": " It did not come back by itself." if event.resolved else " It does not come back by itself.",
    }[event.recovery]


def finding_of(spike: Detector, event: SpikeEvent, now_step: int) -> Finding:
    """Return what ``spike`` reports of an event at step ``now_step``."""
    settled = event.new_level is not None
    resolved = event.resolved or (settled and event.severity == "info")
    state: State = "recovered" if event.is_over else "resolved" if resolved else "open"
    alone = dataset_of(event.metric)
    what = "loss" if alone is None else f"loss of {alone}"
    size = change(event.peak, event.level, event.scale)
    text = f"The {what} rose from {event.level:.4g} to {event.peak:.4g}{size}, onset at step {event.onset}."
    text += _ending(event)
    if event.new_level is not None and not event.is_over:
        text += f" It goes on at {event.new_level:.4g}; later spikes are measured from there."
    if event.resolved:
        text += f" By step {now_step} training had come down to the level from before it."
    if event.explained_by:
        text += f" It began with a known change ({'; '.join(event.explained_by)})."
    return spike.finding(
        event,
        now_step,
        state,
        title=f"{what[0].upper()}{what[1:]} spike at step {event.onset}",
        text=text,
        dataset=event.dataset,
        peak_step=event.peak_step,
        recovered_step=event.recovered_step,
        recovery=event.recovery,
        score=event.score,
        evidence={
            "level_before": event.level,
            "sigma": event.scale,
            "peak": event.peak,
            "rise_percent": percent(event.peak, event.level),
            "direction": "up",
            "score_unit": "robust sigmas",
            "threshold": event.needed,
            "points": event.points,
            "back_below": event.back_below,
            "level_after": event.new_level,
            "recovered_at": event.recovered_step,
            **({"regained": True} if event.resolved else {}),
            "explained_by": list(event.explained_by),
        },
    )


def lone_finding(spike: Detector, event: SpikeEvent, now_step: int) -> Finding:
    """Return the note of ``spike`` about a single high point of the total loss, made at step ``now_step``."""
    size = change(event.peak, event.level, event.scale)
    return replace(
        finding_of(spike, event, now_step),
        title=f"One high loss at step {event.onset}",
        text=f"The loss was {event.peak:.4g}{size} in one logged point, at a level of {event.level:.4g}, and usual "
        "again in the next one. As a rule that is one odd batch.",
    )
