"""The learning rate against its own past: a broken schedule is visible before the loss moves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import ClassVar

from stabilitybackend.schema.metric_roles import LR

from .engine.base import SENSITIVITY, CurveDetector, Event, Finding, Mark, Parameter, Point, Row, State
from .engine.row_blocks import QuietRows
from .stats.before_fork import FAR, rate_undone

#: Logs round the rate to two digits: a smaller excess over the maximum is none.
ROUNDING = 0.05
#: Points at one value that are a stand: fewer equal ones are the rounding of a slow rise.
STAND_POINTS = 8
#: Logs of two digits repeat one value for up to this part. A stand in which the later rise would have moved the
#: rate further is a plateau, at any length: the end of a warm-up.
WRITTEN_PART = 0.1
#: Fewest rises from a plateau to twice its rate: a stair is one.
RISES = 5
#: A restart of a schedule rises from at most this part of its maximum, for so many points at least, with a mean of at
#: least this part of the middle between its ends. A rise by a factor over a decade has a mean of 0.7, a line and
#: a cosine of 1; fewer points have no shape.
RESTART_PART = 0.1
LINE_POINTS = 4
LINE = 0.85
#: Multiple of the former maximum for a warning: a rate that trained well seldom bears twice as much, and less is a
#: note.
WARNING_TIMES = 2.0
#: Factor of a rate too low after a resume for a warning, as 0 is: a halted training looks calm.
STILL_TIMES = 10.0
#: A schedule turns down at most once in so many points; the shortest cycles last longer.
SMOOTH_POINTS = 6
#: A note about a rate without further move for so many points becomes usual; a warning stays open.
ACCEPT_POINTS = 256

__all__ = ["LearningRateDetector"]


@dataclass(slots=True)
class _RateEvent(Event):
    """The rate is off.

    Args:
        limit: largest rate that is back (for a rate that resumed too low: smallest).
        usual: the former maximum, or the last rate before a resume.
        resumed: fork step, None for one that left by itself.
        peak, peak_step: furthest so far. since: points since it went further.
    """

    limit: float
    usual: float
    resumed: int | None
    peak: float
    peak_step: int
    since: int = 0
    reported: float | None = None
    recovered_step: int | None = None


@dataclass(slots=True)
class _Plateau:
    """A stand that a rise ended.

    Args:
        points, rate: its length, and its rate. rose_at: the step that left it. climbed: points since; rises: of these.
    """

    points: int
    rate: float
    rose_at: int
    climbed: int = 0
    rises: int = 0


class LearningRateDetector(CurveDetector):
    """Reports a learning rate above its former maximum, and one far off after a resume.

    Idea: after its warm-up a rate never exceeds its past maximum, in any schedule (cosine, restarts, cycles, one cycle,
    steps, warm-up stable decay): a curve that does has been edited, extrapolated, or has lost its sign. The warm-up is
    over once the rate has fallen; one that never fell must not double point by point from a plateau: a warm-up in
    stairs does not. It began where the rate turned upwards, long before it exceeds the past maximum. After a resume the
    first rate is compared with the last one, declared changes included; one that rises towards it is a second warm-up.
    A batch size that rose at the same point explains a higher rate.

    Args:
        sensitivity: distances are divided by it.

    Source: the silently reset learning rate in IDEFICS-80B's log of its training (huggingface/m4-logs); the schedules
    that are to be silent: SGDR (arXiv 1608.03983), cyclic rates (1506.01186), warm-up stable decay (2404.06395).

    Example:
        >>> detector = LearningRateDetector()
        >>> rates = [1e-3 * min(1.0, s / 20) * (1 - s / 400) for s in range(200)]
        >>> rates += [rates[-1] * 1.012 ** s for s in range(1, 200)]
        >>> found = [f for s, rate in enumerate(rates) for f in detector.update(Point(s, "lr", rate, 0.0))]
        >>> [(f.severity, f.onset_step, f.now_step) for f in found]
        [('info', 200, 257), ('warning', 200, 311)]
    """

    name: ClassVar[str] = "learning_rate"
    kinds: ClassVar[tuple[str, ...]] = ("learning_rate",)
    title: ClassVar[str] = "Learning rate against its past"
    role: ClassVar[str] = LR
    parameters: ClassVar[dict[str, Parameter]] = {"sensitivity": SENSITIVITY}

    #: The largest rate so far, or since it was accepted.
    _top: float = 0.0
    _last: float = math.nan
    _fallen: bool = False
    #: Points so far, and falls after a rise.
    _points: int = 0
    _turns: int = 0
    #: Points at one value, points in a row that rose, and the step at which the rise began.
    _steady: int = 0
    _rising: int = 0
    _rose_at: int = 0
    #: The newest stand before a rise, until the rate has doubled since.
    _plateau: _Plateau | None = None
    #: The rate before the rise, and the sum and the number of those in it.
    _rose_from: float = 0.0
    _sum: float = 0.0
    _climbed: int = 0
    #: Expected rate at a fork, with the declared factor: (fork step, rate), until the next point.
    _resume: tuple[int, float] | None = None
    #: A rate that resumed low: it may be a second warm-up, as long as it rises.
    _low: _RateEvent | None = None
    _event: _RateEvent | None = None

    @classmethod
    def story(cls) -> Sequence[Row | Mark]:
        rates = [1e-3 * min(1.0, (step + 1) / 50) * (1 - step / 1000) for step in range(300)]
        rates += [rates[-1] * 1.02 ** (step + 1) for step in range(100)]
        return [Row(step, 1e9 + step, {"lr": rate}) for step, rate in enumerate(rates)]

    def configured(self) -> None:
        by = self.settings["sensitivity"]
        self._above = 1 + ROUNDING / by if by else math.inf
        self._times = 1 + (FAR - 1) / by if by else math.inf

    def note(self, mark: Mark) -> list[Finding]:
        if mark.kind != "fork" or math.isnan(self._last):
            return []
        declared = mark.data.get("changes", {}).get("lr_scale", 1.0)
        scale = float(declared) if isinstance(declared, int | float) and 0 < declared < math.inf else 1.0
        self._resume = (mark.step - 1, self._last * scale)
        self._top *= max(1.0, scale)
        return []

    def update(self, point: Point) -> list[Finding]:
        step, metric, rate, _, _ = point
        if self._is_another(metric) or not 0 <= rate < math.inf:
            return []
        last, resume = self._last, self._resume
        self._last, self._resume = rate, None
        if resume is not None and self._event is None and self._points >= STAND_POINTS:
            self._came_back(step, rate, *resume)
        self._follow(step, rate, last)
        if self._event is not None:
            return self._go_on(self._event, step, rate, last)
        if self._low is not None:
            return self._warms_up_again(self._low, step, rate, last)
        if (plateau := self._doubled(rate)) is not None:
            self._plateau = None
            if self._creeps(plateau) and not self._batch_grew(step):
                usual, began = plateau.rate, plateau.rose_at
                event = _RateEvent(metric, began, step, "info", usual * self._above, usual, None, rate, step)
                return self._go_on(event, step, rate, last)
        above = self._fallen and rate > self._top * self._above
        if above and self._is_smooth() and rate > self._top + self._stride():
            if self._batch_grew(step) or self._starts_again(rate):
                self._top, self._fallen = rate, False
                return []
            began = self._rose_at if self._rising > 1 else step
            event = _RateEvent(metric, began, step, "info", self._top * self._above, self._top, None, rate, step)
            return self._go_on(event, step, rate, last)
        self._raise_top(rate)
        return []

    def take_quiet(self, rows: QuietRows, start: int, stop: int) -> int:
        low, high = rows.ranges.get(self._metric, (-1.0, 0.0))
        if low < 0 or self._resume is not None or self._low is not None:
            return start
        if self._event is not None:
            return self._stays_off(self._event, rows, start, stop)
        if low == high == self._last and not high > self._top * self._above:
            self._stay(high, stop - start)
            return stop
        rates, steps = rows.columns[self._metric], rows.steps
        for at in range(start, stop):
            rate, last = rates[at], self._last
            if (rate > self._top * self._above and self._fallen) or self._doubled(rate) is not None:
                return at
            self._last = rate
            self._follow(steps[at], rate, last)
            self._raise_top(rate)
        return stop

    def _stays_off(self, event: _RateEvent, rows: QuietRows, start: int, stop: int) -> int:
        """Take rows in which a rate that is off neither comes back nor goes further."""
        rates, steps = rows.columns[self._metric], rows.steps
        for at in range(start, stop):
            rate, last = rates[at], self._last
            low = event.peak < event.usual
            further = rate < event.peak if low else rate > event.peak
            accepted = event.severity == "info" and event.since + 1 >= ACCEPT_POINTS
            if further or accepted or self._is_back(event, rate, last):
                return at
            event.since += 1
            self._last = rate
            self._follow(steps[at], rate, last)
        return stop

    # --- its past ------------------------------------------------------------------------------------------------

    def _follow(self, step: int, rate: float, last: float) -> None:
        """Record whether the rate rises, stays or falls."""
        self._points += 1
        if rate > last:
            self._rising += 1
            stood = self._steady + 1
            if stood >= STAND_POINTS and (self._plateau is None or 2 * stood >= self._plateau.points):
                self._plateau = _Plateau(stood, last, step)
            if self._rising == 1:
                self._rose_at, self._rose_from, self._sum, self._climbed = step, last, 0.0, 0
            self._steady = 0
        elif rate < last:
            self._turns += self._rising > 0
            self._fallen = self._fallen or rate < self._top
            self._rising = self._steady = 0
        else:
            self._steady += 1
            if self._steady >= STAND_POINTS:
                self._rising = 0
        self._sum += rate
        self._climbed += 1
        if self._plateau is not None:
            self._plateau.climbed += 1
            self._plateau.rises += rate > last

    def _stay(self, rate: float, points: int) -> None:
        """Take points at the present rate."""
        self._points += points
        self._steady += points
        if self._steady >= STAND_POINTS:
            self._rising = 0
        for _ in range(points):  # not a product: it rounds otherwise
            self._sum += rate
        self._climbed += points
        if self._plateau is not None:
            self._plateau.climbed += points
        self._raise_top(rate)

    def _raise_top(self, rate: float) -> None:
        """Accept a rate as usual as long as it has not fallen."""
        if not self._fallen:
            self._top = max(self._top, rate)

    def _is_smooth(self) -> bool:
        """Return whether the rate is a schedule's, and no noise."""
        return self._turns * SMOOTH_POINTS <= self._points

    def _doubled(self, rate: float) -> _Plateau | None:
        """Return the plateau of a rate that never fell and has doubled since, None for none."""
        plateau = self._plateau
        return plateau if plateau is not None and not self._fallen and rate >= WARNING_TIMES * plateau.rate else None

    def _creeps(self, plateau: _Plateau) -> bool:
        """Return whether a rate that has doubled since a plateau rose point by point, and fast enough.

        A slow rise written with two digits pauses, too, up to the next digit.
        """
        moved = plateau.points * math.log(WARNING_TIMES) / plateau.climbed
        return self._is_smooth() and self._above < math.inf and plateau.rises >= RISES and moved > 1.5 * WRITTEN_PART

    def _stride(self) -> float:
        """Return the usual change between two points, a possible gap below an unlogged maximum."""
        changes = [abs(after - before) for (_, before), (_, after) in pairwise(self.context.lr.values)]
        return median(changes) if changes else 0.0

    def _starts_again(self, rate: float) -> bool:
        """Return whether the rate rises as of a restarted schedule: from near zero, in a line and not by a factor."""
        low = self._rose_from <= RESTART_PART * self._top
        return low and self._rising >= LINE_POINTS and self._sum / self._climbed >= LINE * (self._rose_from + rate) / 2

    def _batch_grew(self, step: int) -> bool:
        sizes = [(at, size) for at, size in self.context.batch_size.values if at <= step][-2:]
        return len(sizes) == 2 and sizes[1][1] > sizes[0][1]

    # --- after a resume ------------------------------------------------------------------------------------------

    def _came_back(self, step: int, rate: float, fork_step: int, before: float) -> None:
        if before <= 0 or before / self._times < rate < before * self._times:
            return
        if rate > before and self._rising and not self._fallen and rate < STILL_TIMES * before:
            return  # its first warm-up lasts
        event = _RateEvent(self._metric, step, step, "info", before, before, fork_step, rate, step)
        if rate > before:
            event.limit = before * self._above
            self._event = event
        else:
            event.limit = before / self._times
            self._low = event

    def _warms_up_again(self, event: _RateEvent, step: int, rate: float, last: float) -> list[Finding]:
        """Wait while it rises; report it afterwards, or forget it if it has returned."""
        if rate >= event.limit:
            self._low = None
        elif step > event.seen and rate <= last:
            self._low = None
            event.seen = step
            event.severity = "warning" if self._is_constant(event) else "info"
            event.reported = event.peak
            self._event = event
            return [self._found(event, step, "open")]
        return []

    @staticmethod
    def _is_constant(event: _RateEvent) -> bool:
        return event.peak * STILL_TIMES <= event.usual * (1 + ROUNDING)

    # --- its events ----------------------------------------------------------------------------------------------

    def _is_back(self, event: _RateEvent, rate: float, last: float) -> bool:
        """Return whether a rate has returned, or moved back from a resume to its continued schedule."""
        low = event.peak < event.usual
        if rate >= event.limit if low else rate <= event.limit:
            return True
        return event.resumed is not None and event.peak > 0 and rate_undone(rate, last, event.peak / event.usual)

    def _go_on(self, event: _RateEvent, step: int, rate: float, last: float) -> list[Finding]:
        self._event, low = event, event.peak < event.usual
        event.since += 1
        if self._is_back(event, rate, last):
            event.recovered_step = step
            return self._end(event, step, "recovered")
        if rate < event.peak if low else rate > event.peak:
            event.peak, event.peak_step, event.since = rate, step, 0
        # A lasting note ends here; a rate far off stays wrong.
        if event.since >= ACCEPT_POINTS and event.severity == "info":
            self._top = max(self._top, event.peak)
            return self._end(event, step, "resolved")
        if (not low and event.peak >= WARNING_TIMES * event.usual) or (low and self._is_constant(event)):
            event.severity = "warning"
        if event.reported is not None:  # news once more: graver, or so much further that the sentence is out of date
            graver = event.severity == "warning" and event.reported < WARNING_TIMES * event.usual
            if low or not (graver or event.peak >= WARNING_TIMES * event.reported):
                return []
        event.reported = event.peak
        return [self._found(event, step, "open")]

    def _end(self, event: _RateEvent, step: int, state: State) -> list[Finding]:
        self._event = None
        return [self._found(event, step, state)]

    def _found(self, event: _RateEvent, now_step: int, state: State) -> Finding:
        times = event.peak / event.usual if event.usual else math.inf
        high, size = times >= 1, f"{times:.3g}" if times >= 1 else f"1/{1 / times:.3g}" if times else "0"
        if event.resumed is not None:
            what = f"The learning rate came back from step {event.resumed} at {event.peak:.4g}, {size} "
            what += f"{'times' if high else 'of'} the {event.usual:.4g} before."
            title = f"Learning rate {'above' if high else 'below'} the one before the resume at step {event.onset}"
            if event.peak == 0:
                what = f"The learning rate came back from step {event.resumed} at 0, it was {event.usual:.4g} before: "
                what += "the weights do not change. Was the schedule's state restored?"
                title = f"Learning rate 0 after the resume at step {event.onset}"
        else:
            what = (
                f"The learning rate has risen since step {event.onset}: {event.peak:.4g} at step {event.peak_step}, "
                f"{size} times its former maximum of {event.usual:.4g}."
            )
            title = f"Learning rate above its former maximum since step {event.onset}"
        ending = {
            "open": "",
            "recovered": f" It was back at step {event.recovered_step}.",
            "resolved": " It has not moved further since: it counts as the usual one.",
        }[state]
        return self.finding(
            event,
            now_step,
            state,
            title=title,
            text=what + ending,
            peak_step=event.peak_step,
            recovered_step=event.recovered_step,
            score=min(times, 1e9) if high else min(1 / times if times else 1e9, 1e9),
            evidence={
                "level_before": event.usual,
                "level_after": event.peak,
                "score_unit": "times the former rate",
                "after_fork": event.resumed,
            },
        )
