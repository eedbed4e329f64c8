"""Target of a rollback, batches to leave out, and the wait before it. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from stabilitybackend.judging.incidents.affecting import earliest_step, first_suspect_step, interval_of
from stabilitybackend.judging.incidents.references import PALM
from stabilitybackend.schema.incidents import Incident, RolledBack
from stabilitybackend.schema.kinds import kind_of
from stabilitybackend.schema.lineage import Checkpoint, why_lost

__all__ = [
    "GUARD_STEPS",
    "RollbackTarget",
    "Tried",
    "Usable",
    "UsableOf",
    "bad_batches",
    "target",
    "tried",
    "usual_wait",
]

#: A checkpoint so close before the first sign may hold the first damage already.
GUARD_STEPS = 2
#: Runs longer than this get the target further back, as of PaLM; too costly in a shorter one.
LONG_RUN_STEPS = 2_000
#: Distance of PaLM's restarts before a spike.
PALM_BACK_STEPS = 100
#: Fewest batches skipped after the onset: bad data comes in intervals, and its end is not determined yet.
SKIP_PAST_ONSET_BATCHES = 50
#: Length of an interval of bad data beyond which more is unlikely: PaLM skipped 200 to 500.
POCKET_BATCHES = 500
#: Wait for a spike, relative to earlier ones of the run; points for the first one.
WAIT_TIMES = 3
WAIT_POINTS = 50
MIN_WAIT_POINTS = 10
#: Earlier recoveries that count, newest ones.
RECOVERIES = 16


@dataclass(frozen=True, slots=True)
class RollbackTarget:
    """Target of a rollback.

    Args:
        to_step: the checkpoint's step.
        bad: first and last step whose batches are left out, None for none.
        lost: steps that are trained again.
        source: of the distance, "" for an own rule.
        passed: step of a newer checkpoint that was saved inside healed damage, None for none.
    """

    to_step: int
    bad: tuple[int, int] | None
    lost: int
    source: str
    passed: int | None = None

    @property
    def skip(self) -> int | None:
        """Batches to leave out right behind the checkpoint, for a job that can leave out no others."""
        return None if self.bad is None else self.bad[1] - self.to_step


@dataclass(frozen=True, slots=True)
class Tried:
    """A rollback after which the same incident repeated.

    Args:
        back: its target and changes.
        outside: its target predates all signs, so the weights are not the cause.
    """

    back: RolledBack
    outside: bool


class Usable(Protocol):
    """Steps of the usable checkpoints: present, and on the effective timeline."""

    def newest(self, at_most: float = math.inf) -> int | None:
        """Return the greatest step up to ``at_most``, None for none."""

    def oldest(self) -> int | None:
        """Return the smallest step, None for none."""

    def lost(self, at_most: float) -> tuple[int, str] | None:
        """Return the greatest unusable step up to ``at_most``, and the reason."""


class UsableOf:
    """Usable checkpoints of the API's list."""

    def __init__(self, checkpoints: Iterable[Checkpoint]) -> None:
        known = list(checkpoints)
        self._steps = sorted(c.step for c in known if c.usable)
        self._lost = [(c.step, why_lost(c.available, c.unfit)) for c in known if not c.dead and not c.usable]

    def newest(self, at_most: float = math.inf) -> int | None:
        at = bisect_right(self._steps, at_most)
        return self._steps[at - 1] if at else None

    def oldest(self) -> int | None:
        return self._steps[0] if self._steps else None

    def lost(self, at_most: float) -> tuple[int, str] | None:
        return max((one for one in self._lost if one[0] <= at_most), default=None)


def target(
    sign: int,
    checkpoints: Usable,
    now_step: int,
    below: float = math.inf,
    bad: tuple[int, int] | None = None,
    spoiled: Collection[tuple[int, int]] = (),
) -> RollbackTarget | None:
    """Return the target of a rollback, None for none.

    A checkpoint on the effective path has whole files, and unchecked values. So its distance to the first sign makes it
    trustworthy.

    Args:
        sign: first step of any incident that a rollback helps (``first_sign``).
        now_step: newest step of the run.
        below: only checkpoints of an earlier step; without one, the oldest one that fits otherwise.
        bad: first and last step of suspect batches; None for good data.
        spoiled: intervals of damage (``damage_intervals``): their checkpoints are taken only where no older one is.
    """
    safe = sign - GUARD_STEPS
    oldest, source = checkpoints.oldest(), ""
    if oldest is None or oldest > safe:
        return None
    limit = min(safe, below - 1)
    newest = _or(checkpoints.newest(limit), oldest)
    to_step = _or(_outside(limit, checkpoints, spoiled), newest)
    if now_step > LONG_RUN_STEPS:
        far = _outside(min(to_step, sign - PALM_BACK_STEPS), checkpoints, spoiled)
        to_step, source = _or(far, to_step), PALM
    passed = newest if any(first <= newest < over for first, over in spoiled) and newest > to_step else None
    return RollbackTarget(to_step, bad, max(0, now_step - to_step), source, passed)


