"""A process that began from nothing and logs into an existing run: the first hour again."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar

from .engine.base import SENSITIVITY, CurveDetector, Event, Finding, Mark, Parameter, Point, Row, State, fresh
from .engine.row_blocks import LARGEST, QuietRows

#: Points kept of the beginning, and equal ones in a row needed.
FIRST_POINTS, ALIKE = 8, 2
#: Fewest points of a run before a restart, and newest ones of its level.
LEAST_POINTS, LEVEL_POINTS = 64, 16
#: Fall of the loss since the beginning, and tolerance of the return to its first values, fractions.
FALLEN, NEAR = 0.25, 0.15
#: Tolerance of the rate of the beginning; right before, it was off by more.
RATE_NEAR = 0.05
#: Others are silent about the loss for so many points; its fall is followed to the end.
CLAIM_POINTS = 64
#: Newest points whose median has returned.
BACK_POINTS = 5
#: Counters of the pass through the data, or of the job's own steps.
_COUNTER = re.compile(r"(^|[/_.])(epochs?|iteration|iter|global_step|samples_seen|consumed_samples|tokens_seen)$")

__all__ = ["StartsOverDetector"]


@dataclass(slots=True)
class _Counter:
    """A counter: its first value, the newest, and the step of its return to the first."""

    first: float
    last: float
    back: int | None = None


@dataclass(slots=True)
class _OverEvent(Event):
    before: float
    signs: list[str]
    points: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=BACK_POINTS))


class StartsOverDetector(CurveDetector):
    """Reports a loss that is back at its first values while the rate or a counter is back at the beginning, too.

    Idea: a spike may reach the first loss, but no schedule and no counter goes back with it. Where the learning rate is
    that of the first points again, or an epoch or another counter, a process was started without its checkpoint and
    continues in the same log: its weights lack the earlier training.

    Args:
        sensitivity: 0 opens nothing; any other value changes nothing.

    Source: 6 of 16 events in public logs of the project's notes: steps that go on over a start from nothing.

    Example:
        >>> detector, found = StartsOverDetector(), []
        >>> losses = [4.0 * 0.99**step for step in range(120)]
        >>> for step, loss in enumerate(losses + losses):
        ...     found += detector.update(Point(step, "epoch", float(step % 120 // 40), 0.0))
        ...     found += detector.update(Point(step, "loss", loss, 0.0))
        >>> [(f.severity, f.onset_step, f.step) for f in found if f.state == "open"]
        [('critical', 120, 121)]
    """

    name: ClassVar[str] = "starts_over"
    kinds: ClassVar[tuple[str, ...]] = ("resume_artifact",)
    title: ClassVar[str] = "The first hour again"
    parameters: ClassVar[dict[str, Parameter]] = {"sensitivity": SENSITIVITY}

    _first: list[float] = fresh(list)
    _first_rates: list[float] = fresh(list)
    _points: int = 0
    _newest: deque[float] = fresh(deque, maxlen=LEVEL_POINTS)
    _counters: dict[str, _Counter] = fresh(dict)
    #: (step, loss) of the newest points that are as high as the first ones.
    _high: list[tuple[int, float]] = fresh(list)
    _event: _OverEvent | None = None
    #: Of a rollback to before the first step: the losses of the discarded branch.
    _left: list[float] = fresh(list)

    def configured(self) -> None:
        self._on = self.settings["sensitivity"] > 0

    @classmethod
    def story(cls) -> Sequence[Row | Mark]:
        hour = [1.5 + 2.5 * math.exp(-step / 80) + 0.02 * ((7 * step) % 5 - 2) for step in range(300)]
        rates = [3e-4 * min(1.0, (step + 1) / 50) for step in range(300)]
        once = list(zip(hour, rates, strict=True))
        return [Row(step, 1e9 + step, {"loss": loss, "lr": rate}) for step, (loss, rate) in enumerate(once + once)]

    def wants(self, metric: str) -> bool:
        return super().wants(metric) or _COUNTER.search(metric) is not None

    def note(self, mark: Mark) -> list[Finding]:
        if mark.kind != "fork" or self._points or mark.data.get("cause") != "restart":
            return []
        left = mark.data.get("left_behind", {})
        losses = next((points for name, points in left.items() if super(StartsOverDetector, self).wants(name)), ())
        self._left = [value for _, value in losses if math.isfinite(value)]
        return []

    def update(self, point: Point) -> list[Finding]:
        step, metric, value, _, _ = point
        if not -LARGEST < value < LARGEST:
            return []
        if _COUNTER.search(metric):
            self._count(metric, step, value)
            return []
        if self._is_another(metric):
            return []
        if self._event is not None:
            return self._follow(self._event, step, value)
        self._points += 1
        if len(self._first) < FIRST_POINTS:
            self._first.append(value)
            self._first_rates.append(self.context.lr.at(step))
            if len(self._first) == ALIKE and len(self._left) > LEAST_POINTS:
                return self._judge_left(step)
        if self._points > LEAST_POINTS and value >= self._bound() and self._is_down():
            self._high.append((step, value))
            return self._judge(step) if len(self._high) >= ALIKE else []
        self._high = []
        self._newest.append(value)
        return []

    def take_quiet(self, rows: QuietRows, start: int, stop: int) -> int:
        if self._event is not None or self._points <= LEAST_POINTS or not rows.ranges.keys() >= rows.columns.keys():
            return start
        for metric in rows.columns:
            known = self._counters.get(metric)
            if _COUNTER.search(metric) and (known is None or rows.ranges[metric][0] < known.last):
                return start
        losses = rows.columns.get(self._metric)
        if losses is not None and rows.ranges[self._metric][1] >= self._bound():
            return start
        for metric, counter in self._counters.items():
            if metric in rows.columns:
                counter.last = rows.columns[metric][stop - 1]
        if losses is not None:
            self._points += stop - start
            self._high = []
            self._newest.extend(losses[max(start, stop - LEVEL_POINTS) : stop])
        return stop

    # --- its signs -----------------------------------------------------------------------------------------------

    def _count(self, metric: str, step: int, value: float) -> None:
        known = self._counters.setdefault(metric, _Counter(value, value))
        if value < known.last:
            known.back = step if value <= known.first else None
        known.last = value

    def _bound(self) -> float:
        """Return the least loss that is as high as the first ones."""
        first = median(self._first[:ALIKE])
        return first - NEAR * abs(first)

    def _is_down(self) -> bool:
        first, now = median(self._first[:ALIKE]), median(self._newest)
        return now < first - FALLEN * abs(first)

    def _judge(self, step: int) -> list[Finding]:
        """Judge whether more than the loss is back at the beginning."""
        onset = self._high[-ALIKE][0]
        newest, first = [value for _, value in self._high[-ALIKE:]], self._first[:ALIKE]
        near = all(abs(now - then) <= NEAR * abs(then) for now, then in zip(newest, first, strict=True))
        signs = [*self._rate_signs(onset), *self._counter_signs(onset, step)]
        if not near or not signs or not self._on:
            self._high = self._high[-ALIKE:]
            if len(self._high) == ALIKE and not near:
                self._newest.append(newest[-1])
            return []
        self._event = event = _OverEvent(self._metric, onset, step, "critical", median(self._newest), signs)
        self._high = []
        if self.context.claimed(self._metric, self.name) is None:
            self.claim(self._metric, onset)
        return [self._finding(event, step, "open")]

    def _judge_left(self, step: int) -> list[Finding]:
        """Judge whether a run at its first step again has the losses of its beginning."""
        left, self._left = self._left, []
        near = all(abs(now - then) <= NEAR * abs(then) for now, then in zip(self._first, left, strict=False))
        before = median(left[-LEVEL_POINTS:])
        if not (self._on and near and before < left[0] - FALLEN * abs(left[0])):
            return []
        signs = ["so is the step"]
        self._event = event = _OverEvent(self._metric, step, step, "warning", before, signs)
        self.claim(self._metric, step)
        return [self._finding(event, step, "open")]

    def _rate_signs(self, onset: int) -> list[str]:
        rate, before = self.context.lr.at(onset), self.context.lr.before(onset)
        first = next((one for one in self._first_rates if math.isfinite(one)), math.nan)
        again = abs(rate - first) <= RATE_NEAR * max(abs(first), 1e-12) or (rate <= first and rate < before)
        if (
            math.isfinite(before)
            and math.isfinite(first)
            and again
            and abs(before - first) > 2 * RATE_NEAR * abs(first)
        ):
            return [f"the learning rate is {rate:.4g} as at the beginning, after {before:.4g}"]
        return []

    def _counter_signs(self, onset: int, step: int) -> list[str]:
        reach = onset - 2 * self.context.interval
        back = [name for name, one in self._counters.items() if one.back is not None and reach <= one.back <= step]
        return [f"{name} is back at {self._counters[name].first:g}" for name in sorted(back)]

    # --- its event -----------------------------------------------------------------------------------------------

    def _follow(self, event: _OverEvent, step: int, value: float) -> list[Finding]:
        event.points += 1
        event.recent.append(value)
        if event.points == CLAIM_POINTS:
            self._release(event, step)
        now = median(event.recent)
        if event.points < BACK_POINTS or now > event.before + 0.02 * abs(event.before):
            return []
        self._event = None
        if event.points < CLAIM_POINTS:
            self._release(event, step)
        self._newest.extend(event.recent)
        return [self._finding(event, step, "resolved", step)]

    def _release(self, event: _OverEvent, step: int) -> None:
        claim = self.context.claimed(event.metric, "")
        if claim is not None and claim.detector == self.name:
            self.claim(event.metric, event.onset, step)

    def _finding(self, event: _OverEvent, now_step: int, state: State, back: int | None = None) -> Finding:
        text = f"This is the first hour again: at step {event.onset} the loss is back at its first value of "
        text += (
            f"{self._first[0]:.4g}, it had come down to {event.before:.4g}; {'; '.join(event.signs)}. A process began "
        )
        text += "without its checkpoint and logs into this run."
        if back is not None:
            text += f" At step {back} it had come down to where it was: what lies between was trained twice."
        return self.finding(
            event, now_step, state, title=f"Training began again from nothing at step {event.onset}", text=text,
            recovered_step=back,
            evidence={
                "level_before": event.before, "peak": self._first[0], "causes": list(event.signs), "recovered_at": back,
                "score_unit": "signs", "regained": back is not None,
            },
            score=float(len(event.signs)),
        )  # fmt: skip
