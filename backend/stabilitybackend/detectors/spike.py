"""Finds spikes of the loss and tells whether the loss comes back."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .baseline import RobustBaseline, median
from .contract import Detector, Finding, Point, Recovery, Severity, State

#: Points without alarms after the start: the scale is not known yet and the loss falls steeply.
WARM_UP_POINTS = 40
#: A point is a candidate above this many robust sigmas ...
CANDIDATE_SIGMAS = 8.0
#: ... when it also lies this fraction above the usual level.
CANDIDATE_RISE = 0.05
#: Candidates among the last CONFIRM_WINDOW points that make an event. One alone is an odd batch: on healthy logs of one
#: rank's loss about one step in 200 lies that high without any effect.
CONFIRM_CANDIDATES = 2
CONFIRM_WINDOW = 3
#: Back at the usual level: the median of the last RECOVERY_RING points is within this many sigmas or this fraction of
#: it.
RECOVERED_SIGMAS = 3.0
RECOVERED_RISE = 0.02
RECOVERY_RING = 5
#: An event no longer than this is a fast recovery.
FAST_POINTS = 10
#: After so many points above the usual level the verdict is ``none`` whatever the trend.
PATIENCE_POINTS = 100
#: The verdict comes already after so many points when the second half of them is not lower than the first.
TREND_POINTS = 50
#: A candidate within so many points after a recovery continues the same event.
REOPEN_POINTS = 10
#: Points that must be stable after the verdict ``none`` before their level is accepted as the usual one.
NEW_LEVEL_POINTS = 64
#: The two halves of those points may differ by this fraction of the level, or by two old sigmas.
NEW_LEVEL_DRIFT = 0.03
#: While an event is pending it is told again only when its peak has grown by this factor.
PEAK_NEWS_FACTOR = 1.5

__all__ = ["SpikeDetector"]


@dataclass(slots=True)
class _Event:
    """One spike from its onset until it is closed, with the level from before it."""

    onset: int
    seen: int
    level: float
    scale: float
    peak: float
    peak_step: int
    told_peak: float
    points: int
    recovery: Recovery = "pending"
    recovered_step: int | None = None
    new_level: float | None = None
    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RECOVERY_RING))

    @property
    def back_below(self) -> float:
        """The value at or below which the loss counts as back."""
        return self.level + max(RECOVERED_SIGMAS * self.scale, RECOVERED_RISE * abs(self.level))

    def score(self) -> float:
        return min((self.peak - self.level) / self.scale, 1e9)


class SpikeDetector(Detector):
    """Opens one incident when the loss leaves its usual range upwards, and follows it until it is back.

    Idea: the usual range is robust (medians of the last 128 points, see ``baseline.py``). A point above 8 sigmas and
    5 % is a candidate; two candidates among three points are an event, one alone is an odd batch and stays silent.
    The baseline learns nothing while an event is open. The event is ``pending`` until the median of five points is
    back (``fast`` within 10 points, otherwise ``slow``), or until it stays up for 100 points or does not fall over 50
    (``none``). An event with the verdict ``none`` stays open; when the loss settles for 64 points, later spikes are
    measured from the new level, and the old event still recovers if the loss falls back to where it came from.

    Args:
        metric: name of the metric that is watched.

    Source: the rules of the project's detection notes, section 5; skip-step rule of OLMo-core and the ring of llm.c
    for window sizes; PaLM (arXiv 2204.02311) for what a spike looks like.

    Example:
        >>> spike = SpikeDetector()
        >>> losses = [2.0 + 0.01 * (i % 3) for i in range(100)] + [3.5, 3.6, 3.4] + [2.0] * 5
        >>> found = [f for step, loss in enumerate(losses) for f in spike.update(Point(step, "loss", loss, 0.0))]
        >>> [(f.key, f.recovery, f.onset_step, f.step, f.recovered_step) for f in found]
        [('spike:loss:100', 'pending', 100, 101, None), ('spike:loss:100', 'fast', 100, 101, 103)]
    """

    name: ClassVar[str] = "spike"
    kinds: ClassVar[tuple[str, ...]] = ("spike",)

    def __init__(self, metric: str = "loss", **settings: float) -> None:
        super().__init__(**settings)
        self._metric = metric
        self._baseline = RobustBaseline()
        self._last: deque[tuple[int, float, bool]] = deque(maxlen=CONFIRM_WINDOW)
        self._event: _Event | None = None
        self._settling: deque[float] = deque(maxlen=NEW_LEVEL_POINTS)
        self._half: deque[float] = deque(maxlen=TREND_POINTS)
        self._closed: _Event | None = None
        self._since_closed = 0
        self._left_behind: _Event | None = None

    def wants(self, metric: str) -> bool:
        return metric == self._metric

    def update(self, point: Point) -> list[Finding]:
        if point.metric != self._metric:
            return []
        value = point.value if math.isfinite(point.value) else math.nan
        found = self._old_event_back(point.step, value)
        if self._event is not None:
            return found + self._follow(self._event, point.step, value)
        if not math.isnan(value):
            found += self._watch(point.step, value)
        return found

    def _watch(self, step: int, value: float) -> list[Finding]:
        """Score a point while no event is open; learn from it only when it is usual."""
        self._since_closed += 1
        if self._baseline.points < WARM_UP_POINTS:
            self._baseline.learn(value)
            return []
        location, scale = self._baseline.location(), self._baseline.scale()
        rise = value - location
        candidate = rise > CANDIDATE_SIGMAS * scale and rise > CANDIDATE_RISE * abs(location)
        self._last.append((step, value, candidate))
        if not candidate:
            self._baseline.learn(value)
            return []
        candidates = [(at, loss) for at, loss, high in self._last if high]
        if len(candidates) < CONFIRM_CANDIDATES:
            return []
        self._last.clear()
        return [self._open(candidates, step, self._baseline.level(), scale)]

    def _open(self, candidates: list[tuple[int, float]], step: int, level: float, scale: float) -> Finding:
        closed, self._closed = self._closed, None
        peak_step, peak = max(candidates, key=lambda candidate: candidate[1])
        if closed is not None and self._since_closed <= REOPEN_POINTS:
            event = closed
            event.recovery, event.recovered_step = "pending", None
            event.points += self._since_closed
            if peak > event.peak:
                event.peak, event.peak_step = peak, peak_step
        else:
            event = _Event(candidates[0][0], step, level, scale, peak, peak_step, peak, points=len(candidates))
        event.told_peak = event.peak
        event.recent.extend(candidates)
        self._half.clear()
        self._half.extend(loss for _, loss in candidates)
        self._event = event
        return self._finding(event, step)

    def _follow(self, event: _Event, step: int, value: float) -> list[Finding]:
        """Advance the open event by one point. A non-finite value counts as far above."""
        event.points += 1
        value = math.inf if math.isnan(value) else value
        event.recent.append((step, value))
        self._half.append(value)
        if math.isfinite(value) and value > event.peak:
            event.peak, event.peak_step = value, step
        if _is_back(event):
            return [self._close(event, step)]
        if event.recovery == "none":
            return self._settle(event, step, value)
        if event.points >= PATIENCE_POINTS or (event.points >= TREND_POINTS and self._not_falling()):
            event.recovery = "none"
            event.told_peak = event.peak
            self._settling.clear()
            return [self._finding(event, step)]
        if event.peak - event.level > PEAK_NEWS_FACTOR * (event.told_peak - event.level):
            event.told_peak = event.peak
            return [self._finding(event, step)]
        return []

    def _not_falling(self) -> bool:
        values = list(self._half)
        half = len(values) // 2
        return len(values) == TREND_POINTS and median(values[half:]) >= median(values[:half])

    def _settle(self, event: _Event, step: int, value: float) -> list[Finding]:
        """After the verdict ``none``: accept a level that stands still, and watch from there."""
        if not math.isfinite(value):
            self._settling.clear()
            return []
        self._settling.append(value)
        if len(self._settling) < NEW_LEVEL_POINTS:
            return []
        values = list(self._settling)
        half = NEW_LEVEL_POINTS // 2
        drift = abs(median(values[half:]) - median(values[:half]))
        level = median(values)
        if drift > max(2 * event.scale, NEW_LEVEL_DRIFT * abs(level)):
            return []
        self._baseline.restart(values)
        event.new_level = level
        self._left_behind, self._event = event, None
        event.recent.clear()
        self._settling.clear()
        return [self._finding(event, step)]

    def _close(self, event: _Event, step: int) -> Finding:
        back = next(at for at, loss in event.recent if loss <= event.back_below)
        above = event.points - sum(1 for at, _ in event.recent if at >= back)
        event.recovery = "fast" if above <= FAST_POINTS else "slow"
        event.recovered_step = back
        for at, loss in event.recent:
            if at >= back and loss <= event.back_below:
                self._baseline.learn(loss)
        event.recent.clear()
        self._closed, self._event, self._since_closed = event, None, 0
        return self._finding(event, step)

    def _old_event_back(self, step: int, value: float) -> list[Finding]:
        """Close an event whose new level had been accepted, when the loss is back where it came from."""
        event = self._left_behind
        if event is None or math.isnan(value):
            return []
        event.recent.append((step, value))
        if not _is_back(event):
            return []
        self._left_behind = None
        event.recovery = "slow"
        event.recovered_step = next(at for at, loss in event.recent if loss <= event.back_below)
        return [self._finding(event, step)]

    def _finding(self, event: _Event, now_step: int) -> Finding:
        state: State = "open" if event.recovered_step is None else "recovered"
        severity: Severity = {"pending": "warning", "none": "critical", "fast": "info", "slow": "warning"}[
            event.recovery
        ]  # type: ignore[assignment]
        rise = event.peak - event.level
        percent = f" (+{100 * rise / abs(event.level):.0f} %)" if event.level else ""
        text = f"The loss rose from {event.level:.4g} to {event.peak:.4g}{percent}, onset at step {event.onset}."
        text += {
            "pending": " It is still high; whether it comes back by itself is not known yet.",
            "fast": f" It was back at its level by itself at step {event.recovered_step}.",
            "slow": f" It came back slowly by itself, at step {event.recovered_step}.",
            "none": " It does not come back by itself.",
        }[event.recovery]
        if event.new_level is not None and event.recovered_step is None:
            text += f" It has settled at a new level of {event.new_level:.4g}."
        evidence: dict[str, Any] = {
            "level_before": event.level,
            "sigma": event.scale,
            "peak": event.peak,
            "rise_percent": 100 * rise / abs(event.level) if event.level else None,
            "points": event.points,
            "back_below": event.back_below,
            "new_level": event.new_level,
        }
        return Finding(
            detector=self.name,
            key=f"spike:{self._metric}:{event.onset}",
            kind="spike",
            state=state,
            severity=severity,
            title=f"Loss spike at step {event.onset}",
            text=text,
            onset_step=event.onset,
            step=event.seen,
            now_step=now_step,
            metric=self._metric,
            peak_step=event.peak_step,
            recovered_step=event.recovered_step,
            recovery=event.recovery,
            score=event.score(),
            evidence=evidence,
        )


def _is_back(event: _Event) -> bool:
    return len(event.recent) == RECOVERY_RING and median([loss for _, loss in event.recent]) <= event.back_below