def _outside(limit: float, checkpoints: Usable, spoiled: Collection[tuple[int, int]]) -> int | None:
    """Return the newest checkpoint up to ``limit`` outside the intervals, None for none."""
    step = checkpoints.newest(limit)
    while step is not None and (begun := [first for first, over in spoiled if first <= step < over]):
        step = checkpoints.newest(min(begun) - GUARD_STEPS)
    return step


def bad_batches(incident: Incident, now_step: int) -> tuple[int, int]:
    """Return the first and last step of batches that may have caused an incident.

    From the unlogged steps before the first bad point on. Bad data ends with its incident; of an open one it lasts for
    as long again: of an event seen at a random time half is past on average. That of one data set lasts as long as its
    loss is high; of the whole loss, which stays high with damaged weights, at most POCKET_BATCHES, or up to the peak.
    Weights that are not finite spoil every later loss, which proves nothing about later batches.
    """
    onset = incident.onset_step
    lasted = max(0, now_step - onset)
    if incident.recovered_step is not None:
        reach = incident.recovered_step - onset
    elif incident.kind == "nonfinite":
        reach = 0
    elif incident.dataset is not None:
        reach = _rounded(lasted + min(lasted, POCKET_BATCHES))
    else:
        worst = 0 if incident.peak_step is None else incident.peak_step - onset + SKIP_PAST_ONSET_BATCHES
        reach = max(min(_rounded(2 * lasted), POCKET_BATCHES), min(worst, 2 * lasted))
    return first_suspect_step(incident), onset + max(SKIP_PAST_ONSET_BATCHES, reach)


def _rounded(batches: int) -> int:
    """Return a number of batches rounded up, so that an advice is stable for some time."""
    if batches > POCKET_BATCHES:
        return math.ceil(batches / POCKET_BATCHES) * POCKET_BATCHES
    rounded = SKIP_PAST_ONSET_BATCHES
    while rounded < batches:
        rounded *= 2
    return rounded


def _or(step: int | None, otherwise: int) -> int:
    return otherwise if step is None else step


def usual_wait(incident: Incident, history: Iterable[Incident]) -> tuple[int, int]:
    """Return (steps worth waiting from the onset on, earlier spikes of the run behind that)."""
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


def tried(incident: Incident, history: Iterable[Incident]) -> list[Tried]:
    """Return the rollbacks after which the same incident repeated, newest first.

    That is a rollback which opened the segment of this incident and discarded a similar one, repeated within about as
    many steps as before; and so on for that one. A repeat after thousands of steps is another incident: a target before
    the first rollback would discard all of them.
    """
    left: dict[int, list[tuple[Incident, RolledBack]]] = {}
    for other in history:
        if other.rolled_back is not None and kind_of(other.kind).rollback_helps and other.severity != "info":
            left.setdefault(other.rolled_back.segment, []).append((other, other.rolled_back))
    found, front = list[Tried](), [incident]
    while front:
        segment = max(one.segment for one in front)
        onset = min(one.onset_step for one in front if one.segment == segment)
        again = [(other, back) for other, back in left.pop(segment, []) if onset <= _due(other, back)]
        if again:
            outside = all(back.step < earliest_step(other) for other, back in again)
            found.append(Tried(again[0][1], outside))
        front = [one for one in front if one.segment != segment] + [other for other, _ in again]
    return found


def _due(incident: Incident, back: RolledBack) -> float:
    """Return the last step for a repeat of a discarded incident. A lower learning rate delays the same harm in
    proportion."""
    scale = back.changes.get("lr_scale")
    slower = 1 / scale if isinstance(scale, int | float) and 0 < scale < 1 else 1.0
    took = max(incident.onset_step, incident.now_step) - back.step
    return back.step + took * slower + SKIP_PAST_ONSET_BATCHES
