"""Checks of the server's report of a run after a rollback: every step there once, no step lost, none mixed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from stabilitybackend.schema.commands import Command

__all__ = ["check_lineage", "dead_peak", "healthy_after", "incident_facts", "ranks_that_acted"]

#: Steps before the onset that are the measure of a healthy loss.
_BASELINE_STEPS = 40
#: How far the loss after the rollback may lie above that and still count as healthy: 10 %, three times the batch noise.
_HEALTHY_RATIO = 1.10


def check_lineage(
    effective: Iterable[Mapping[str, Any]],
    everything: Iterable[Mapping[str, Any]],
    segments: Iterable[Mapping[str, Any]],
    last_step: int,
) -> dict[str, int]:
    """Return the facts of one metric's series of one rank, measured against the promise of the segments.

    Args:
        effective: entries of ``/series?view=effective``.
        everything: entries of ``/series?view=all``.
        segments: entries of ``/segments``.
        last_step: last step that the job logged; every step from 1 to it must be there.

    Returns:
        ``effective_points``, ``dead_points``, ``missing`` (steps that are absent from the effective series, or from
        a dead stretch between its first and its last point), ``duplicates`` (steps that the effective series or one
        segment has twice), ``misplaced`` (points in another segment than the lineage's).
    """
    seen = Counter(step for entry in effective for step in entry["steps"])
    missing = [step for step in range(1, last_step + 1) if step not in seen]
    duplicates = sum(count - 1 for count in seen.values())
    dead: Counter[tuple[int, int]] = Counter()
    stored: Counter[tuple[int, int]] = Counter()
    for entry in everything:
        points = Counter((entry["segment"], step) for step in entry["steps"])
        stored += points
        if entry["dead"]:
            dead += points
    duplicates += sum(count - 1 for count in stored.values())
    misplaced, dead_missing = 0, 0
    for segment in segments:
        low = -1 if segment["fork_step"] is None else segment["fork_step"]
        steps = [step for (where, step) in stored if where == segment["id"]]
        misplaced += sum(step <= low for step in steps)
        gone = sorted(step for (where, step) in dead if where == segment["id"])
        if gone:
            dead_missing += gone[-1] - gone[0] + 1 - len(gone)
            limit = segment["dead_after"] if segment["dead_after"] is not None else gone[0] - 1
            misplaced += sum(step <= limit for step in gone)
    return {
        "effective_points": sum(seen.values()),
        "dead_points": sum(dead.values()),
        "missing": len(missing) + dead_missing,
        "duplicates": duplicates,
        "misplaced": misplaced,
    }


def healthy_after(effective: Iterable[Mapping[str, Any]], onset_step: int, steps: int) -> dict[str, Any]:
    """Compare the newest ``steps`` points of the effective loss with those before the onset.

    Returns:
        ``{"baseline", "after", "healthy"}``: medians before the onset and now, and whether the loss is healthy again.
    """
    points = sorted(
        (step, value) for entry in effective for step, value in zip(entry["steps"], entry["values"], strict=True)
    )
    # Steps after the fork replace those before it, so that those before the onset may be new already.
    before = [value for step, value in points if onset_step - _BASELINE_STEPS <= step < onset_step]
    after = [value for _, value in points[-steps:]]
    numbers = all(isinstance(value, (int, float)) for value in before + after)
    if not before or not after or not numbers:
        return {"baseline": None, "after": None, "healthy": False}
    baseline, now = median(before), median(after)
    return {"baseline": round(baseline, 4), "after": round(now, 4), "healthy": now <= _HEALTHY_RATIO * baseline}


def ranks_that_acted(command: Command) -> dict[str, int | None]:
    """Return the step boundary at which each rank acted on ``command``; ranks that did not are absent."""
    return {
        rank: reported.step
        for rank, reported in sorted(command.ranks.items(), key=lambda item: int(item[0]))
        if reported.state in ("acted", "done")
    }


def incident_facts(incident: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result's facts of an incident."""
    names = ("incident_id", "kind", "severity", "state", "metric", "dataset", "onset_step", "step", "recovery", "title")
    facts = {name: incident.get(name) for name in names}
    facts["delay_steps"] = incident["step"] - incident["onset_step"]
    facts["suggestion"] = incident["suggestion"]
    return facts


def dead_peak(everything: Iterable[Mapping[str, Any]], onset_step: int) -> float | None:
    """Return the highest value among the dead points since the onset."""
    dead = [
        value
        for entry in everything
        if entry["dead"]
        for step, value in zip(entry["steps"], entry["values"], strict=True)
        if step >= onset_step and isinstance(value, (int, float))
    ]
    return round(max(dead), 4) if dead else None
