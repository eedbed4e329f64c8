"""Engine of one curve: usual level and noise, evidence of an excursion, and the life of one event.

It ignores the curve's role: ``detector.py`` decides on reports and may lower the severity. A loss of any scale is
judged in its logarithm, so that three decades are like one; a curve that goes below 0 is judged linearly.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import eq, sub
from statistics import fmean
from typing import Literal

from stabilitybackend.judging.detectors.engine.row_blocks import LARGEST
from stabilitybackend.judging.detectors.stats.robust import MAD_TO_SIGMA, MEDIAN_ERROR, Q90_SIGMAS, median

__all__ = ["Curve", "CurveEvent"]

# --- evidence: nats, the negative logarithm of the share of points that are as high, less ALLOW a point
#: A cumulative sum (Page, Biometrika 1954). The logarithm of a share of independent points is exponential with mean 1,
#: so that the sum reaches the proof by chance once in e^(0.797 PROOF), some 14,000, excursions (Wald's bound).
ALLOW = 2.0
PROOF = 12.0
#: Largest part of the proof by one point beyond its allowance: none proves anything alone.
MOST_OF_PROOF = 0.75
#: Sigmas of counted points, the share of points above it in other runs, its slope with the height, and the weight of
#: other runs in points: mean, slope and spread between 39 public logs without an event, a dozen of Llama 8B in MLPerf
#: v5.1 among them (0.41 % above 3, 0.14 % above 4, 0.012 % above 8).
SUSPECT = 3.0
PRIOR_SHARE = 4e-3
PRIOR_POWER = 3.5
PRIOR_POINTS = 114.0
#: Bins of heights: a quarter of an octave, over twelve octaves.
BINS_PER_OCTAVE = 4
BINS = 48
#: Visits of the newest points at a height that make it a habit, as with two clouds of losses; neighbours up there are
#: one visit.
HABIT = 3
#: Reach of noise, sigmas: neighbours share that part, which proves less.
REACH = 4.0
#: Height of a noted lone point, unless a larger share of the run's points is as high.
NOTED_SIGMAS = 6.0
NOTED_SHARE = 1e-2

# --- level and noise --------------------------------------------------------------------------------------------
#: Points of the noise and of the trend (at most half of the run), and of the level.
WINDOW = 128
SHORT = WINDOW // 4
#: Points after the start that are only learned.
YOUNG = 30
#: Points between two refreshes, of a run older than OLD points and of a younger one; one each up to GROWING. An old run
#: measures its noise at every fourth.
BLOCK = 16
YOUNG_BLOCK = BLOCK // 4
OLD = 2 * WINDOW
#: Age from which a run hardly changes: it refreshes its level after twice as many points, its noise once in WINDOW
#: points.
AGED = 16 * WINDOW
GROWING = WINDOW // 2
NOISE_POINTS = WINDOW // 2
#: Least noise of a logarithm: a bf16 log moves in steps of 0.4 to 0.8 %, a quarter of a step is its noise at most.
FLOOR = 0.003
#: Least noise of a curve below 0: it is logged in float32.
ROUNDING = 2.0**-20
#: Steepest fall: with the inverse of the steps (power laws of losses have exponents below 1, Kaplan 2020); a faster one
#: is a move to another level.
STEEPEST = -1.0
#: Smallest value relative to the first ones: 0 has no logarithm.
SMALLEST = 1e-12
#: The largest logarithm whose value is finite.
MOST_LOG = 700.0

# --- the life of an event ---------------------------------------------------------------------------------------
#: Tolerance of a recovery: logarithm, or three standard errors.
BACK = 0.02
ERRORS = 3.0
#: Newest points whose median must be back at any noise; fewer at most than BACK_POINTS. The error of the level is at
#: most a sixteenth of the height: half of the smallest lasting part worth a report.
FEW = 5
BACK_POINTS = WINDOW // 2
BACK_PART = 1 / 16
#: Points of a fast recovery; within AGAIN a new excursion continues it.
FAST = 10
AGAIN = BLOCK
#: Flat points at a new level before the statistics accept it.
SETTLED = WINDOW // 2
#: Points since its proof without a return after which a settled event is critical (MLPerf v5.1: 35 spikes of Llama 8B
#: took 9 to 155 steps; a quarter more than the longest).
PATIENCE = 192
#: Least rise of an event that lasts for SHORT points.
LASTING = 0.01
#: Points of a block of the slow evidence, blocks that are kept, and those whose lowest is the level of a climb.
CLIMB_BLOCK = BLOCK
CLIMB_BLOCKS = 6 * WINDOW // CLIMB_BLOCK
LOWEST_BLOCKS = 2 * WINDOW // CLIMB_BLOCK

EventKind = Literal["spike", "level_shift", "divergence"]
Life = Literal["rising", "up", "coming back", "back", "new level", "regained"]
Recovery = Literal["pending", "fast", "slow", "none"]


@dataclass(slots=True)
class CurveEvent:
    """One excursion from its first point until it is back, or settled at a new level.

    Attributes:
        onset, seen: first step, and step of the proof (training steps, as all steps here).
        kind: so far; it may change.
        severity: the worst so far.
        life: its state; ``regained`` when training reached its level long after, without a recovery.
        level, scale: usual value before it and its noise, as logged.
        peak, peak_step: the highest value so far.
        points: logged since the onset.
        recovery, recovered_step: class, and its first step.
        new_level: of a lasting one; None for unknown.
        lone: a single high point, back in the next one; or several, each of them back in the next one.
        outdone, since: earlier lone high points of the run, where nearly all were lower, and the step of the first one;
            else 0.
        back_below: largest value that counts as back.
        score: height of the peak, robust sigmas.
    """

    onset: int
    seen: int
    kind: EventKind
    severity: Literal["info", "warning", "critical"]
    level: float
    scale: float
    peak: float
    peak_step: int
    score: float = 0.0
    life: Life = "up"
    points: int = 0
    recovery: Recovery = "pending"
    recovered_step: int | None = None
    new_level: float | None = None
    lone: bool = False
    outdone: int = 0
    since: int = 0
    back_below: float = 0.0
    #: The same in the curve's domain: level, its slope in ln(points) and its error, sigma, top.
    base: float = 0.0
    slope: float = 0.0
    error: float = 0.0
    sigma: float = 1.0
    top: float = -math.inf
    #: Points of the curve at the event's proof; points from the onset until it was back; its new level in the domain.
    born: int = 0
    length: int = 0
    settled: float = 0.0
    #: Whether it was flat when it settled, or only lasted.
    flat: bool = False
    #: Recent points near its level, and that level.
    calm: int = 0
    calm_level: float = 0.0
    #: The newest points since the onset, and their steps.
    values: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    steps: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW))


@dataclass(slots=True)
class Rarity:
    """Evidence of a height in nats: by its rarity in this run, and in others.

    Args:
        prior: weight of the other runs, points.
    """

    prior: float = PRIOR_POINTS
    counts: list[int] = field(default_factory=lambda: [0] * BINS)
    points: int = 0

    def share(self, sigmas: float) -> float:
        """Return the share of points as high: as counted, or by the usual tail above them."""
        points = self.points + self.prior
        tail: float = (sum(self.counts) + self.prior * PRIOR_SHARE) / points * (SUSPECT / sigmas) ** PRIOR_POWER
        counted = (
            0.5 * math.erfc(sigmas / math.sqrt(2)) if sigmas < SUSPECT else sum(self.counts[_bin(sigmas) :]) / points
        )
        return max(counted, tail)

    def nats(self, sigmas: float, least: float = 0.0) -> float:
        """Return the nats of a point; ``least``: least share."""
        if sigmas <= 1:
            return 0.0
        return min(-math.log(max(self.share(sigmas), least)), ALLOW + MOST_OF_PROOF * PROOF)

    def seen(self, sigmas: float) -> None:
        """Take a point without proof."""
        if sigmas >= SUSPECT:
            self.counts[_bin(sigmas)] += 1


def _bin(sigmas: float) -> int:
    return max(0, min(BINS - 1, int(BINS_PER_OCTAVE * math.log2(max(sigmas, SUSPECT) / SUSPECT))))


@dataclass(slots=True)
class Curve:
    """State of one curve.

    A value in the quiet band may be appended to ``pending`` unread, as long as there are fewer than ``room`` of them,
    with ``step`` set to its step; then ``flush`` is due. Others go to ``take``. The thresholds are constant from one
    refresh to the next, so that cuts of rows into batches change nothing.

    Attributes:
        low, high: the quiet band, ``low < value < high``; empty where each point has to be judged.
        room: quiet points until the next refresh, >= 1. pending: those that wait for it. step: the newest step.
        event: the open event, None for none.
        left: events whose new level is accepted by the statistics, without recovery.
        blocks, block_steps: medians of CLIMB_BLOCK quiet points in the curve's domain, and their first steps.

    Args:
        demand: divisor of heights, > 0. min_rise: least rise of an event, as a fraction of the level.
    """

    demand: float = 1.0
    min_rise: float = 0.05
    low: float = math.inf
    high: float = -math.inf
    room: int = 1
    pending: list[float] = field(default_factory=list)
    step: int = -1
    event: CurveEvent | None = None
    left: list[CurveEvent] = field(default_factory=list)
    blocks: deque[float] = field(default_factory=lambda: deque(maxlen=CLIMB_BLOCKS))
    block_steps: deque[int] = field(default_factory=lambda: deque(maxlen=CLIMB_BLOCKS))
    #: Distance of each block's median from the one before it.
    moves: deque[float] = field(default_factory=lambda: deque(maxlen=CLIMB_BLOCKS - 1))
    #: Points so far, the first ones, and their traits.
    points: int = 0
    first: list[float] = field(default_factory=list)
    start: float = 0.0
    linear: bool = False
    #: Quiet values in the domain, their distances from the level of their time, those since the refresh.
    values: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    distances: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    fresh: list[float] = field(default_factory=list)
    level: float = math.nan
    sigma: float = math.nan
    #: The noise of medians: that of the points, and the distance of a second cloud.
    spread: float = math.nan
    #: Slope in ln(points), never upwards; correlation of neighbours, 0 to 1; points at that measurement.
    slope: float = 0.0
    dipped: float = -math.inf
    neighbours: float = 0.0
    measured: int = 0
    judged: bool = False
    #: The excursion: steps, values, heights; and its proof so far.
    excursion: list[tuple[int, float, float]] = field(default_factory=list)
    proof: float = 0.0
    evidence: Rarity = field(default_factory=Rarity)
    #: Rises of the newest lone high points; the steps of the last ones, and their rank among those before.
    tops: deque[float] = field(default_factory=lambda: deque(maxlen=2 * WINDOW))
    ranks: list[int] = field(default_factory=list)
    ranks_proof: float = 0.0
    #: The same of blocks, and the points of the newest one.
    slow: Rarity = field(default_factory=lambda: Rarity(PRIOR_POINTS / CLIMB_BLOCK))
    slow_proof: float = 0.0
    climb: list[float] = field(default_factory=list)
    climb_step: int = -1
    flushed: int = -1
    interval: float = 1.0
    closed: CurveEvent | None = None
    news: list[CurveEvent] = field(default_factory=list)

    # --- input -------------------------------------------------------------------------------------------------

    def take(self, step: int, value: float) -> list[CurveEvent]:
        """Take a point outside the quiet band, and return the changed events."""
        if not -LARGEST < value < LARGEST:
            return []  # not finite: another detector's
        self._absorb()
        self.step = self.flushed = step
        self.points += 1
        self.evidence.points += 1
        self._first(value)
        if not self.linear and value < 0:
            self._to_linear()
        self._judge(step, self.of(value))
        self._set_band()
        return self._changed()

    def flush(self) -> list[CurveEvent]:
        """Learn the pending points, and return the changed events."""
        self._absorb()
        if self.event is None and len(self.fresh) >= self._limit():
            self._refresh()
        self._set_band()
        return self._changed()

    def accept(self) -> None:
        """Accept the level of an explained excursion or event as usual."""
        event, self.event = self.event, None
        values = list(event.values) if event is not None else [value for _, value, _ in self.excursion]
        self.excursion, self.proof = [], 0.0
        if values:
            self._shift(median(values[-SHORT:]) - self.level)
            self._learn_all(values[-FEW:])
        self._set_band()

    def forget_climb(self) -> None:
        """Measure climbs from here on: blocks before another event are no neighbours."""
        self.blocks.clear()
        self.block_steps.clear()
        self.moves.clear()
        self.climb, self.slow_proof = [], 0.0

    def usual(self) -> tuple[float, float]:
        """Return the usual level and its noise, as logged; NaN before the first ones."""
        return self.back_of(self.level), self.sigma * (1.0 if self.linear else self.back_of(self.level))

    def moved(self, points: int) -> tuple[float, float] | None:
        """Return the distance of the newest points from those before them, and its error; None for too few.

        Args:
            points: number of new ones. Both numbers are logarithms, or fractions of the level where it goes below 0.
        """
        past = [*self.values, *self.fresh, *map(self.of, self.pending), *(one for _, one, _ in self.excursion)]
        if self.event is not None:
            past += self.event.values
        points = min(points, WINDOW - SHORT)
        new, old = past[-points:], past[-points - SHORT : -points]
        if len(old) < FEW or not new or not self.sigma > 0:
            return None
        return self._moved(median(old), new, self.sigma / math.sqrt(len(old)))

    def moved_by(self, event: CurveEvent) -> tuple[float, float]:
        """Return the distance of an event's points above the level before it, and its error, as ``moved``."""
        return self._moved(event.base, list(event.values), event.error)

    def _moved(self, level: float, new: Sequence[float], error: float) -> tuple[float, float]:
        unit = self._unit_at(level)
        return (fmean(new) - level) / unit, math.hypot(self.sigma / math.sqrt(len(new)), error) / unit

    # --- domain ------------------------------------------------------------------------------------------------

    def of(self, value: float) -> float:
        """Return a value in the curve's domain."""
        return value if self.linear else math.log(max(value, SMALLEST * self.start))

    def back_of(self, value: float) -> float:
        """Return a value of the domain as logged."""
        return value if self.linear else math.exp(min(value, MOST_LOG))

    def _first(self, value: float) -> None:
        if len(self.first) < 8:
            self.first.append(abs(value))
            self.start = max(median(self.first), 1e-30)

    def _to_linear(self) -> None:
        """Switch to the linear domain: the curve goes below 0."""
        values = [math.exp(value) for value in [*self.values, *self.fresh]]
        if self.event is not None:
            self._close(self.event, self.step)
        self.linear, self.event, self.closed, self.excursion, self.proof = True, None, None, [], 0.0
        self.left, self.climb, self.fresh = [], [], []
        self.slow_proof, self.slope, self.measured = 0.0, 0.0, -WINDOW
        self.values.clear()
        self.values.extend(values)
        self.distances.clear()
        self.distances.extend(value - median(values) for value in values)
        self.blocks.clear()
        self.block_steps.clear()
        self.moves.clear()
        if values:
            self._refresh()

    def _rise(self) -> float:
        """Return the least height of an event in the domain."""
        return math.log1p(self.min_rise) if not self.linear else self.min_rise * self.sigma

    def _unit(self) -> float:
        """Return the level itself in the domain; 0 for a curve below 0, where any constant may be added to it."""
        return 0.0 if self.linear else 1.0

    def _unit_at(self, level: float) -> float:
        """Return 1 of the domain at a level: a rise by the level itself."""
        return 1.0 if not self.linear else abs(level) or 1.0

    # --- level and noise ----------------------------------------------------------------------------------------

    def _limit(self) -> int:
        if self.points > OLD:
            return BLOCK if self.points <= AGED else 2 * BLOCK
        return YOUNG_BLOCK if self.points >= GROWING else 1

    def _absorb(self) -> None:
        """Take the pending points into the domain, and follow a climb in them."""
        count = len(self.pending)
        if not count:
            return
        self.points += count
        self.evidence.points += count
        distance = self.interval = max(1.0, (self.step - self.flushed) / count) if self.flushed >= 0 else 1.0
        begin = self.step - distance * (count - 1)
        self.flushed = self.step
        least, values = SMALLEST * self.start, self.pending
        if not self.linear:
            values = [math.log(value if value > least else least) for value in values]
        self.pending = []
        at = 0
        while at < count and self.event is None:
            stop = min(count, at + CLIMB_BLOCK - len(self.climb))
            self.fresh += values[at:stop]
            self._climb(values[at:stop], round(begin + at * distance), round(begin + (stop - 1) * distance))
            at = stop
        for place in range(at, count):
            self._judge(round(begin + place * distance), values[place])

    def _learn(self, step: int, value: float) -> None:
        self.fresh.append(value)
        if len(self.fresh) >= self._limit() or self.sigma != self.sigma:
            self._refresh()
        self._climb([value], step, step)

    def _learn_all(self, values: Sequence[float]) -> None:
        for value in values:
            self._learn(self.step, value)

    def _refresh(self) -> None:
        """Learn new points, and measure level and noise again."""
        fresh, self.fresh, level = self.fresh, [], self.level
        if level == level and len(self.values) >= SHORT:  # as nearly always: the level stays until all are in
            self.distances.extend([value - level for value in fresh])
            self.values.extend(fresh)
            fresh = []
        for value in fresh:
            if self.level == self.level:
                self.distances.append(value - self.level)
            self.values.append(value)
            if self.level != self.level or len(self.values) < SHORT:
                self._locate()
        since, every = self.points - self.measured, NOISE_POINTS if self.points <= AGED else WINDOW
        if len(self.distances) >= 8 and (self.points <= OLD or since >= every):
            self.measured = self.points
            self._measure()
        self._locate()
        if self.left:
            self._follow_left()

    def _age(self) -> int:
        """Return the number of newest points for noise and trend: a run of half the age was another one."""
        return max(SHORT, min(WINDOW, self.points // 2))

    def _measure(self) -> None:
        """Measure noise, its correlation of neighbours, and the slope."""
        newest = list(self.distances)[-self._age() :]
        ordered = sorted(newest)
        middle = median(ordered)
        core = max(MAD_TO_SIGMA * median([abs(one - middle) for one in ordered]), self._floor())
        high = int(0.9 * len(ordered))
        self.spread = max(core, (ordered[high] - middle) / Q90_SIGMAS)
        # A tenth of the points beyond a gap that no noise leaves are another cloud, and not this one's noise.
        upper = ordered[len(ordered) // 2 : high + 1]
        clouds = max(map(sub, upper[1:], upper)) > REACH * core
        self.sigma = core if clouds else self.spread
        above = [one > middle for one in newest]
        alike = sum(map(eq, above, above[1:])) / (len(above) - 1)
        self.neighbours = min(0.99, max(0.0, math.sin(math.pi * (alike - 0.5))))  # the sign correlation of a normal

    def _locate(self) -> None:
        """Set the level: the newest median, brought forward by half its length along the trend."""
        values = list(self.values)[-self._age() :]
        part, newest = len(values) // 4, values[-SHORT:]
        self.slope, parts = 0.0, []
        if part >= 4:
            parts = [median(values[len(values) - part * back :][:part]) for back in (4, 3, 2, 1)]
        if parts and not self.linear:
            ages = [math.log(max(self.points - part * (back - 0.5), part / 2)) for back in (4, 3, 2, 1)]
            slopes = [(parts[at + 1] - parts[at]) / (ages[at + 1] - ages[at]) for at in range(3)]
            self.slope = max(STEEPEST, min(0.0, median(slopes)))  # one step down is no trend
        lag = math.log(self.points / max(self.points - len(newest) / 2, 1)) if self.points > 1 else 0.0
        self.level = median(newest) + self.slope * lag
        self.dipped = -math.inf
        if parts and self.sigma == self.sigma:
            before = min(parts[:2])
            if before - self.level >= max(
                ERRORS * math.sqrt(2) * self._unsure() * self.sigma, 4 * abs(parts[0] - parts[1])
            ):
                self.dipped = before

    def _floor(self) -> float:
        if not self.linear:
            return FLOOR
        return max(1e-12, ROUNDING * (median([abs(one) for one in self.values]) if self.values else 1.0))

    def _shift(self, by: float) -> None:
        """Move the quiet values with the level."""
        self.values = deque([value + by for value in self.values], maxlen=WINDOW)
        self._locate()

    def _set_band(self) -> None:
        """Set the band of values without evidence."""
        looked = self.event is not None or self.excursion
        if looked or self.points <= YOUNG or self.sigma != self.sigma:
            self.low, self.high, self.room = math.inf, -math.inf, 1
            return
        reach = (SUSPECT * self.demand + self._unsure()) * self.sigma
        self.low, self.high = self.back_of(self.level - reach), self.back_of(self.level + reach)
        self.room = max(1, self._limit() - len(self.fresh))

    # --- evidence -----------------------------------------------------------------------------------------------

    def _judge(self, step: int, value: float) -> None:
        """Take one point in the domain."""
        if self.event is not None:
            self._follow(self.event, step, value)
            return
        if self.points <= YOUNG or self.sigma != self.sigma:
            self._learn(step, value)
            return
        if not self.judged:
            self._count_young()
        height = ((value - max(self.level, self.dipped)) / self.sigma - self._unsure()) / self.demand
        if height < SUSPECT and not self.excursion:
            self._learn(step, value)
            return
        before = self.excursion[-1][2] if self.excursion else None
        self.proof += self._proves(self.evidence, height, before, self._habit(height, before)) - ALLOW
        self.excursion.append((step, value, height))
        top = max(self.excursion, key=lambda one: one[1])
        if self.proof >= PROOF and (top[1] - self.level >= self._rise() or self._lasts()):
            self._start(step)
        elif len(self.excursion) >= SETTLED:
            self._take_as_usual()
        elif self.proof <= 0:
            rare = top[2] >= NOTED_SIGMAS and self.evidence.share(top[2]) <= NOTED_SHARE
            noted = rare and top[1] - self.level >= self._rise()
            self._give_up(step, top if noted else None)

    def _count_young(self) -> None:
        """Count the first points, which were only learned, for the rarity of heights."""
        self.judged = True
        for distance in self.distances:
            self.evidence.seen((distance / self.sigma - self._unsure()) / self.demand)

    def _unsure(self) -> float:
        """Return the standard error of the level in sigmas: correlated neighbours count as fewer."""
        return MEDIAN_ERROR * math.sqrt((1 + self.neighbours) / (1 - self.neighbours) / SHORT)

    def _proves(self, evidence: Rarity, height: float, before: float | None, least: float = 0.0) -> float:
        """Return the proof of one point of an excursion: noise shared with its neighbour proves less.

        Args:
            before: height of the point before it in the excursion, None for its first. least: as of ``Rarity.nats``.
        """
        share = self.neighbours
        if before is None:
            return evidence.nats(height, least)
        if height < REACH and before < REACH:
            return evidence.nats(height, least) * (1 - share) / (1 + share)
        foretold = share * max(0.0, before) if before < REACH else 0.0
        return evidence.nats(min(height, (height - foretold) / math.sqrt(1 - share * share)), least)

    def _habit(self, height: float, before: float | None) -> float:
        """Return the share of the newest points that rose as high, to within a sigma, if a habit.

        Where the excursion was back at the level in between, its own points are lone ones like those before it.
        """
        if height < SUSPECT:
            return 0.0
        alone = sum(one >= height - 1 for _, _, one in self.excursion) if before is not None and before < 1 else 0
        reach = (height * self.demand + self._unsure() - 1) * self.sigma
        # By the level of their time: a trend hides nothing. And by this one: it may have jumped between clouds.
        newest, points = list(self.values)[-SHORT:], self.points
        ages = range(len(newest), 0, -1)
        here = [
            one + self.slope * math.log(points / max(points - age, 1)) for one, age in zip(newest, ages, strict=True)
        ]
        shares = [_habitual(list(self.distances), reach), _habitual(here, self.level + reach)]
        return max(*shares, alone / (points + PRIOR_POINTS))

    def _lasts(self) -> bool:
        """Return whether a low excursion has lasted."""
        values = [value for _, value, _ in self.excursion]
        return len(values) >= SHORT and median(values) - self.level >= max(LASTING * self._unit(), SUSPECT * self.sigma)

    def _take_as_usual(self) -> None:
        """Accept the level of an excursion that is too low for an event."""
        values = [value for _, value, _ in self.excursion]
        self.excursion, self.proof = [], 0.0
        self._shift(median(values) - self.level)
        self._learn_all(values[-SHORT:])

    def _give_up(self, step: int, noted: tuple[int, float, float] | None) -> None:
        """Learn an excursion without proof; report a rare lone point."""
        if not self._rank(step, max(self.excursion, key=lambda one: one[2])) and noted is not None:
            self._lone(step, noted)
        excursion, self.excursion, self.proof = self.excursion, [], 0.0
        for at, value, height in excursion:
            self.evidence.seen(height)
            self._learn(at, value)

    def _lone(self, step: int, top: tuple[int, float, float]) -> CurveEvent:
        """Report a lone high point."""
        event = self._event(top[0], step, "spike", top[1], top[0])
        event.severity, event.lone, event.life, event.recovery, event.points = "info", True, "back", "fast", 1
        event.recovered_step = next((at for at, _, _ in self.excursion if at > top[0]), step)
        self.news.append(event)
        return event

    def _rank(self, step: int, top: tuple[int, float, float]) -> bool:
        """Add a lone high point to the evidence about them, and return whether the newest are higher now.

        One more than k is the highest of them by chance once in k + 1 times, for any heights.
        """
        at, value, height = top
        if height < SUSPECT:
            return False
        rise, before = value - self.level, list(self.tops)[: len(self.tops) - len(self.ranks)]
        # Neighbours share the error of their level, which makes none of them a record.
        least = rise - ERRORS * math.sqrt(2) * self._unsure() * self.sigma
        self.ranks_proof += math.log((len(before) + 1) / (1 + sum(one >= least for one in before))) - ALLOW
        self.tops.append(rise)
        self.ranks.append(at)
        if self.ranks_proof <= 0:
            self.ranks, self.ranks_proof = [], 0.0
        elif self.ranks_proof >= PROOF and rise >= self._rise():
            event = self._lone(step, top)
            event.severity, event.outdone, event.points = "warning", len(before), len(self.ranks)
            event.since = self.ranks[0]
            self.tops = deque(list(self.tops)[-len(self.ranks) :], maxlen=self.tops.maxlen)
            self.ranks, self.ranks_proof = [], 0.0
            return True
        return False

    # --- the life of an event ----------------------------------------------------------------------------------

    def _start(self, step: int) -> None:
        """Open the event that the excursion proves, or continue one that had just ended."""
        excursion, self.excursion, self.proof = self.excursion, [], 0.0
        first, event = excursion[0][0], self.closed
        reach = AGAIN * self.interval
        if event is not None and event.recovered_step is not None and first - event.recovered_step <= reach:
            event.recovery, event.recovered_step, event.life, event.calm = "pending", None, "up", 0
        else:
            kind: EventKind = "divergence" if self.slow_proof >= PROOF / 2 else "spike"
            if self.fresh:
                self._refresh()
            event = self._climb_before(kind) or self._event(first, step, kind, excursion[0][1], first)
        self.event, self.closed = event, None
        for at, value, _ in excursion:
            self._enter(event, at, value)
        self.news.append(event)

    def _event(self, onset: int, seen: int, kind: EventKind, peak: float, peak_step: int) -> CurveEvent:
        level, scale = self.usual()
        height = (peak - self.level) / self.sigma
        made = CurveEvent(onset, seen, kind, "warning", level, scale, self.back_of(peak), peak_step, min(height, 1e9))
        made.base, made.slope, made.sigma, made.top, made.born = self.level, self.slope, self.sigma, peak, self.points
        made.error = MEDIAN_ERROR * self.sigma / math.sqrt(min(len(self.values), SHORT))
        made.back_below = self.back_of(self.level + self._back_width(made, FEW))
        return made

    def _enter(self, event: CurveEvent, step: int, value: float) -> None:
        event.values.append(value)
        event.steps.append(step)
        event.points += 1
        if value > event.top:
            event.top, event.peak, event.peak_step = value, self.back_of(value), step
            event.score = min((value - event.base) / event.sigma, 1e9)

    def _foretold(self, event: CurveEvent) -> float:
        """Return the expected level without the event: between a trend that ends and one that continues."""
        return event.base + 0.5 * event.slope * math.log(self.points / event.born)

    def _follow(self, event: CurveEvent, step: int, value: float) -> None:
        """Advance the open event by one point."""
        self._enter(event, step, value)
        values, level = list(event.values), self._foretold(event)
        count = self._count(event, event.top - event.base, BACK_POINTS)
        few = level + self._back_width(event, FEW)
        is_back = len(values) >= count and median(values[-count:]) <= level + self._back_width(event, count)
        if is_back and median(values[-FEW:]) <= few:
            self._back(event, values, few)
        elif not self._rises_again(event, step, value, values, level):
            self._grade(event, values)

    def _count(self, event: CurveEvent, height: float, most: int) -> int:
        """Return the number of points whose median is exact enough for a recovery from such a height."""
        near = max(BACK * self._unit(), BACK_PART * height, 1e-300)
        return max(FEW, min(most, math.ceil(min((ERRORS * MEDIAN_ERROR * event.sigma / near) ** 2, most))))

    def _back_width(self, event: CurveEvent, points: int) -> float:
        """Return the tolerance of a recovery by the median of so many points."""
        noise = MEDIAN_ERROR * event.sigma / math.sqrt(points)
        return max(BACK * self._unit(), ERRORS * math.hypot(noise, event.error))

    def _back(self, event: CurveEvent, values: Sequence[float], bound: float) -> None:
        """End an event that is back, and continue from its level."""
        at = len(values)
        while at > 0 and median(values[max(0, at - FEW) : at]) <= bound:
            at -= 1
        first = min(max(at - FEW // 2, 0), len(values) - 1)
        event.length = event.points - (len(values) - first)
        self._close(event, list(event.steps)[first])
        self.event, self.closed, self.excursion, self.proof = None, event, [], 0.0
        here = values[min(first, len(values) - FEW) :]
        self._shift(median(here) - self.level)
        self._learn_all(here)

    def _close(self, event: CurveEvent, step: int) -> None:
        event.recovered_step, event.life = max(step, event.onset), "back"
        event.recovery = "fast" if event.length <= FAST else "slow"
        self.news.append(event)

    def _rises_again(self, event: CurveEvent, step: int, value: float, values: Sequence[float], level: float) -> bool:
        """Begin another event where the curve had nearly recovered for some points, and rises once more."""
        most = max(2 * BACK_PART * (event.top - event.base), self._back_width(event, FEW))
        near = median(values[-FEW:]) <= level + most
        event.calm = event.calm + 1 if near else event.calm if self.excursion else 0
        if event.calm < AGAIN + len(self.excursion):
            return False
        if not self.excursion:
            event.calm_level = median(values[-AGAIN - 1 : -1])
        height = (value - event.calm_level) / event.sigma / self.demand
        if height < SUSPECT and not self.excursion:
            return False
        self.proof += self.evidence.nats(height) - ALLOW
        self.excursion.append((step, value, height))
        if self.proof <= 0:
            self.excursion, self.proof = [], 0.0
        elif self.proof >= PROOF and max(one for _, one, _ in self.excursion) - event.calm_level >= self._rise():
            self._another(event, step)
            return True
        return False

    def _another(self, event: CurveEvent, step: int) -> None:
        """Close an event that was nearly back, and open the next one from the same level."""
        excursion, self.excursion, self.proof = self.excursion, [], 0.0
        first = excursion[0][0]
        event.length = event.points - len(excursion)
        self._close(event, max((at for at in event.steps if at < first), default=first))
        new = self.event = self._event(first, step, "spike", excursion[0][1], first)
        new.base, new.slope, new.error, new.sigma = event.base, event.slope, event.error, event.sigma
        new.born, new.level, new.scale, new.back_below = event.born, event.level, event.scale, event.back_below
        for at, value, _ in excursion:
            self._enter(new, at, value)
        self.news.append(new)

    def _grade(self, event: CurveEvent, values: Sequence[float]) -> None:
        """Classify an event that is not back as rising or staying."""
        low = median(values[-FEW:]) < 0.5 * (event.top + event.base)
        event.life = "coming back" if low else "up"
        if min(event.points, len(values)) < SETTLED:
            return
        part = SETTLED // 4
        parts = [median(values[len(values) - part * back :][:part]) for back in (4, 3, 2, 1)]
        least = max(BACK * self._unit(), (ERRORS + 1) * MEDIAN_ERROR * event.sigma * math.sqrt(2 / part))
        flat = max(parts) - min(parts) <= least
        older = median(values[:-SETTLED]) if len(values) == WINDOW else math.inf
        higher = (parts[0] == min(parts) and parts[-1] == max(parts)) or median(values[-SETTLED:]) - older > least
        if higher and not flat and not low:
            event.life = "rising"
            if (event.kind, event.severity) != ("divergence", "critical"):
                event.kind, event.severity = "divergence", "critical"
                self.news.append(event)
        elif (flat or event.points >= 4 * SETTLED) and not any(one is event for one in self.news):
            # By the noise up here, which is not that of the level before.
            moves = [abs(after - before) for before, after in pairwise(values[-SETTLED:])]
            noise = MAD_TO_SIGMA * median(moves) / math.sqrt(2)
            event.flat = max(parts) - min(parts) <= max(BACK * self._unit(), least * noise / event.sigma)
            self._settle(event, values)  # not before its beginning was reported

    def _settle(self, event: CurveEvent, values: Sequence[float]) -> None:
        """Accept the level of a lasting event in the statistics; the event stays open."""
        level = median(values[-SETTLED // 2 :])
        event.life, event.new_level, event.settled = "new level", self.back_of(level), level
        if event.kind == "spike" and event.top - level <= max(0.5 * (level - event.base), REACH * event.sigma):
            event.kind = "level_shift"
        self.event, self.excursion, self.proof = None, [], 0.0
        self.forget_climb()
        self._shift(level - self.level)
        self._learn_all(values[-SHORT:])
        event.values.clear()
        event.steps.clear()
        self.left = [*self.left[-7:], event]
        self.news.append(event)

    def _follow_left(self) -> None:
        """Follow the lasting events: back after all, or up for longer than usual ones."""
        values = list(self.values)
        for event in list(self.left):
            level = self._foretold(event)
            count = self._count(event, event.settled - event.base, SHORT)
            if median(values[-count:]) <= level + self._back_width(event, count):
                self.left.remove(event)
                event.length = self.points - event.born
                way = values[-2 * SHORT - count : -SHORT]
                if event.recovery == "pending" or (way and median(way) >= 0.5 * (level + event.settled)):
                    self._close(event, self.step - round(self.interval * (count // 2)))  # half of them are back
                else:
                    event.life = "regained"
                    self.news.append(event)
            elif event.recovery == "pending" and self.points - event.born >= PATIENCE:
                event.recovery, event.severity = "none", "critical"
                self.news.append(event)

    # --- climbs: the same evidence on medians of blocks, over the lowest of the newest ones ---------------------

    def _climb(self, values: Sequence[float], first: int, last: int) -> None:
        if not self.climb:
            self.climb_step = first
        self.climb += values
        if len(self.climb) < CLIMB_BLOCK:
            return
        middle, self.climb = median(self.climb), []
        blocks, moves = list(self.blocks), list(self.moves)
        self.blocks.append(middle)
        self.block_steps.append(self.climb_step)
        if len(blocks) > 1:
            self.moves.append(abs(middle - 2 * blocks[-1] + blocks[-2]) / math.sqrt(2))
        self.slow.points += 1
        if len(blocks) < 6 or self.event is not None:
            return
        shared = (1 + self.neighbours) / (1 - self.neighbours)
        error = MEDIAN_ERROR * max(self.spread, self._floor()) * math.sqrt(2 * shared / CLIMB_BLOCK)
        noise = max(MAD_TO_SIGMA * median(moves), error)
        lowest = blocks[-LOWEST_BLOCKS:]
        low = min(map(max, zip(lowest, lowest[1:], lowest[2:], strict=False)))  # a dip is no level
        height = (middle - low) / noise / self.demand
        proves = (self.slow.nats(height) if height >= SUSPECT else 0.0) - ALLOW
        self.slow_proof = max(0.0, self.slow_proof + proves)
        if self.slow_proof < PROOF:
            self.slow.seen(height)
        elif middle - low >= self._rise():
            self._start_climb(low, middle, last)

    def _start_climb(self, low: float, middle: float, step: int) -> None:
        way, blocks, steps = middle - low, list(self.blocks), list(self.block_steps)
        at = len(blocks) - 1
        while at > 0 and blocks[at - 1] > low + 0.2 * way:
            at -= 1
        step_like = sum(one < low + 0.8 * way for one in blocks[at:]) <= 1
        if self.fresh:
            self._refresh()
        points = CLIMB_BLOCK * (len(blocks) - at)
        kind: EventKind = "level_shift" if step_like else "divergence"
        event = self._climb_before(kind)
        if event is None:
            event = self._event(steps[at], step, kind, middle, step)
            event.base, event.slope, event.level, event.top = low, 0.0, self.back_of(low), middle
            event.back_below = self.back_of(low + self._back_width(event, FEW))
        event.points += points
        event.values.extend(list(self.values)[-points:])
        event.steps.extend([step] * len(event.values))
        self.event, self.slow_proof, self.excursion, self.proof = event, 0.0, [], 0.0
        self.news.append(event)

    def _climb_before(self, kind: EventKind) -> CurveEvent | None:
        """Return the settled climb that is not back and rises on: by another one, or by any event if never flat."""
        event = self.left[-1] if self.left else None
        if event is None or event.kind != "divergence" or (event.flat and kind != "divergence"):
            return None
        self.left.pop()
        event.life, event.new_level = "rising", None
        return event

    def _changed(self) -> list[CurveEvent]:
        if not self.news:
            return []
        news, self.news = self.news, []
        return list(_once(news))


def _habitual(past: Sequence[float], least: float) -> float:
    """Return the share of past points that are as high, 0 for a few visits."""
    high = [one >= least for one in past]
    visits = sum(here and not before for before, here in zip([False, *high], high, strict=False))
    return sum(high) / len(past) if visits >= HABIT else 0.0


def _once(events: Sequence[CurveEvent]) -> Iterator[CurveEvent]:
    """Yield each event once, in the order of its first mention."""
    seen: list[int] = []
    for event in events:
        if id(event) not in seen:
            seen.append(id(event))
            yield event
