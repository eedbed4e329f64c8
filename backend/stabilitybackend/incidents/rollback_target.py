"""Chooses where a rollback should go, which batches it leaves out, and how long it is worth waiting first. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Protocol

from stabilitybackend.incidents.references import PALM
from stabilitybackend.schema.evidence import CurveFacts, facts
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.kinds import kind_of
from stabilitybackend.schema.lineage import Checkpoint, SpoiledBy

__all__ = [
    "GUARD_STEPS", "Target", "Usable", "UsableOf", "beginning", "inside", "interval_of", "spoiling",
    "target", "usual_wait", "went_back_for",
]  # fmt: skip

#: A checkpoint so close before the onset may hold the first damage already.
GUARD_STEPS = 2
#: Runs longer than this are advised to go further back, as PaLM did; in a shorter one that would cost too much of it.
LONG_RUN_STEPS = 2_000
#: How far PaLM went back before a spike, and the least number of batches that it skipped then.
PALM_BACK_STEPS = 100
PALM_SKIP_BATCHES = 200
#: Batches after the onset that are skipped at least: bad data comes in stretches, and its end is not known yet.
SKIP_PAST_ONSET_BATCHES = 50
#: A spike is waited for so many times as long as the earlier ones of the run took; points where it had none.
WAIT_TIMES = 3
WAIT_POINTS = 50
MIN_WAIT_POINTS = 10
#: Earlier recoveries that count, newest ones.
RECOVERIES = 16


@dataclass(frozen=True, slots=True)
class Target:
    """Where to go back to.

    Args:
        to_step: the checkpoint's step.
        skip: batches to leave out behind it.
        lost: steps that are trained again.
        source: whose advice the distance is, "" for our own.
    """

    to_step: int
    skip: int
    lost: int
    source: str

    @property
    def skip_range(self) -> list[int]:
        """The steps whose batches are left out, both inclusive."""
        return [self.to_step + 1, self.to_step + self.skip]


class Usable(Protocol):
    """The steps of the checkpoints that can be gone back to: still there, and on the effective timeline."""

    def newest(self, at_most: float = math.inf) -> int | None:
        """Return the greatest step that is at most ``at_most``, None where there is none."""

    def oldest(self) -> int | None:
        """Return the smallest step, None where there is none."""


class UsableOf:
    """Those among checkpoints as the API has them."""

    def __init__(self, checkpoints: Iterable[Checkpoint]) -> None:
        self._steps = sorted(c.step for c in checkpoints if c.usable)

    def newest(self, at_most: float = math.inf) -> int | None:
        """Return the greatest step that is at most ``at_most``, None where there is none."""
        at = bisect_right(self._steps, at_most)
        return self._steps[at - 1] if at else None

    def oldest(self) -> int | None:
        """Return the smallest step, None where there is none."""
        return self._steps[0] if self._steps else None


def beginning(incident: Incident) -> int:
    """Return the step at which it began: the onset, or where another series had moved before."""
    moved = facts(incident.evidence, CurveFacts).moved_first
    return min([incident.onset_step, *(one.onset_step for one in moved if one.onset_step is not None)])


def spoiling(incidents: Iterable[Incident]) -> list[Incident]:
    """Return the open incidents from whose onset on no checkpoint is good: those that one would go back for."""
    return [
        one
        for one in incidents
        if kind_of(one.kind).curable
        and one.state == "open"
        and not one.dead
        and one.severity != "info"
        and (kind_of(one.kind).damaging or (one.suggestion is not None and one.suggestion.to_step is not None))
    ]


def inside(step: int, spoiled: Iterable[Incident]) -> SpoiledBy | None:
    """Return which incident the state after ``step`` is from inside of, None where it is from before all of them.

    Args:
        spoiled: what ``spoiling`` returned.

    Returns:
        The one that began first.
    """
    first = min(spoiled, key=lambda one: (one.onset_step, one.incident_id), default=None)
    if first is None or step < first.onset_step:
        return None
    late = step - first.onset_step
    when = "at the onset" if late == 0 else f"{late} {'step' if late == 1 else 'steps'} after the onset"
    what = kind_of(first.kind).short
    text = f"saved {when} of an open {what} (step {first.onset_step}): it may hold the damage already"
    return SpoiledBy(first.incident_id, first.kind, first.onset_step, text)


def target(
    incident: Incident,
    checkpoints: Usable,
    now_step: int,
    below: float = math.inf,
    others: Iterable[Incident] = (),
) -> Target | None:
    """Return the checkpoint to go back to, None where none is at hand.

    Nothing is known of a checkpoint but that it was announced, is still there and lies on the effective path: what
    "verified" could mean more, nobody says yet. So it is the distance to the onset that makes it trustworthy.

    Args:
        below: only checkpoints of an earlier step; where there is none, the oldest one that fits otherwise.
        others: further incidents that the checkpoint has to be from before.
    """
    onset = incident.onset_step
    safe = min(min(one.onset_step - GUARD_STEPS, beginning(one) - 1) for one in (incident, *others))
    oldest, source = checkpoints.oldest(), ""
    if oldest is None or oldest > safe:
        return None
    to_step = _or(checkpoints.newest(min(safe, below - 1)), oldest)
    long_run = now_step > LONG_RUN_STEPS
    if long_run:
        to_step, source = _or(checkpoints.newest(min(to_step, onset - PALM_BACK_STEPS)), to_step), PALM
    skip = max(now_step, onset + SKIP_PAST_ONSET_BATCHES) - to_step
    if long_run:
        skip = max(skip, PALM_SKIP_BATCHES)
    return Target(to_step, skip, max(0, now_step - to_step), source)


def _or(step: int | None, otherwise: int) -> int:
    return otherwise if step is None else step


def interval_of(incident: Incident) -> float:
    """Return the usual distance between two logged points, from the drawn window, steps >= 1."""
    steps = facts(incident.evidence, CurveFacts).window.steps
    before = [step for step in steps if step < incident.onset_step]
    distances = [later - earlier for earlier, later in pairwise(before)]
    return max(1.0, float(median(distances))) if distances else 1.0


def usual_wait(incident: Incident, history: Iterable[Incident]) -> tuple[int, int]:
    """Return (steps that it is worth waiting from the onset on, earlier spikes of the run that this is based on)."""
    interval = interval_of(incident)
    took = [
        other.recovered_step - other.onset_step
        for other in history
        if other.kind == "spike"
        and other.severity != "info"
        and other.recovered_step is not None
        and other.metric == incident.metric
    ][-RECOVERIES:]
    if not took:
        return math.ceil(WAIT_POINTS * interval), 0
    return math.ceil(max(WAIT_TIMES * median(took), MIN_WAIT_POINTS * interval)), len(took)


def went_back_for(incident: Incident, history: Iterable[Incident]) -> int | None:
    """Return the step that the run went back to for the same trouble before, None where it did not.

    That is a rollback which opened the segment of this incident and left one behind that is like it, where this one
    began not long after the steps in which that one was seen. What comes thousands of steps later is another trouble:
    to go back beyond the first rollback for it would throw all of them away.
    """
    onset = incident.onset_step
    steps = [
        other.rolled_back.step
        for other in history
        if kind_of(other.kind).curable
        and other.severity != "info"
        and other.rolled_back is not None
        and other.rolled_back.segment == incident.segment
        and onset <= _last_seen(other) + SKIP_PAST_ONSET_BATCHES
    ]
    return min(steps, default=None)


def _last_seen(incident: Incident) -> int:
    """Return the newest step at which an incident was judged."""
    return max(incident.onset_step, incident.now_step)
