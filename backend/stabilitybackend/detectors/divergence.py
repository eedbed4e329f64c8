"""Finds a loss that climbs without a spike, and reports whether it comes back."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from .engine.base import (
    SENSITIVITY,
    CurveDetector,
    Event,
    Finding,
    Mark,
    Parameter,
    Point,
    Recovery,
    Row,
    State,
    fresh,
)
from .engine.row_blocks import QuietRows
from .engine.synthetic import noisy
from .stats.blocks import AFTER_CLAIM_POINTS, BACK_PART, BLOCK_POINTS, SETTLED_POINTS
from .stats.climb import LARGE_FACTOR, LEVEL_BLOCKS_BEFORE, LONG_BLOCKS, RING_POINTS, Climb, Climbs
from .stats.levels import LARGEST, change
from .stats.robust import median, robust_sigma
from .stats.together import Moved
from .stats.wander import Wander

#: While the learning rate is higher than at the onset by LR_RISE, a climb is expected: only a large one is divergence.
LR_RISE = 1.1
#: Learning rates that are remembered, one each 64 points.
RATES = 32
#: Points after which an event gives its claim back, whatever the loss does.
LONGEST_CLAIM_POINTS = 1_024
#: An open event is reported again when its rise has grown by this factor.
NEWS_FACTOR = 2.0
#: A climb that begins again within so many points continues the same event.
REOPEN_POINTS = 256

__all__ = ["DivergenceDetector"]


@dataclass(slots=True)
class _ClimbEvent(Event):
    """One climb from its onset until it is over."""

    level: float
    sigma: float
    threshold: float
    peak: float
    peak_step: int
    told_rise: float
    points: int = 0
    state: State = "open"
    recovery: Recovery = "pending"
    recovered_step: int | None = None
    ended_points: int = 0
    new_level: float | None = None
    explained_by: tuple[str, ...] = ()
    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=SETTLED_POINTS // BLOCK_POINTS))


class DivergenceDetector(CurveDetector):
    """Opens one incident when the loss climbs away from its level without a spike, and follows it.

    Idea: medians of 8 points (512 points back) and of 64 points (4,096 back) are compared with the level around the
    lowest of them. A climb counts when the newest two are above it by 1.5 %, by 4 sigmas of a median (3 where four of
    them keep it), by 1.6 times any climb that the same curve took back before (so a loss that wanders stays silent),
    and by 1.2 times the fall just before it (so the way back from a drop stays silent). A rise within five points is
    left to the detectors of spikes and level shifts. A learning rate on its way back up explains a climb up to four
    times as large. The event is back when 30 % of the climb are left, or resolved when the loss does not move for 128
    points: it is measured from there then.

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

    _values: deque[float] = fresh(deque, maxlen=RING_POINTS)
    _steps: deque[int] = fresh(deque, maxlen=BLOCK_POINTS)
    _count: int = 0
    _climbs: Climbs = fresh(Climbs)
    _rates: deque[tuple[int, float]] = fresh(deque, maxlen=RATES)
    _rate: float = 0.0
    _largest_rate: float = 0.0
    _after_claim: bool = False
    _wander: Wander = fresh(Wander)
    _event: _ClimbEvent | None = None

    def configured(self) -> None:
        sensitivity = self.settings["sensitivity"]
        self._min_rise = self.settings["min_rise"] / sensitivity if sensitivity else math.inf
        self._sigmas = self.settings["sigmas"] / sensitivity if sensitivity else math.inf

    def update(self, point: Point) -> list[Finding]:
        value = point.value
        if point.metric != self._metric and self._is_another(point.metric):
            return []
        if not -LARGEST < value < LARGEST:
            return []  # the detector of what is not finite reports it
        self._values.append(value)
        self._steps.append(point.step)
        self._count += 1
        if self._count % BLOCK_POINTS:
            return []
        return self._block(point.step, median(list(self._values)[-BLOCK_POINTS:]))

    def take_quiet(self, rows: QuietRows, start: int, stop: int) -> int:
        if self._metric not in rows.ranges:
            return start
        stop = min(stop, start + BLOCK_POINTS - 1 - self._count % BLOCK_POINTS)
        self._values.extend(rows.columns[self._metric][start:stop])
        self._steps.extend(rows.steps[start:stop])
        self._count += stop - start
        return stop

    def take_block(self, steps: Sequence[int], values: Sequence[float], middle: float) -> list[Finding]:
        """Take BLOCK_POINTS points below LARGEST, whose median is ``middle``, at once."""
        self._values.extend(values)
        self._steps.extend(steps)
        self._count += BLOCK_POINTS
        return self._block(steps[-1], middle)

    def open_finding(self, step: int) -> Finding | None:
        """Return what is known at ``step`` of the climb that is open, None where none is."""
        return self._finding(self._event, step) if self._event is not None and self._event.state == "open" else None

    def moved(self, step: int, since: Sequence[float]) -> Moved | None:
        """Return how far the loss went from what it was before a step to the points ``since``, None if unknown."""
        return self._climbs.moved(step, since)

    @classmethod
    def story(cls) -> Sequence[Row | Mark]:
        losses = noisy(700, seed=21, sigma=0.01)
        return [
            Row(i, 1e9 + i, {"loss": loss * (1 + max(0.0, 0.001 * min(i - 400, 150)))}) for i, loss in enumerate(losses)
        ]

    # --- one block ----------------------------------------------------------------------------------------------

    def _block(self, step: int, middle: float) -> list[Finding]:
        """Take the newest eight points as one block, by their median."""
        event = self._event
        if event is not None and event.state == "open":
            return self._follow(event, step, middle)
        self._wander.passed(BLOCK_POINTS)
        if event is not None:
            event.ended_points += BLOCK_POINTS
        claim = self.context.claimed(self._metric, self.name, AFTER_CLAIM_POINTS * self.context.interval)
        if claim is not None:
            # A spike that came back is no end of a climb that is under way: the lower points before it stay known.
            self._after_claim = not claim.back
            return []
        if self._after_claim:
            self._after_claim = False
            if self._left_its_level(middle):
                self._forget()
        self._climbs.learn(middle, self._steps[0])
        self._rate = max(self._rate, self.context.lr.last)  # in this order NaN is passed over
        if self._count // BLOCK_POINTS % LONG_BLOCKS == 0:
            self._note_rate(self._steps[0])
        if not self._min_rise < math.inf:
            return []
        # Where neighbours resemble each other medians err more, and the sigma, from their differences, is too small.
        climb = self._climbs.search(self._values, self._min_rise, self._sigmas * self.context.drag(self._metric) ** 2)
        if climb is None or (not _goes_on(event) and self._wander.is_usual(climb.level, climb.rise)):
            return []
        return self._open(climb, step)

    def _left_its_level(self, middle: float) -> bool:
        """Say whether the loss is elsewhere after another detector's event: its new level is the usual one then."""
        past = self._climbs.recent()
        if not past:
            return False
        level = median(past)
        return abs(middle - level) > max(0.5 * self.settings["min_rise"] * abs(level), 3 * robust_sigma(past))

    def _forget(self) -> None:
        self._climbs = Climbs()

    # --- the event ----------------------------------------------------------------------------------------------

    def _open(self, climb: Climb, step: int) -> list[Finding]:
        explained = self._explanations(climb, step)
        if explained and climb.rise < LARGE_FACTOR * climb.threshold:
            return []
        peak = climb.level + climb.rise
        old = self._event
        if old is not None and _goes_on(old):
            event = replace(old, state="open", recovery="pending", recovered_step=None, new_level=None)
            event.ended_points = 0
            if peak > event.peak:
                event.peak, event.peak_step = peak, step
        else:
            event = _ClimbEvent(
                self._metric, climb.onset, step, "warning", climb.level, climb.sigma, climb.threshold, peak, step,
                climb.rise, points=max(1, round((step - climb.onset) / max(1.0, self.context.interval))),
            )  # fmt: skip
        event.explained_by = explained
        self._event = event
        self._climbs.forget_after(climb.onset)
        self._grade(event)
        self.claim(self._metric, event.onset)
        return [self._finding(event, step)]

    def _explanations(self, climb: Climb, step: int) -> tuple[str, ...]:
        """Return why a climb may be no surprise; empty when nothing is known."""
        now, before = self.context.lr.last, self._rate_at(climb.onset)
        earlier = [rate for at, rate in self._rates if at <= climb.onset]
        largest = max([self._largest_rate, *earlier]) if earlier else math.inf
        # Higher than it ever was is no excuse but the cause, unless it is the warm-up: that is not flat first.
        warming_up = self.context.warming_up and not (len(earlier) >= 3 and earlier[-1] == earlier[-3])
        texts = []
        if now > LR_RISE * before and (warming_up or now <= LR_RISE * largest):
            texts.append(f"lr: the learning rate went from {before:.4g} to {now:.4g} meanwhile")
        slack = LEVEL_BLOCKS_BEFORE * climb.block_points * self.context.interval
        texts += [
            f"{excuse.kind}: {excuse.text}"
            for excuse in self.context.excuses_between(int(climb.onset - slack), step)
            if excuse.kind == "batch_size"
            or (excuse.kind == "lr_jump" and excuse.before < excuse.after <= LR_RISE * largest)
        ]
        return tuple(texts[-4:])

    def _note_rate(self, step: int) -> None:
        """Remember the largest learning rate of the last 64 points; of those that are forgotten the largest stays."""
        if len(self._rates) == RATES:
            self._largest_rate = max(self._largest_rate, self._rates[0][1])
        if self._rate:
            self._rates.append((step, self._rate))
        self._rate = 0.0

    def _rate_at(self, step: int) -> float:
        """Return the learning rate at a step, roughly where that is long ago; NaN when it is not known."""
        rate = self.context.lr.before(step + 1)
        return rate if rate == rate else next((r for at, r in reversed(self._rates) if at <= step), math.nan)

    def _follow(self, event: _ClimbEvent, step: int, middle: float) -> list[Finding]:
        """Advance the open event by one block."""
        event.points += BLOCK_POINTS
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
            if abs(newer - older) <= event.sigma:
                event.new_level = newer
                return self._end(event, step, "resolved", "none")
        if event.points - BLOCK_POINTS < LONGEST_CLAIM_POINTS <= event.points:
            self.claim(self._metric, event.onset, step)
        rise = event.peak - event.level
        if self._grade(event) or rise > NEWS_FACTOR * event.told_rise:
            event.told_rise = rise
            return [self._finding(event, step)]
        return []

    def _grade(self, event: _ClimbEvent) -> bool:
        """Raise the severity when the rise calls for it; return whether it changed."""
        if event.severity != "critical" and event.peak - event.level >= LARGE_FACTOR * event.threshold:
            event.severity = "critical"
            return True
        return False

    def _end(self, event: _ClimbEvent, step: int, state: State, recovery: Recovery) -> list[Finding]:
        event.state, event.recovery = state, recovery
        event.ended_points = 0
        self._wander.note(event.level, event.peak)
        event.recent.clear()
        self.claim(self._metric, event.onset, step)
        if state == "resolved":
            self._forget()
        return [self._finding(event, step)]

    def _finding(self, event: _ClimbEvent, now_step: int) -> Finding:
        rise = event.peak - event.level
        percent = 100 * rise / abs(event.level) if event.level else None
        size = change(event.peak, event.level, event.sigma, digits=1)
        text = (
            f"The loss climbs without a spike: from {event.level:.4g} at step {event.onset} to {event.peak:.4g}{size}."
        )
        if event.state == "recovered":
            text += f" It was back near its level at step {event.recovered_step}."
        elif event.state == "resolved":
            text += f" It is flat at {event.new_level:.4g} now, which is taken as its usual level."
        else:
            text += " It has not come back so far: a slow climb seldom does."
        if event.explained_by:
            text += " Known before: " + "; ".join(event.explained_by) + "."
        return self.finding(
            event,
            now_step,
            event.state,
            title=f"Loss climbs since step {event.onset}",
            text=text,
            peak_step=event.peak_step,
            recovered_step=event.recovered_step,
            recovery=event.recovery,
            score=min(rise / event.sigma, 1e9),
            evidence={
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
            },
        )


def _goes_on(event: _ClimbEvent | None) -> bool:
    """Return whether a climb now continues an event that was back for a moment."""
    return event is not None and event.recovery == "slow" and event.ended_points <= REOPEN_POINTS
