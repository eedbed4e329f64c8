"""Says what else happened near an incident's onset: forks, checkpoints, alerts, machines, jumps of the schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.detectors.engine.context import JUMP
from stabilitybackend.schema.json_data import MAX_LISTED
from stabilitybackend.schema.kinds import kind_of, kinds_where
from stabilitybackend.schema.metric_roles import BATCH_SIZE, LR, SEQUENCE_LENGTH, role_of

if TYPE_CHECKING:
    from stabilitybackend.judging.incidents.incidents import IncidentBook
    from stabilitybackend.lineage.fold import LineageFold
    from stabilitybackend.lineage.tree import FoldedSegment

__all__ = ["nearby_events"]

#: What happened so many logged points or seconds from the onset is near.
NEAR_POINTS = 32
NEAR_S = 60.0
#: Facts of each sort.
MAX_OF_A_SORT = 4
#: A change of a setting by JUMP is one if it is also so many times the usual change there: the first steps of a
#: warm-up double the rate each.
JUMP_TIMES = 4.0

#: Roles of what is set -> what they are called.
_SETTINGS = {LR: "learning rate", BATCH_SIZE: "batch size", SEQUENCE_LENGTH: "sequence length"}

Points = Sequence[tuple[int, float]]


def nearby_events(
    finding: Finding,
    time: float,
    fold: LineageFold,
    incidents: IncidentBook,
    series: Mapping[str, Points],
    interval: float,
) -> list[dict[str, Any]]:
    """Return ``{"what", "step", "distance", "text"}`` of what happened near the onset, the nearest first.

    Args:
        finding: of the incident.
        time: unix seconds of its point.
        fold, incidents: of the run, as of now.
        series: metric -> points around the onset; of these the learning rate and the batch size count.
        interval: usual distance of two logged points, steps.
    """
    found = [*_happened(finding, time, fold, incidents, interval), *_jumps(finding, series, interval)]
    found.sort(key=lambda fact: (abs(fact["distance"]), fact["step"], fact["text"]))
    return found[:MAX_LISTED]


def _fact(what: str, step: int, onset: int, text: str) -> dict[str, Any]:
    return {"what": what, "step": step, "distance": step - onset, "text": text}


def _happened(
    finding: Finding, time: float, fold: LineageFold, incidents: IncidentBook, interval: float
) -> Iterator[dict[str, Any]]:
    onset, reach = finding.onset_step, NEAR_POINTS * interval
    low, high = onset - reach, min(onset + reach, finding.now_step)
    path = {part.segment for part in fold.tree.path()}
    for segment in fold.tree:
        if segment.id in path and segment.parent is not None and low <= segment.fork_step + 1 <= high:
            yield _fact("fork", segment.fork_step + 1, onset, _went_back(segment))
    near = [c for c in fold.checkpoints if low <= c.step <= high and c.segment in path]
    saved = [c for c in near if not fold.tree.is_dead(c.segment, c.step)]  # else a step is named once for each branch
    for checkpoint in sorted(saved, key=lambda c: abs(c.step - onset))[:MAX_OF_A_SORT]:
        gone = "" if checkpoint.available else " (gone since)"
        yield _fact("checkpoint", checkpoint.step, onset, f"a checkpoint was saved at step {checkpoint.step}{gone}")
    named = kinds_where(lambda kind: kind.nearby)
    others = incidents.near(named, low, high, time - NEAR_S, time + NEAR_S, but=finding.key)
    for step, kind, title in others[:MAX_OF_A_SORT]:
        yield _fact(kind_of(kind).nearby, step, onset, title)


def _went_back(segment: FoldedSegment) -> str:
    if segment.cause in ("restart", "resume"):
        return f"the job was started again from step {segment.fork_step}"
    how = "was rolled back" if segment.cause == "command" else "went back by itself"
    why = f": {segment.reason}" if segment.reason else ""
    return f"the run {how} to step {segment.fork_step}{why}"


def _jumps(finding: Finding, series: Mapping[str, Points], interval: float) -> Iterator[dict[str, Any]]:
    """Yield the jumps of the learning rate and the batch size near the onset."""
    low = finding.onset_step - NEAR_POINTS * interval
    high = finding.onset_step + NEAR_POINTS * interval
    for name, points in series.items():
        role = role_of(name)
        what = _SETTINGS.get(role or "")
        if what is None or role is None:
            continue
        changes = _changes(points)
        found = [
            _fact(role, step, finding.onset_step, f"the {what} went from {before:.4g} to {after:.4g}")
            for step, before, after, change in changes
            if low <= step <= high and change > JUMP and change > JUMP_TIMES * _usual_change(changes, step)
        ]
        yield from found[:MAX_OF_A_SORT]


def _changes(points: Points) -> list[tuple[int, float, float, float]]:
    """Return (step, before, after, change as a fraction) between consecutive finite points."""
    finite = [point for point in points if math.isfinite(point[1])]
    return [
        (step, before, after, abs(after - before) / abs(before) if before else math.inf if after else 0.0)
        for (_, before), (step, after) in pairwise(finite)
    ]


def _usual_change(changes: Sequence[tuple[int, float, float, float]], step: int) -> float:
    """Return the median change of the few points around a step, that of the step itself left out."""
    at = next(i for i, change in enumerate(changes) if change[0] == step)
    others = [change[3] for change in [*changes[max(0, at - 3) : at], *changes[at + 1 : at + 4]]]
    return median(others) if others else 0.0
