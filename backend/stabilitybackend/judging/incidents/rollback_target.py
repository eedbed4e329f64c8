"""Chooses where a rollback should go, which batches it leaves out, and how long it is worth waiting first. Pure."""

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

__all__ = ["GUARD_STEPS", "Target", "Tried", "Usable", "UsableOf", "bad_batches", "target", "tried", "usual_wait"]

#: A checkpoint so close before the first sign may hold the first damage already.
GUARD_STEPS = 2
#: Runs longer than this are advised to go further back, as PaLM did; in a shorter one that would cost too much of it.
LONG_RUN_STEPS = 2_000
#: How far PaLM went back before a spike.
PALM_BACK_STEPS = 100
#: Batches after the onset that are skipped at least: bad data comes in stretches, and its end is not known yet.
SKIP_PAST_ONSET_BATCHES = 50
#: Batches of a stretch of bad data beyond which nothing speaks for more of it: PaLM skipped 200 to 500.
POCKET_BATCHES = 500
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
        bad: first and last step whose batches are left out, None for none.
        lost: steps that are trained again.
        source: whose advice the distance is, "" for our own.
        passed: step of a newer checkpoint that was saved inside damage that came back, None where there is none.
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
    """A rollback after which the same trouble came again.

    Args:
        back: where it went and what it changed.
        outside: it went back to before anything showed, so that the weights are not what came again.
    """

    back: RolledBack
    outside: bool


class Usable(Protocol):
    """The steps of the checkpoints that can be gone back to: still there, and on the effective timeline."""

    def newest(self, at_most: float = math.inf) -> int | None:
        """Return the greatest step that is at most ``at_most``, None where there is none."""

    def oldest(self) -> int | None:
        """Return the smallest step, None where there is none."""

    def lost(self, at_most: float) -> tuple[int, str] | None:
        """Return the greatest step that is at most ``at_most`` of those that can't be used any more, and why."""


class UsableOf:
    """Those among checkpoints as the API has them."""

    def __init__(self, checkpoints: Iterable[Checkpoint]) -> None:
        known = list(checkpoints)
        self._steps = sorted(c.step for c in known if c.usable)
        self._lost = [(c.step, why_lost(c.available, c.unfit)) for c in known if not c.dead and not c.usable]

    def newest(self, at_most: float = math.inf) -> int | None:
        """Return the greatest step that is at most ``at_most``, None where there is none."""
        at = bisect_right(self._steps, at_most)
        return self._steps[at - 1] if at else None

    def oldest(self) -> int | None:
        """Return the smallest step, None where there is none."""
        return self._steps[0] if self._steps else None

    def lost(self, at_most: float) -> tuple[int, str] | None:
        """Return the greatest step that is at most ``at_most`` of those that can't be used any more, and why."""
        return max((one for one in self._lost if one[0] <= at_most), default=None)


def target(
    sign: int,
    checkpoints: Usable,
    now_step: int,
    below: float = math.inf,
    bad: tuple[int, int] | None = None,
    spoiled: Collection[tuple[int, int]] = (),
) -> Target | None:
    """Return the checkpoint to go back to, None where none is at hand.

    All that is known of a checkpoint is that its files are there and whole and that it lies on the effective path,
    nothing of its values. So it is the distance to the first sign that makes it trustworthy.

    Args:
        sign: first step at which anything shows that one goes back for (``illness.first_sign``).
        now_step: newest step of the run.
        below: only checkpoints of an earlier step; where there is none, the oldest one that fits otherwise.
        bad: first and last step whose batches are under suspicion; None where the data are not.
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
    return Target(to_step, bad, max(0, now_step - to_step), source, passed)


def _outside(limit: float, checkpoints: Usable, spoiled: Collection[tuple[int, int]]) -> int | None:
    """Return the newest checkpoint up to ``limit`` that lies in none of the stretches, None where there is none."""
    step = checkpoints.newest(limit)
    while step is not None and (begun := [first for first, over in spoiled if first <= step < over]):
        step = checkpoints.newest(min(begun) - GUARD_STEPS)
    return step


def bad_batches(incident: Incident, now_step: int) -> tuple[int, int]:
    """Return the first and last step whose batches may be the cause of an incident.

    From the first bad point on, and what was not logged right before it; those before were good. A stretch of bad data
    is over where the incident is. Else it goes on where the run is now, for as long again as it has lasted: of what
    began at a random time one sees half on average. That of one data set lasts as long as this is higher than before;
    of the whole loss, which stays high where the weights are damaged, no more than POCKET_BATCHES are left out, or what
    came before the peak. Weights that are not finite make every later loss so: it tells nothing of later batches.
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
    """Return a number of batches rounded up, so that an advice stays the same for some time."""
    if batches > POCKET_BATCHES:
        return math.ceil(batches / POCKET_BATCHES) * POCKET_BATCHES
    rounded = SKIP_PAST_ONSET_BATCHES
    while rounded < batches:
        rounded *= 2
    return rounded


def _or(step: int | None, otherwise: int) -> int:
    return otherwise if step is None else step


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


def tried(incident: Incident, history: Iterable[Incident]) -> list[Tried]:
    """Return the rollbacks after which the same trouble came again, the newest first.

    That is a rollback which opened the segment of this incident and left one behind that is like it, and came again in
    about as many steps as it had taken before; and so on for that one. What comes thousands of steps later is another
    trouble: to go back beyond the first rollback for it would throw all of them away.
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
    """Return until when trouble that was left behind has come again, a step.

    A lower learning rate takes as much longer to do the same harm.
    """
    scale = back.changes.get("lr_scale")
    slower = 1 / scale if isinstance(scale, int | float) and 0 < scale < 1 else 1.0
    took = max(incident.onset_step, incident.now_step) - back.step
    return back.step + took * slower + SKIP_PAST_ONSET_BATCHES
