"""Watches the gradient norm: a jump while the loss still looks as usual."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from .engine.base import SENSITIVITY, CurveDetector, Event, Finding, Parameter, Point, State, fresh
from .engine.metric_roles import GRAD_NORM, LOSS, role_of
from .engine.row_blocks import QuietRows
from .stats.baseline import YOUNG_POINTS, RobustBaseline
from .stats.blocks import SETTLED_POINTS, quiet_from
from .stats.levels import LARGEST
from .stats.tail import OutlierTail

#: Points after the start without findings: the norm falls steeply.
WARM_UP_POINTS = 64
#: A jump: two points in a row are this many sigmas of the logarithm above the usual level, and by this factor.
JUMP_SIGMAS = 6.0
FACTOR = 2.0
#: Share of lone points of that height above which more height is asked for: chance makes then less than two in a
#: million points.
JUMP_MOST = 1e-3
#: Least scale of the logarithm: gradient norms scatter by a tenth in the calmest runs.
LEAST_SIGMA = 0.1
#: Quiet points that an old run learns at once.
BLOCK_POINTS = 32
#: Over when so many points in a row are below this many sigmas, or after SETTLED_POINTS: their level is the usual one
#: then. A jump within as many after the end belongs to the same event, and is no news. What is below needs no look.
CALM_POINTS = 16
CALM_SIGMAS = 3.0

__all__ = ["GradNormDetector"]


@dataclass(slots=True)
class _GradientEvent(Event):
    level: float
    scale: float
    peak: float
    peak_step: int
    points: int = 0
    calm: int = 0
    calm_from: int | None = None
    recovered_step: int | None = None
    resolved: bool = False

    def score(self) -> float:
        return min((math.log(self.peak) - self.level) / self.scale, 1e9)


class GradNormDetector(CurveDetector):
    """Reports that the gradient norm jumped while the loss looks as usual. Always ``info``: it never alerts.

    Idea: before some loss spikes the gradient norm leaves its band by 1 to 3 steps; far more often it jumps without any
    effect on the loss. So this is a fact to look at and no alarm. The logarithm of the norm is compared with its robust
    level: two points in a row above 6 sigmas and twice the level are a jump. Where a run shows lone high norms often, a
    jump has to be higher. A loss event that is already followed reports the gradient norm itself, so that this stays
    silent then.

    Args:
        sensitivity: thresholds are divided by it.

    Source: the precursor row of the project's detection notes, section 5; ZClip (arXiv 2504.02507) for statistics of
    the norm.

    Example:
        >>> detector = GradNormDetector()
        >>> norms = [1.0 + 0.1 * (i % 3) for i in range(100)] + [9.0, 12.0] + [1.0] * 20
        >>> found = [f for s, norm in enumerate(norms) for f in detector.update(Point(s, "grad_norm", norm, 0.0))]
        >>> [(f.key, f.severity, f.state, f.now_step) for f in found]
        [('grad_norm:grad_norm:100', 'info', 'open', 101), ('grad_norm:grad_norm:100', 'info', 'recovered', 117)]
    """

    name: ClassVar[str] = "grad_norm"
    kinds: ClassVar[tuple[str, ...]] = ("grad_norm",)
    title: ClassVar[str] = "Gradient norm"
    role: ClassVar[str] = GRAD_NORM
    parameters: ClassVar[dict[str, Parameter]] = {"sensitivity": SENSITIVITY}

    _baseline: RobustBaseline = fresh(RobustBaseline)
    _tail: OutlierTail = fresh(lambda: OutlierTail(prior_share=0.0))
    _block: list[float] = fresh(list)
    _low: float = math.inf
    _high: float = -math.inf
    _limit: int = 1
    _seen: int = 0
    #: The high point that was the newest: (step, value, sigmas).
    _suspect: tuple[int, float, float] | None = None
    _event: _GradientEvent | None = None
    _ended_at: int = -SETTLED_POINTS

    def configured(self) -> None:
        self._sensitivity = self.settings["sensitivity"]

    def update(self, point: Point) -> list[Finding]:
        if point.metric != self._metric and self._is_another(point.metric):
            return []
        value = point.value
        if self._low < value < self._high:
            self._block.append(value)
            if len(self._block) >= self._limit:
                self._learn()
            return []
        return self._check(point.step, value) if 0 < value < LARGEST else []

    def take_quiet(self, rows: QuietRows, start: int, stop: int) -> int:
        stop = min(stop, start + self._limit - 1 - len(self._block))
        if self._metric not in rows.ranges or stop <= start:
            return start
        values = rows.columns[self._metric][start:stop]
        count = quiet_from(values, self._low, self._high)
        self._block += values[:count]
        return start + count

    def _learn(self) -> None:
        """Learn the quiet values, and the high one before them that stayed alone, and set the quiet band again."""
        baseline = self._baseline
        if self._block:
            self._alone()
            baseline.learn_block([math.log(value) for value in self._block])
            self._tail.passed(len(self._block))
            self._seen += len(self._block)
            self._block.clear()
        if baseline.points < WARM_UP_POINTS or self._event is not None:
            self._low, self._high = math.inf, -math.inf
            return
        self._limit = BLOCK_POINTS if baseline.points > YOUNG_POINTS else 1
        level, scale = baseline.location(), max(baseline.scale(), LEAST_SIGMA)
        self._high = math.exp(min(level + CALM_SIGMAS * scale / max(self._sensitivity, 1.0), 80.0))
        self._low = math.exp(max(level - CALM_SIGMAS * scale, -700.0))

    def _alone(self) -> None:
        """Learn the newest high point: none followed it."""
        if self._suspect is not None:
            _, value, height = self._suspect
            self._suspect = None
            self._tail.lone(height)
            self._baseline.learn(math.log(value))

    def _check(self, step: int, value: float) -> list[Finding]:
        """Take a positive value that is not plainly quiet."""
        if self._event is not None:
            return self._follow(self._event, step, value)
        self._learn()
        baseline, sigmas = self._baseline, 0.0
        if baseline.points >= WARM_UP_POINTS:
            baseline.refresh()
            above = (math.log(value) - baseline.location()) * self._sensitivity
            sigmas = above / max(baseline.scale(), LEAST_SIGMA) if above >= math.log(FACTOR) else 0.0
        if sigmas < JUMP_SIGMAS:
            self._block.append(value)
            self._learn()
            return []
        self._seen += 1
        self._tail.passed(1)
        before, needed = self._suspect, self._tail.needed(JUMP_SIGMAS, JUMP_MOST)
        if before is None or min(before[2], sigmas) < needed:
            self._alone()
            self._suspect = (step, value, sigmas)
            return []
        self._suspect = None
        return self._open(before[0], step, max(before[1], value), before[0] if before[1] >= value else step)

    def _open(self, onset: int, step: int, peak: float, peak_step: int) -> list[Finding]:
        known = any(role_of(metric) == LOSS for metric in self.context.open_claims())
        again = self._seen - self._ended_at < SETTLED_POINTS
        baseline = self._baseline
        self._event = event = _GradientEvent(
            self._metric, onset, step, "info", baseline.location(), max(baseline.scale(), LEAST_SIGMA), peak, peak_step,
            points=2,
        )  # fmt: skip
        self._low, self._high = math.inf, -math.inf
        if known or again:
            event.seen = -1  # followed to its end without a report
            return []
        self.claim(self._metric, onset)
        return [self._finding(event, step)]

    def _follow(self, event: _GradientEvent, step: int, value: float) -> list[Finding]:
        event.points += 1
        self._seen += 1
        if value > event.peak:
            event.peak, event.peak_step = value, step
        if math.log(value) - event.level <= CALM_SIGMAS * event.scale:
            event.calm += 1
            event.calm_from = step if event.calm == 1 else event.calm_from
            self._baseline.learn(math.log(value))
        else:
            event.calm = 0
            if event.points > SETTLED_POINTS - CALM_POINTS:
                self._baseline.learn(math.log(value))
        if event.calm < CALM_POINTS and event.points < SETTLED_POINTS:
            return []
        if event.calm >= CALM_POINTS:
            event.recovered_step = event.calm_from
        else:
            event.resolved = True
            self._baseline.restart(self._baseline.newest(CALM_POINTS))
        self._event, self._ended_at = None, self._seen
        self._learn()
        if event.seen < 0:
            return []
        self.claim(self._metric, event.onset, step)
        return [self._finding(event, step)]

    def _finding(self, event: _GradientEvent, now_step: int) -> Finding:
        state: State = "recovered" if event.recovered_step is not None else "resolved" if event.resolved else "open"
        level = math.exp(min(event.level, 80.0))
        times = event.peak / level
        text = f"The gradient norm jumped from {level:.3g} to {event.peak:.3g} at step {event.onset}."
        text += " Alone this is no alarm: most such jumps have no effect on the loss."
        if event.recovered_step is not None:
            text += f" It was back at step {event.recovered_step}."
        elif event.resolved:
            text += " It stays at its new level."
        return self.finding(
            event,
            now_step,
            state,
            title=f"Gradient norm jumped at step {event.onset}",
            text=text,
            peak_step=event.peak_step,
            recovered_step=event.recovered_step,
            score=event.score(),
            evidence={
                "level_before": level,
                "peak": event.peak,
                "ratio": min(times, 1e12),
                "sigma": event.scale,
                "direction": "up",
                "score_unit": "robust sigmas of the logarithm",
                "points": event.points,
                "recovered_at": event.recovered_step,
                "explained_by": [],
            },
        )
