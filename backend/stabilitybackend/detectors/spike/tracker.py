"""One curve that spikes are looked for in: which values need no look, which are suspects, and when they prove an event.

The part of the spike detector that knows no other curve and makes no finding.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from stabilitybackend.detectors.stats.baseline import YOUNG_POINTS, RobustBaseline
from stabilitybackend.detectors.stats.tail import LEVELS, OutlierTail

from .event import SpikeEvent

#: Points after the start whose scale is not known yet: only a huge rise counts among them.
WARM_UP_POINTS = 40
#: The first points of all prove nothing.
FIRST_POINTS = 5
#: A huge rise while the scale is unknown: above this many times the highest value so far.
WARM_UP_FACTOR = 1.5
#: A point below both of these is no suspect whatever is beside it: robust sigmas, and fraction of the level.
SUSPECT_SIGMAS = LEVELS[0]
SUSPECT_RISE = 0.03
#: A rise below this fraction of the loss at the run's start is noise of a loss that is nearly 0.
RISE_OF_START = 0.003
#: Points that a suspect waits for others before it counts as a lone outlier.
SUSPECT_POINTS = 8
#: Points at once into the baseline of an old run, and of one that is younger than OLD_POINTS.
BLOCK_POINTS = 32
YOUNG_BLOCK_POINTS = 4
OLD_POINTS = 2_048
#: The quiet band: a little inside of what makes a suspect, because its middle is some points old.
QUIET_SIGMAS = 3.25
QUIET_RISE = 0.02
#: Below the usual level by this many sigmas the middle is taken again at once: a loss that dropped is no event.
DROP_SIGMAS = 5.0
#: Steps between two points from which on a point is more than one batch: lone outliers are not expected there.
SPARSE_STEPS = 20.0
#: Nearer than that, two odd batches side by side are no harm and a third point comes soon: two points alone are only
#: proof where outliers of their height are this much rarer.
DENSE_CARE = 0.5
#: Largest height of a suspect, so that it is a number whatever the values.
LARGEST_SIGMAS = 1e9

__all__ = ["Proof", "Rule", "Suspect", "Tracker"]


class Rule(NamedTuple):
    """So many suspects among the newest points make an event.

    Args:
        need, among: points.
        sigmas: height of each, at least; higher in a run where more than ``most`` of all points reach it alone.
        most: such that chance makes less than one event in a million points: C(among - 1, need - 1) * most ** need.
        head: height of the highest of them, at least.
        rise: height of the highest as a fraction of the level.
    """

    need: int
    among: int
    sigmas: float
    most: float
    head: float
    rise: float


#: What proves an event, quickest first: the lower the points, the more of them. Tuned on permuted residuals of healthy
#: logs (chance) and on spikes set into them (recall).
RULES = (
    Rule(2, 3, 5.0, 0.7e-3, 7.0, 0.05),
    Rule(3, 5, 4.5, 5e-3, 6.0, 0.04),
    Rule(4, 6, 4.0, 1.6e-2, 5.0, 0.04),
    Rule(5, 8, 4.0, 2.7e-2, 4.5, 0.03),
)
#: A head with a body: one point so high, and three of the four after it above BODY_SIGMAS, which 1 to 4 % of healthy
#: points are. One high point after which the loss stays a little up is a spike whose height was logged once.
HEAD_SIGMAS = 8.0
HEAD_MOST = 1e-3
HEAD_RISE = 0.05
BODY_SIGMAS = 2.5
BODY_NEED = 3
BODY_POINTS = 4
#: Where one step in SPARSE_STEPS or fewer is logged, less of a body does: one point so high, and one of the two after
#: it above PAIR_SIGMAS. Only in a run that has hardly shown such a point alone.
PAIR_HEAD_SIGMAS = 7.0
PAIR_MOST = 2e-4
PAIR_SIGMAS = 3.5
PAIR_POINTS = 2


class Suspect(NamedTuple):
    """One high point: its number within the curve, its height in robust sigmas, and as a fraction of the level."""

    number: int
    step: int
    value: float
    sigmas: float
    rise: float


class Proof(NamedTuple):
    """The suspects that make an event and what they had to reach, in words."""

    suspects: list[Suspect]
    needed: str


@dataclass(slots=True)
class Tracker:
    """What is known of one curve. ``low`` and ``high`` bound the values that need no look at all.

    Args:
        metric: name of the curve.
        demand: heights that are needed are this many times those of ``RULES``, >= 1.
    """

    metric: str
    demand: float = 1.0
    baseline: RobustBaseline = field(default_factory=RobustBaseline)
    tail: OutlierTail = field(default_factory=OutlierTail)
    #: Quiet values that the baseline has not learnt yet.
    block: list[float] = field(default_factory=list)
    limit: int = 1
    low: float = math.inf
    high: float = -math.inf
    #: Points before the block, and the step of the last of them.
    seen: int = 0
    step: int = -1
    #: Steps between two points.
    interval: float = 1.0
    #: Height of the curve when the run began.
    start: float = 0.0
    suspects: deque[Suspect] = field(default_factory=deque)
    #: The point before which every point is looked at, because a high one came shortly before it.
    watch_until: int = 0
    event: SpikeEvent | None = None
    #: The event that ended last, and points since then.
    closed: SpikeEvent | None = None
    since_closed: int = 0
    #: The event whose level became the usual one.
    left_behind: SpikeEvent | None = None

    def flush(self, step: int) -> None:
        """Learn the block, which ends at ``step``, and set the quiet band again."""
        self._learn_block(step)
        self.set_band()

    def _learn_block(self, step: int) -> None:
        count = len(self.block)
        if not count:
            return
        if self.step >= 0:
            self.interval = max(1.0, (step - self.step) / count)
        self.baseline.learn_block(self.block)
        self.tail.passed(count)
        self.seen += count
        self.since_closed += count
        self.step = step
        self.block.clear()
        points = self.baseline.points
        if points > YOUNG_POINTS:
            self.limit = BLOCK_POINTS if points > OLD_POINTS else YOUNG_BLOCK_POINTS

    def set_band(self) -> None:
        """Bound the values that need no look, from what is known now."""
        baseline = self.baseline
        if baseline.points < WARM_UP_POINTS or self.event is not None or self.seen < self.watch_until:
            self.low, self.high = math.inf, -math.inf
            return
        location, scale = baseline.location(), baseline.scale()
        self.high = location + max(QUIET_SIGMAS * scale, QUIET_RISE * abs(location))
        self.low = location - DROP_SIGMAS * scale
        if self.left_behind is not None:
            self.low = max(self.low, self.left_behind.back_below)

    def check(self, step: int, value: float, sensitivity: float) -> bool:
        """Take a finite point while no event is open; return whether it is a suspect that may prove one."""
        if self.block:
            self._learn_block(self.step + round(self.interval * len(self.block)))
        self._expire()
        suspect = self._score(step, value, sensitivity)
        if suspect is not None:
            self.suspects.append(suspect)
        if suspect is None or suspect.sigmas < SUSPECT_SIGMAS:
            self.block.append(value)
            self.flush(step)
            return suspect is not None
        if self.step >= 0:
            self.interval = max(1.0, step - self.step)
        self.seen += 1
        self.since_closed += 1
        self.step = step
        if suspect.sigmas >= min(HEAD_SIGMAS, PAIR_HEAD_SIGMAS):
            self.watch_until = self.seen + BODY_POINTS
        self.set_band()
        return True

    def proof(self) -> Proof | None:
        """Return what the suspects prove, None while it is too little."""
        now, heavy = self.seen - 1, self.interval < SPARSE_STEPS
        for rule in RULES:
            most = rule.most * (DENSE_CARE if heavy and rule.need == 2 else 1.0)
            sigmas = self.demand * self.tail.needed(rule.sigmas, most, heavy)
            high = [one for one in self.suspects if now - one.number < rule.among and one.sigmas >= sigmas]
            if len(high) < rule.need or max(one.sigmas for one in high) < self.demand * rule.head:
                continue
            if max(one.rise for one in high) >= self.demand * rule.rise:
                # the first point of a rise is often lower than the rest: it belongs to the event all the same
                burst = [one for one in self.suspects if now - one.number < rule.among]
                return Proof(burst, f"{rule.need} of {rule.among} points above {sigmas:g} sigmas")
        return self._body_proof(heavy) or (None if heavy else self._pair_proof())

    def _body_proof(self, heavy: bool) -> Proof | None:
        """Return the proof of a high point after which the loss stays a little up."""
        sigmas = self.demand * self.tail.needed(HEAD_SIGMAS, HEAD_MOST, heavy)
        for head in self.suspects:
            if head.sigmas >= sigmas and head.rise >= self.demand * HEAD_RISE:
                body = [one for one in self.suspects if 0 < one.number - head.number <= BODY_POINTS]
                if len(body) >= BODY_NEED:
                    return Proof(
                        [head, *body], f"1 point above {sigmas:g} sigmas and {BODY_NEED} after it that stay up"
                    )
        return None

    def _pair_proof(self) -> Proof | None:
        """Return the proof of a high point with a lower one after it, in a sparse log."""
        sigmas = self.demand * self.tail.needed(PAIR_HEAD_SIGMAS, PAIR_MOST)
        for head in self.suspects:
            if head.sigmas >= sigmas and head.rise >= self.demand * HEAD_RISE:
                after = [one for one in self.suspects if 0 < one.number - head.number <= PAIR_POINTS]
                if any(one.sigmas >= self.demand * PAIR_SIGMAS for one in after):
                    return Proof(
                        [head, *after], f"1 point above {sigmas:g} sigmas and one after it above {PAIR_SIGMAS:g}"
                    )
        return None

    def _score(self, step: int, value: float, sensitivity: float) -> Suspect | None:
        """Return the point as a suspect, None when it is usual or too low to be one."""
        baseline = self.baseline
        if baseline.points < WARM_UP_POINTS:
            return self._score_early(step, value, sensitivity)
        baseline.refresh()
        location, scale = baseline.location(), baseline.scale()
        if not self.start:
            self.start = abs(location)
        sigmas = (value / scale - location / scale) * sensitivity
        height = (value - location) * sensitivity
        rise = height / abs(location) if location else math.inf
        least = BODY_SIGMAS if self.seen < self.watch_until else SUSPECT_SIGMAS
        if sigmas < least or rise < SUSPECT_RISE * least / SUSPECT_SIGMAS or height < RISE_OF_START * self.start:
            return None
        return Suspect(self.seen, step, value, min(sigmas, LARGEST_SIGMAS), rise)

    def _score_early(self, step: int, value: float, sensitivity: float) -> Suspect | None:
        """Judge one of the first points: only a rise far above all that was seen counts."""
        baseline = self.baseline
        if baseline.points < FIRST_POINTS or sensitivity == 0:
            return None
        highest = baseline.highest()
        if not self.start:
            self.start = abs(highest)
        if min(baseline.newest(WARM_UP_POINTS)) <= 0 or value < highest * (1 + (WARM_UP_FACTOR - 1) / sensitivity):
            return None
        times = min(value / highest, LARGEST_SIGMAS)
        return Suspect(self.seen, step, value, RULES[0].head * self.demand * times / WARM_UP_FACTOR, times)

    def _expire(self) -> None:
        """Learn suspects that stayed alone: the run has such points, and a level may have moved a little."""
        while self.suspects and self.seen - self.suspects[0].number >= SUSPECT_POINTS:
            lone = self.suspects.popleft()
            if lone.sigmas < SUSPECT_SIGMAS:
                continue  # of the body of a high point, learnt at once
            self.tail.lone(lone.sigmas)
            self.tail.passed(1)
            self.baseline.learn(lone.value)
