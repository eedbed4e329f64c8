"""Finds a loss that climbs without a spike, and tells whether it comes back."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from .blocks import BLOCK_POINTS, LARGEST_VALUE, median, rise_points, robust_sigma, smoothed
from .context import Claim
from .contract import SENSITIVITY, Detector, Finding, Mark, Parameter, Point, Recovery, Row, Severity, State
from .curves import noisy
from .roles import LOSS, role_of

#: Blocks that each of the two scales looks back on: 512 and 4,096 points.
WINDOW_BLOCKS = 64
#: Points kept one by one, to tell a climb from a jump.
RING_POINTS = 48
#: Short blocks in a long one. The long scale sees climbs over hundreds to thousands of points, which are smaller than
#: the noise of a short block.
LONG_BLOCKS = 8
#: The onset is the lowest block among so many newest ones, the nearest look first: a loss that rose by little long ago
#: and climbs now has its onset now.
LOOK_BACK_BLOCKS = (12, 24, WINDOW_BLOCKS)
#: Nothing before the onset may be lower than it over so many blocks, or over the length of the climb.
LOWEST_BLOCKS = 12
#: Blocks that must be known before a climb is believed: 64 points, as a baseline needs.
MIN_BLOCKS = 8
#: Short blocks between two looks: the work of a look is spread over 16 points.
LOOK_EVERY_BLOCKS = 2
#: The noise of the medians is measured in full when a look needs it, and once in so many points. In between the old one
#: counts in part.
SIGMA_EVERY_POINTS = 256
STALE_PART = 0.7
#: Blocks around the lowest one whose median is the level before the climb.
LEVEL_BLOCKS_BEFORE = 6
LEVEL_BLOCKS_AFTER = 2
#: A climb that went back by more than this part of itself on its way is a wave.
TAKEN_BACK_PART = 0.5
#: The climb has begun where this part of it, or a sigma, is behind it for good.
ONSET_PART = 0.1
#: A climb must be so many times the largest one that the same curve took back before.
OVER_EARLIER_CLIMBS = 1.6
#: A climb must be this part of the fall just before it, or it is the way back from a drop (memorisation within an
#: epoch, a wave). A climb that is critical by its size needs less of it: early in training everything fell before.
OF_THE_FALL = 1.2
OF_THE_FALL_CRITICAL = 0.6
#: The fall is looked for over so many times the length of the climb, and over so many blocks at least. Of long blocks
#: no more than LONGEST_FALL_BLOCKS count: a loss that fell over thousands of points was learning, that is no wave.
FALL_LENGTHS = 1.5
FALL_BLOCKS = 6
LONGEST_FALL_BLOCKS = 20
#: Highest less lowest is that much by noise alone, sigmas.
FALL_NOISE_SIGMAS = 1.0
#: A climb must also be this part of the first level of the run: at a loss of 0.01 of 5 a percentage means nothing.
OF_THE_FIRST_LEVEL = 0.0025
#: While fewer blocks than HISTORY_BLOCKS lie before the climb it must be larger by this factor: nobody knows yet how
#: far the curve wanders. On the long scale always by LONG_FACTOR: data and schedules bend a curve over many points.
UNKNOWN_PAST_FACTOR = 2.0
HISTORY_BLOCKS = 16
LONG_FACTOR = 1.5
#: Points that a rise must take, from 20 to 80 % of its way; a quicker one is a level shift or a spike.
CLIMB_POINTS = 5
#: In blocks; where single points differ by more than QUIET_PART of the rise only the blocks can say it.
JUMP_BLOCKS = 2
QUIET_PART = 0.3
#: While the learning rate is higher than at the onset by LR_RISE, a climb is expected; it must be this many times
#: larger to be called divergence.
LR_RISE = 1.1
EXPLAINED_FACTOR = 5.0
#: Points after a fork in which a higher loss is the business of the resume detectors.
AFTER_FORK_POINTS = 64
#: Steps, in usual distances between points, after another detector's event in which this one learns nothing.
AFTER_CLAIM_POINTS = 16
#: Learning rates that are remembered, one each 64 points.
RATES = 32
#: A rise of so many times the threshold is critical.
CRITICAL_FACTOR = 4.0
#: Back when no more than this part of the climb is left.
BACK_PART = 0.3
#: Points since it was seen after which a loss that stands still is at a new level.
SETTLED_POINTS = 128
#: Largest change between the two halves of those points, fraction of the level.
SETTLED_DRIFT = 0.004
#: Points after which an event gives its claim back, whatever the loss does.
LONGEST_CLAIM_POINTS = 1_024
#: Points that are not finite, in a row, after which the event is over: the nonfinite detector speaks of it.
GONE_POINTS = 32
#: An open event is told again when its rise has grown by this factor.
NEWS_FACTOR = 2.0
#: A climb that begins again within so many points continues the same event.
REOPEN_POINTS = 256

__all__ = ["DivergenceDetector"]


class _Climb(NamedTuple):
    """What a look at one scale found: a loss that is above its level by ``rise``."""

    onset: int
    level: float
    sigma: float
    rise: float
    threshold: float
    block_points: int


@dataclass(slots=True)
class _Event:
    """One climb from its onset until it is over."""

    onset: int
    seen: int
    level: float
    sigma: float
    threshold: float
    peak: float
    peak_step: int
    told_rise: float
    severity: Severity
    points: int = 0
    missing: int = 0
    state: State = "open"
    recovery: Recovery = "pending"
    recovered_step: int | None = None
    ended_points: int = 0
    new_level: float | None = None
    explained_by: tuple[str, ...] = ()
    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=SETTLED_POINTS // BLOCK_POINTS))


class _Scale:
    """The newest medians of blocks of one length, with their first steps and the learning rate then."""

    __slots__ = ("block_points", "medians", "sigma", "steps")

    def __init__(self, block_points: int) -> None:
        self.block_points = block_points
        self.medians: list[float] = []
        self.steps: list[int] = []
        #: Standard deviation of a median when it was last asked for in full.
        self.sigma = 0.0

    def add(self, middle: float, step: int) -> None:
        self.medians.append(middle)
        self.steps.append(step)
        if len(self.medians) > WINDOW_BLOCKS:
            del self.medians[0], self.steps[0]

    def cut(self, after: int) -> None:
        """Drop the blocks that begin after a step: an anomaly is not learnt from."""
        while self.steps and self.steps[-1] > after:
            del self.medians[-1], self.steps[-1]

    def before(self, step: int) -> list[float]:
        """Return the medians of the blocks that end before a step."""
        return self.medians[: max(0, bisect_left(self.steps, step) - 1)]


class DivergenceDetector(Detector):
    """Opens one incident when the loss climbs away from its level without a spike, and follows it.

    Idea: medians of 8 points (512 points back) and of 64 points (4,096 back) are compared with the level around the
    lowest of them. A climb counts when the newest two are above it by 1.5 %, by 4 sigmas of a median, by 1.6 times any
    climb that the same curve took back before (so a loss that wanders stays silent), and by 1.2 times the fall just
    before it (so the way back from a drop stays silent). A rise within five points is left to the detectors of spikes
    and level shifts. A higher learning rate since the onset explains a climb up to five times as large. The event is
    back when 30 % of the climb are left, or resolved when the loss stands still for 128 points: it is measured from
    there then.

    Args:
        sensitivity: divides the thresholds.
        min_rise: smallest climb, fraction of the level before it.
        sigmas: smallest climb, robust standard deviations of a block's median.

    Example:
        >>> divergence = DivergenceDetector()
        >>> losses = [2.0 + 0.01 * (i % 3) for i in range(256)] + [2.0 + 0.002 * i for i in range(64)]
        >>> found = [f for step, loss in enumerate(losses) for f in divergence.update(Point(step, "loss", loss, 0.0))]
        >>> [(f.kind, f.state, f.severity, f.evidence["direction"]) for f in found]
        [('divergence', 'open', 'warning', 'up')]

    Source: the project's detection notes, section 5 (CUSUM on a slow baseline, trend over 64 points, 2 %), with a
    baseline of block medians because loss residuals are heavy-tailed. What such a climb means: "Small-scale proxies for
    large-scale Transformer training instabilities" (arXiv 2309.14322) and the chronicle of IDEFICS-80B.
    """

    name: ClassVar[str] = "divergence"
    kinds: ClassVar[tuple[str, ...]] = ("divergence",)
    title: ClassVar[str] = "Loss climbs without a spike"
    parameters: ClassVar[dict[str, Parameter]] = {
        "sensitivity": SENSITIVITY,
        "min_rise": Parameter(
            0.015, 0.001, 1.0, "fraction", "Smallest climb above the level before it; higher is quieter and later."
        ),
        "sigmas": Parameter(
            4.0, 2.0, 50.0, "robust sigmas", "Smallest climb in the noise of 8 points' median; higher is quieter."
        ),
    }

    def __init__(self, **settings: float) -> None:
        super().__init__(**settings)
        self._metric = ""
        self._values: deque[float] = deque(maxlen=RING_POINTS)
        self._steps: deque[int] = deque(maxlen=BLOCK_POINTS)
        self._count = 0
        self._short = _Scale(BLOCK_POINTS)
        self._long = _Scale(BLOCK_POINTS * LONG_BLOCKS)
        self._rates: deque[tuple[int, float]] = deque(maxlen=RATES)
        self._first_level = 0.0
        self._quiet_points = 0
        self._after_claim = False
        self._event: _Event | None = None

    def configured(self) -> None:
        sensitivity = self.settings["sensitivity"]
        self._min_rise = self.settings["min_rise"] / sensitivity if sensitivity else math.inf
        self._sigmas = self.settings["sigmas"] / sensitivity if sensitivity else math.inf

    def wants(self, metric: str) -> bool:
        return role_of(metric) == LOSS

    def update(self, point: Point) -> list[Finding]:
        value = point.value
        if point.metric != self._metric:
            if self._metric:
                return []
            self._metric = point.metric
        if not -LARGEST_VALUE < value < LARGEST_VALUE:
            return self._not_a_number(point.step)
        self._values.append(value)
        self._steps.append(point.step)
        self._count += 1
        if self._count % BLOCK_POINTS:
            return []
        return self._block(point.step)

    def note(self, mark: Mark) -> list[Finding]:
        if mark.kind == "fork":
            self._quiet_points = AFTER_FORK_POINTS
        return []

    @classmethod
    def story(cls) -> Sequence[Row | Mark]:
        losses = noisy(700, seed=21, sigma=0.01)
        return [
            Row(i, 1e9 + i, {"loss": loss * (1 + max(0.0, 0.001 * min(i - 400, 150)))}) for i, loss in enumerate(losses)
        ]

    # --- one block ----------------------------------------------------------------------------------------------

    def _block(self, step: int) -> list[Finding]:
        """Take the newest eight points as one block."""
        middle = median(list(self._values)[-BLOCK_POINTS:])
        self._quiet_points = max(0, self._quiet_points - BLOCK_POINTS)
        event = self._event
        if event is not None and event.state == "open":
            return self._follow(event, step, middle)
        if event is not None:
            event.ended_points += BLOCK_POINTS
        if self.context.claimed(self._metric, self.name, AFTER_CLAIM_POINTS * self.context.interval) is not None:
            self._after_claim = True
            return []
        if self._after_claim:
            self._after_claim = False
            if self._left_its_level(middle):
                self._forget()
        self._learn(middle, self._steps[0])
        blocks = self._count // BLOCK_POINTS
        if self._quiet_points or not self._min_rise < math.inf or blocks % LOOK_EVERY_BLOCKS:
            return []
        climb = self._look(self._short, 1.0)
        if climb is None and blocks % LONG_BLOCKS == 0:
            climb = self._look(self._long, LONG_FACTOR)
        return [] if climb is None else self._open(climb, step)

    def _learn(self, middle: float, first_step: int) -> None:
        short = self._short
        short.add(middle, first_step)
        if not self._first_level:
            self._first_level = abs(middle)
        if (self._count // BLOCK_POINTS) % LONG_BLOCKS == 0 and len(short.medians) >= LONG_BLOCKS:
            recent = short.medians[-LONG_BLOCKS:]
            self._long.add(median(recent), short.steps[-LONG_BLOCKS])
            self._rates.append((short.steps[-LONG_BLOCKS], self.context.lr.last))

    def _left_its_level(self, middle: float) -> bool:
        """Say whether the loss is elsewhere after another detector's event: its new level is the usual one then."""
        past = self._short.medians[-LONG_BLOCKS:]
        if not past:
            return False
        level = median(past)
        return abs(middle - level) > max(0.5 * self.settings["min_rise"] * abs(level), 3 * robust_sigma(past))

    def _forget(self) -> None:
        self._short, self._long = _Scale(BLOCK_POINTS), _Scale(BLOCK_POINTS * LONG_BLOCKS)

    def _look(self, scale: _Scale, factor: float) -> _Climb | None:
        """Return the climb that the newest blocks of one scale are in, None when there is none."""
        medians = scale.medians
        count = len(medians)
        if count < MIN_BLOCKS:
            return None
        now = min(medians[-1], medians[-2])
        lowest = min(medians[:-2])
        # The cheap question first: most blocks of a falling or noisy curve are not above all the others by that much.
        if now - lowest < max(factor * self._min_rise * abs(lowest), STALE_PART * self._sigmas * scale.sigma):
            if self._count % SIGMA_EVERY_POINTS == 0:
                scale.sigma = _block_sigma(medians)
            return None
        scale.sigma = _block_sigma(medians)
        if now - lowest < self._sigmas * scale.sigma:
            return None
        smooth = smoothed(medians)
        for back in LOOK_BACK_BLOCKS:
            climb = self._climb_since(scale, smooth, max(0, count - back), factor)
            if climb is not None or back >= count:
                return climb
        return None

    def _climb_since(self, scale: _Scale, smooth: list[float], first: int, factor: float) -> _Climb | None:
        """Return the climb since the lowest block from ``first`` on, None when it is not large enough."""
        medians = scale.medians
        count = len(medians)
        at = min(range(first, count - 2), key=lambda i: (smooth[i], -i))
        level = median(medians[max(0, at - LEVEL_BLOCKS_BEFORE) : min(at + LEVEL_BLOCKS_AFTER, count - 2)])
        rise = min(medians[-1], medians[-2]) - level
        if rise <= self._min_rise * abs(level):
            return None
        sigma = scale.sigma
        if min(smooth[max(0, at - max(LOWEST_BLOCKS, count - at)) : at + 1]) < smooth[at] - sigma:
            return None
        # The climb began where the loss left its level for the last time, which may be long after its lowest block.
        near = level + max(sigma, ONSET_PART * rise)
        began = next((i for i in range(count - 3, at, -1) if smooth[i] <= near), at)
        if began < HISTORY_BLOCKS:
            factor *= UNKNOWN_PAST_FACTOR
        threshold = factor * max(self._min_rise * abs(level), OF_THE_FIRST_LEVEL * self._first_level)
        if rise <= threshold:
            return None
        # Medians of long blocks have little noise: they count as they are, or a short wave would be smoothed away.
        whole = smooth if scale is self._short else medians
        onset = scale.steps[began + 1]
        earlier = max(
            _largest_climb(whole[: began + 1]),
            _largest_climb(self._long.before(onset)),
            _largest_climb(smoothed(self._short.before(onset))),
        )
        fall_blocks = max(FALL_BLOCKS, int(FALL_LENGTHS * (count - at)))
        if scale is self._long:
            fall_blocks = min(fall_blocks, LONGEST_FALL_BLOCKS)
        fall = max(whole[max(0, at - fall_blocks) : at + 1]) - smooth[at]
        fall -= FALL_NOISE_SIGMAS * sigma
        of_the_fall = OF_THE_FALL_CRITICAL if rise > CRITICAL_FACTOR * threshold else OF_THE_FALL
        if rise < max(self._sigmas * sigma, OVER_EARLIER_CLIMBS * earlier, of_the_fall * fall):
            return None
        taken_back = _largest_climb([-value for value in smooth[began:]])
        if taken_back > TAKEN_BACK_PART * rise + FALL_NOISE_SIGMAS * sigma:
            return None
        if self._jumped(smooth[at:], level, rise):
            return None
        return _Climb(onset, level, sigma, rise, threshold, scale.block_points)

    def _jumped(self, blocks: Sequence[float], level: float, rise: float) -> bool:
        """Say whether the loss was up at once: that is a level shift, whose detector waits until it lasts."""
        if rise_points(blocks, level, level + rise) > JUMP_BLOCKS:
            return False
        short = self._short.medians
        if JUMP_BLOCKS < rise_points(short, level, level + rise) < len(short):
            return False
        values = list(self._values)
        noise = robust_sigma([b - a for a, b in pairwise(values)])
        return noise > QUIET_PART * rise or not CLIMB_POINTS < rise_points(values, level, level + rise) < len(values)

    # --- the event ----------------------------------------------------------------------------------------------

    def _open(self, climb: _Climb, step: int) -> list[Finding]:
        explained = self._explanations(climb, step)
        if explained and climb.rise < EXPLAINED_FACTOR * climb.threshold:
            return []
        peak = climb.level + climb.rise
        old = self._event
        if old is not None and old.ended_points <= REOPEN_POINTS and old.recovery == "slow":
            event = replace(old, state="open", recovery="pending", recovered_step=None, new_level=None)
            event.ended_points = event.missing = 0
            if peak > event.peak:
                event.peak, event.peak_step = peak, step
        else:
            event = _Event(
                climb.onset, step, climb.level, climb.sigma, climb.threshold, peak, step, climb.rise, "warning",
                points=max(1, round((step - climb.onset) / max(1.0, self.context.interval))),
            )  # fmt: skip
        event.explained_by = explained
        self._event = event
        self._short.cut(climb.onset)
        self._long.cut(climb.onset)
        self._grade(event)
        self._claim(event, None)
        return [self._finding(event, step)]

    def _explanations(self, climb: _Climb, step: int) -> tuple[str, ...]:
        """Return why a climb may be no surprise; empty when nothing is known."""
        now = self.context.lr.last
        texts = []
        before = self._rate_at(climb.onset)
        # Higher than it ever was is no excuse but the cause, unless it is the warm-up.
        known = self.context.warming_up or now <= max((rate for _, rate in self._rates), default=math.inf)
        if now > LR_RISE * before and known:
            texts.append(f"lr: the learning rate went from {before:.4g} to {now:.4g} meanwhile")
        slack = 2 * climb.block_points * self.context.interval
        texts += [
            f"{excuse.kind}: {excuse.text}"
            for excuse in self.context.excuses_between(int(climb.onset - slack), step)
            if excuse.kind == "batch_size" or (excuse.kind == "lr_jump" and excuse.after > excuse.before)
        ]
        return tuple(texts[-4:])

    def _rate_at(self, step: int) -> float:
        """Return the learning rate at a step, roughly where that is long ago; NaN when it is not known."""
        rate = self.context.lr.before(step + 1)
        return rate if rate == rate else next((r for at, r in reversed(self._rates) if at <= step), math.nan)

    def _follow(self, event: _Event, step: int, middle: float) -> list[Finding]:
        """Advance the open event by one block."""
        event.points += BLOCK_POINTS
        event.missing = 0
        event.recent.append((step, middle))
        if middle > event.peak:
            event.peak, event.peak_step = middle, step
        back = event.level + max(BACK_PART * (event.peak - event.level), 2 * event.sigma)
        if len(event.recent) >= 2 and event.recent[-1][1] <= back and event.recent[-2][1] <= back:
            event.recovered_step = event.recent[-2][0]
            return self._end(event, step, "recovered", "slow")
        if len(event.recent) == event.recent.maxlen:
            medians = [value for _, value in event.recent]
            older, newer = median(medians[: len(medians) // 2]), median(medians[len(medians) // 2 :])
            if abs(newer - older) <= max(SETTLED_DRIFT * abs(newer), event.sigma):
                event.new_level = newer
                return self._end(event, step, "resolved", "none")
        if event.points >= LONGEST_CLAIM_POINTS:
            self._claim(event, step)
        rise = event.peak - event.level
        if self._grade(event) or rise > NEWS_FACTOR * event.told_rise:
            event.told_rise = rise
            return [self._finding(event, step)]
        return []

    def _not_a_number(self, step: int) -> list[Finding]:
        event = self._event
        if event is None or event.state != "open":
            return []
        event.missing += 1
        return [] if event.missing < GONE_POINTS else self._end(event, step, "resolved", "none")

    def _grade(self, event: _Event) -> bool:
        """Raise the severity when the rise calls for it; return whether it changed."""
        if event.severity != "critical" and event.peak - event.level >= CRITICAL_FACTOR * event.threshold:
            event.severity = "critical"
            return True
        return False

    def _end(self, event: _Event, step: int, state: State, recovery: Recovery) -> list[Finding]:
        event.state, event.recovery = state, recovery
        event.ended_points = 0
        event.recent.clear()
        self._claim(event, step)
        if state == "resolved":
            self._forget()
        return [self._finding(event, step)]

    def _claim(self, event: _Event, ended_step: int | None) -> None:
        self.context.claim(self._metric, Claim(self.name, self._key(event), "divergence", event.onset, ended_step))

    def _key(self, event: _Event) -> str:
        return f"divergence:{self._metric}:{event.onset}"

    def _finding(self, event: _Event, now_step: int) -> Finding:
        rise = event.peak - event.level
        percent = 100 * rise / abs(event.level) if event.level else None
        size = f" (+{percent:.1f} %)" if percent is not None else ""
        text = (
            f"The loss climbs without a spike: from {event.level:.4g} at step {event.onset} to {event.peak:.4g}{size}."
        )
        if event.state == "recovered":
            text += f" It was back near its level at step {event.recovered_step}."
        elif event.missing >= GONE_POINTS:
            text += " It is not finite any more."
        elif event.state == "resolved":
            text += f" It stands still at {event.new_level:.4g} now, which is taken as its usual level."
        else:
            text += " It has not come back so far: a slow climb seldom does."
        if event.explained_by:
            text += " Known before: " + "; ".join(event.explained_by) + "."
        evidence: dict[str, Any] = {
            "direction": "up",
            "level_before": event.level,
            "level_after": event.new_level,
            "sigma": event.sigma,
            "peak": event.peak,
            "rise_percent": percent,
            "threshold": event.threshold,
            "score_unit": "robust sigmas of a block of points",
            "points": event.points,
            "explained_by": list(event.explained_by),
            "recovered_at": event.recovered_step,
        }
        return Finding(
            detector=self.name,
            key=self._key(event),
            kind="divergence",
            state=event.state,
            severity=event.severity,
            title=f"Loss climbs since step {event.onset}",
            text=text,
            onset_step=event.onset,
            step=event.seen,
            now_step=now_step,
            metric=self._metric,
            peak_step=event.peak_step,
            recovered_step=event.recovered_step,
            recovery=event.recovery,
            score=min(rise / event.sigma, 1e9),
            evidence=evidence,
        )


def _largest_climb(smooth: Sequence[float]) -> float:
    """Return by how much the values ever rose above their lowest one before, >= 0."""
    lowest, largest = math.inf, 0.0
    for value in smooth:
        if value < lowest:
            lowest = value
        elif value - lowest > largest:
            largest = value - lowest
    return largest


def _block_sigma(medians: Sequence[float]) -> float:
    """Return the standard deviation of one median by the differences of neighbours: a slope adds little to it."""
    differences = [b - a for a, b in pairwise(medians)]
    return max(robust_sigma(differences) / math.sqrt(2.0), 1e-4 * abs(medians[-1]), 1e-9)
