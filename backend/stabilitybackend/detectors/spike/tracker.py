"""One curve that spikes are looked for in: which values need no look, which are suspects, and when they prove an event.

The part of the spike detector that knows no other curve and makes no finding.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stabilitybackend.detectors.engine.metric_roles import dataset_of
from stabilitybackend.detectors.stats.alike import NEW_POINTS, STRETCH_POINTS, Alike
from stabilitybackend.detectors.stats.baseline import YOUNG_POINTS, RobustBaseline
from stabilitybackend.detectors.stats.levels import LARGEST
from stabilitybackend.detectors.stats.robust import median
from stabilitybackend.detectors.stats.tail import OutlierTail

from .event import LARGEST_SCORE, SpikeEvent

#: Points after the start whose scale is not known yet: only a huge rise counts among them.
WARM_UP_POINTS = 40
#: The first points of all prove nothing.
FIRST_POINTS = 5
#: A huge rise while the scale is unknown: above this many times the highest value so far.
WARM_UP_FACTOR = 1.5
#: A higher point begins an excursion: robust sigmas.
SUSPECT_SIGMAS = 4.0
#: Each point of an excursion adds its evidence, 0 to 1, less ALLOWANCE; PROOF is what the sum has to reach. That is a
#: cumulative sum (Page, Biometrika 1954) of clipped heights: no point proves anything alone, and the lower the points,
#: the more of them are needed.
ALLOWANCE = 0.3
PROOF = 1.0
#: Evidence is 1 for a point so high, in robust sigmas, that this share of all points of the run is at most.
FULL_SIGMAS = 7.0
FULL_SHARE = 5e-4
#: A lone point so high is noted, unless a larger share of all points is.
NOTED_SIGMAS = 10.0
NOTED_SHARE = 2e-3
#: An excursion that proved nothing within so many points is usual in this run.
EXCURSION_POINTS = 16
#: A rise below this fraction of the loss at the run's start is noise of a loss that is nearly 0.
RISE_OF_START = 0.003
#: Points at once into the baseline of an old run, and of one that is younger than OLD_POINTS.
BLOCK_POINTS = 32
YOUNG_BLOCK_POINTS = 4
OLD_POINTS = 2_048
#: In an old run the resemblance of neighbours is measured once in so many points: it hardly changes.
OLD_ALIKE_POINTS = 512
#: The quiet band: a little inside of what makes a suspect, because its middle is some points old.
QUIET_SIGMAS = 3.25
#: Where only one in so many steps is logged, neighbouring points are no neighbours in the data.
LONE_STEPS = 10
#: Events that did not come back and may do so late.
LEFT_BEHIND = 8

__all__ = ["LONE_STEPS", "NOTED_SIGMAS", "Proof", "Suspect", "Tracker"]


class Suspect(NamedTuple):
    """One point of an excursion: its number within the curve, its height in robust sigmas and as a fraction of the
    level."""

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
        demand: heights that are needed are this many times those of another curve, >= 1.
    """

    metric: str
    demand: float = 1.0
    baseline: RobustBaseline = field(default_factory=RobustBaseline)
    tail: OutlierTail = field(default_factory=OutlierTail)
    #: How much neighbours resemble each other, and points since that was measured.
    alike: Alike = field(default_factory=Alike)
    since_alike: int = 0
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
    #: The excursion: its points from the first high one on, and what they prove so far.
    suspects: list[Suspect] = field(default_factory=list)
    evidence: float = 0.0
    event: SpikeEvent | None = None
    #: The event that ended last, and points since then.
    closed: SpikeEvent | None = None
    since_closed: int = 0
    #: The newest events that did not come back, whose level is the usual one now.
    left_behind: deque[SpikeEvent] = field(default_factory=lambda: deque(maxlen=LEFT_BEHIND))

    @property
    def neighbours(self) -> float:
        """How much neighbours resemble each other, 0 to 1; 0 where they are many steps apart."""
        return self.alike.neighbours if self.interval < LONE_STEPS else 0.0

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
        self.since_alike += count
        self.step = step
        self.block.clear()
        points = self.baseline.points
        every = OLD_ALIKE_POINTS if points > OLD_POINTS else NEW_POINTS if self.alike.is_known else WARM_UP_POINTS
        if self.since_alike >= every:
            self.alike.add(self.baseline.newest(STRETCH_POINTS), self.baseline.least_scale())
            self.since_alike = 0
        if points > YOUNG_POINTS:
            self.limit = BLOCK_POINTS if points > OLD_POINTS else YOUNG_BLOCK_POINTS

    def set_band(self) -> None:
        """Bound the values that need no look, from what is known now."""
        baseline = self.baseline
        if baseline.points < WARM_UP_POINTS or self.event is not None or self.suspects:
            self.low, self.high = math.inf, -math.inf
            return
        location, scale = baseline.location(), baseline.scale()
        self.high = location + QUIET_SIGMAS * scale
        self.low = max([-LARGEST, *(event.back_below for event in self.left_behind)])

    def check(self, step: int, value: float, sensitivity: float) -> Suspect | None:
        """Take a finite point while no event is open.

        Returns:
            The highest point of an excursion that ends here without a proof, if that is worth a note.
        """
        if self.block:
            self._learn_block(self.step + round(self.interval * len(self.block)))
        suspect = self._score(step, value, sensitivity)
        if not self.suspects and suspect.sigmas < SUSPECT_SIGMAS:
            self.block.append(value)
            self.flush(step)
            return None
        if self.step >= 0:
            self.interval = max(1.0, step - self.step)
        self.seen += 1
        self.since_closed += 1
        self.step = step
        self.evidence += self._evidence(suspect.sigmas - self._foretold()) - ALLOWANCE
        self.suspects.append(suspect)
        lone = self._give_up() if self.evidence <= 0 or len(self.suspects) > EXCURSION_POINTS else None
        self.set_band()
        return lone

    def full(self) -> float:
        """Return the height that is full evidence, robust sigmas."""
        return self.demand * self.tail.needed(FULL_SIGMAS, FULL_SHARE)

    def _foretold(self) -> float:
        """Return how high the next point is to be expected: in data that is read in its order neighbours share it."""
        return self.suspects[-1].sigmas * self.neighbours if self.suspects else 0.0

    def _evidence(self, sigmas: float) -> float:
        """Return how much a point proves: by its height, and by how rare such points are in this run."""
        rarity = math.log(self.tail.share(sigmas)) / math.log(FULL_SHARE) if sigmas > SUSPECT_SIGMAS else 1.0
        return min(sigmas / self.full(), rarity, 1.0)

    def proof(self) -> Proof | None:
        """Return what the suspects prove, None while it is too little."""
        if self.evidence < PROOF or self._evidence_near_zero() < PROOF:
            return None
        needed = f"evidence of {PROOF:g}: 1 a point of {self.full():.3g} sigmas or more, less {ALLOWANCE:g} a point"
        return Proof(list(self.suspects), needed)

    def _evidence_near_zero(self) -> float:
        """Return what the suspects prove by the heights of their logarithms, where noise is larger than the level."""
        baseline, location = self.baseline, self.baseline.location()
        if baseline.points < WARM_UP_POINTS or not 0 < location < baseline.scale():
            return math.inf
        full = self.demand * FULL_SIGMAS
        high = [one.value for one in self.suspects if one.value > location]
        return sum(min(baseline.log_sigmas(value) / full, 1.0) for value in high) - ALLOWANCE * len(self.suspects)

    def event_of(self, suspects: Sequence[Suspect], step: int, needed: str) -> SpikeEvent:
        """Return the event that suspects make at step ``step``, as a warning.

        Args:
            suspects: at least one; the first of them is its onset.
            needed: what they had to reach, in words.
        """
        first, top = suspects[0], max(suspects, key=lambda one: one.value)
        return SpikeEvent(
            metric=self.metric,
            onset=first.step,
            seen=step,
            severity="warning",
            level=self.baseline.level(),
            scale=self.baseline.scale(),
            peak=top.value,
            peak_step=top.step,
            told_peak=top.value,
            points=self.seen - first.number,
            needed=needed,
            dataset=dataset_of(self.metric),
        )

    def forget(self) -> None:
        """Drop the excursion: it became an event."""
        self.suspects.clear()
        self.evidence = 0.0

    def accept(self) -> None:
        """Go on at the level of the excursion: another event explains it, and it is no noise of this run."""
        values = [one.value for one in self.suspects]
        self.baseline.shift(median(values) - self.baseline.location())
        for value in values:
            self.baseline.learn(value)
        self.forget()
        self.set_band()

    def _give_up(self) -> Suspect | None:
        """Learn an excursion that proved nothing, and return its highest point if it is worth a note."""
        top = max(self.suspects, key=lambda one: one.sigmas)
        alone = self.evidence <= 0  # else it is a part of what another detector follows
        noted = alone and top.sigmas >= self.demand * NOTED_SIGMAS and self.tail.share(top.sigmas) <= NOTED_SHARE
        self.tail.lone(top.sigmas)
        self.tail.passed(len(self.suspects))
        for one in self.suspects:
            self.baseline.learn(one.value)
        self.forget()
        return top if noted else None

    def _score(self, step: int, value: float, sensitivity: float) -> Suspect:
        """Return how high the point is: 0 sigmas for one that is usual or too low to be one."""
        baseline, usual = self.baseline, Suspect(self.seen, step, value, 0.0, 0.0)
        if baseline.points < WARM_UP_POINTS:
            return self._score_early(usual, sensitivity)
        baseline.refresh()
        location, scale = baseline.location(), baseline.scale()
        if not self.start:
            self.start = abs(location)
        sigmas = (value / scale - location / scale) * sensitivity
        height = (value - location) * sensitivity
        if sigmas <= 0 or height < RISE_OF_START * self.start:
            return usual
        return usual._replace(sigmas=min(sigmas, LARGEST_SCORE), rise=height / abs(location) if location else math.inf)

    def _score_early(self, usual: Suspect, sensitivity: float) -> Suspect:
        """Judge one of the first points: only a rise far above all that was seen counts."""
        baseline = self.baseline
        if baseline.points < FIRST_POINTS or sensitivity == 0:
            return usual
        highest = baseline.highest()
        if not self.start:
            self.start = abs(highest)
        early = min(baseline.newest(WARM_UP_POINTS))
        if early <= 0 or usual.value < highest * (1 + (WARM_UP_FACTOR - 1) / sensitivity):
            return usual
        times = min(usual.value / highest, LARGEST_SCORE)
        return usual._replace(sigmas=self.demand * FULL_SIGMAS * times / WARM_UP_FACTOR, rise=times)
