"""One spike from its first high point until the loss is back or has settled: what is known of it and what ends it."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from stabilitybackend.detectors.engine.base import Event, Recovery
from stabilitybackend.detectors.stats.robust import median

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
#: Newest points of an event that does not come back: later spikes are measured from their level.
NEW_LEVEL_POINTS = 32
#: A late return counts while the slow median is above this fraction of the way from the old level to the new one.
BACK_AT_ONCE = 0.5
#: While an event is pending it is reported again only when its peak has grown by this factor, so many times at most.
PEAK_NEWS_FACTOR = 2.0
PEAK_NEWS = 6
#: Largest score, so that it is a number in JSON.
LARGEST_SCORE = 1e9

__all__ = ["RECOVERY_RING", "SpikeEvent", "back_below"]


def back_below(level: float, scale: float) -> float:
    """Return the value at or below which a loss counts as back at its level; scale: its robust sigma."""
    return level + max(RECOVERED_SIGMAS * scale, RECOVERED_RISE * abs(level))


@dataclass(slots=True)
class SpikeEvent(Event):
    """One spike from its onset until it is closed, with the level from before it.

    ``advance`` takes one point and says whether something is news; the fields then tell what.
    """

    level: float
    scale: float
    peak: float
    peak_step: int
    told_peak: float
    points: int
    needed: str
    dataset: str | None = None
    explained_by: list[str] = field(default_factory=list)
    #: False for an event that another one reports, or that waits whether another one does.
    told: bool = True
    #: Points at which an untold event is reported, if nothing else reports it by then; None for never.
    tell_at: int | None = None
    recovery: Recovery = "pending"
    recovered_step: int | None = None
    new_level: float | None = None
    peak_news: int = 0
    #: Over without a recovery.
    resolved: bool = False
    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=FAST_POINTS))
    trend: deque[float] = field(default_factory=lambda: deque(maxlen=TREND_POINTS))

    @property
    def back_below(self) -> float:
        """The value at or below which the loss counts as back."""
        return back_below(self.level, self.scale)

    @property
    def score(self) -> float:
        """How high the peak is above the level, robust sigmas."""
        return min(self.peak / self.scale - self.level / self.scale, LARGEST_SCORE)

    @property
    def rise(self) -> float:
        """The peak's height above the level as a fraction of the level, infinite for a level of 0."""
        return (self.peak / abs(self.level) - math.copysign(1, self.level)) if self.level else math.inf

    @property
    def is_over(self) -> bool:
        """Whether the loss came back."""
        return self.recovered_step is not None

    def take(self, step: int, value: float) -> None:
        """Take one point; NaN and infinities count as far above."""
        value = value if math.isfinite(value) else math.inf
        self.points += 1
        self.recent.append((step, value))
        self.trend.append(value)
        if self.peak < value < math.inf:
            self.peak, self.peak_step = value, step

    def advance(self) -> bool:
        """Judge the points so far and return whether that is news."""
        if self._is_back():
            self._close()
            return True
        if self.recovery == "pending" and (self.points >= PATIENCE_POINTS or self._not_falling()):
            self.recovery, self.told_peak = "none", self.peak
            return True
        grown = self.peak - self.level > PEAK_NEWS_FACTOR * (self.told_peak - self.level)
        if self.recovery == "pending" and grown and self.peak_news < PEAK_NEWS:
            self.told_peak = self.peak
            self.peak_news += 1
            return True
        return False

    def stays_high(self, least: float) -> bool:
        """Return whether the loss does not come back and stays above its level by more than a fraction of it."""
        if self.recovery != "none" or not self.trend:
            return False
        return median(list(self.trend)) - self.level > least * abs(self.level)

    def newest(self) -> list[float]:
        """Return the newest finite points, from which later spikes are measured when the loss does not come back."""
        return [value for value in list(self.trend)[-NEW_LEVEL_POINTS:] if math.isfinite(value)]

    def accept(self, values: list[float]) -> None:
        """Take note that the run goes on at a new level."""
        self.new_level = median(values)
        self.recent.clear()
        self.trend.clear()

    def came_back_late(self, step: int, newest: list[float], slow: float, interval: float) -> bool:
        """Return whether the loss is where it came from, after its new level was accepted: the event is over then.

        A loss that falls back at once has recovered; one that learnt its way down over many points has not.

        Args:
            step: the newest step.
            newest: values of the last RECOVERY_RING points, oldest first.
            slow: median of the last 128 points.
            interval: steps between two points.
        """
        if len(newest) < RECOVERY_RING or median(newest) > self.back_below:
            return False
        if self.new_level is None or slow < self.level + BACK_AT_ONCE * (self.new_level - self.level):
            self.resolved = True
            return True
        first = next(i for i, value in enumerate(newest) if value <= self.back_below)
        self.recovery = "slow"
        self.recovered_step = max(self.onset, step - round(interval * (len(newest) - 1 - first)))
        return True

    def usual_again(self) -> list[float]:
        """Return the values since the recovery that belong to the usual level."""
        return [
            loss for at, loss in self.recent if at >= (self.recovered_step or at) and loss <= self.back_below
        ]  # fmt: skip

    def reopen(self, step: int, peak: float, peak_step: int, points: int) -> None:
        """Go on with an event that was thought over."""
        self.recovery, self.recovered_step = "pending", None
        self.points += points
        self.recent.clear()
        if peak > self.peak:
            self.peak, self.peak_step = peak, peak_step
        self.told_peak = self.peak

    def _is_back(self) -> bool:
        if len(self.recent) < RECOVERY_RING:
            return False
        return median([loss for _, loss in list(self.recent)[-RECOVERY_RING:]]) <= self.back_below

    def _close(self) -> None:
        newest = list(self.recent)[-RECOVERY_RING:]
        back = next(at for at, loss in newest if loss <= self.back_below)
        above = self.points - sum(1 for at, _ in self.recent if at >= back)
        self.recovery = "fast" if above <= FAST_POINTS else "slow"
        self.recovered_step = back

    def _not_falling(self) -> bool:
        if self.points < TREND_POINTS or len(self.trend) < TREND_POINTS:
            return False
        values = list(self.trend)[-TREND_POINTS:]
        half = TREND_POINTS // 2
        return median(values[half:]) >= median(values[:half])
