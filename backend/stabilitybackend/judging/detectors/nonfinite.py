"""NaN and infinite values in the loss, the losses of data sets or the gradient norm."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from stabilitybackend.schema.metric_roles import GRAD_NORM, LOSS, dataset_of, role_of

from .engine.base import (
    SENSITIVITY,
    SEVERITIES,
    Detector,
    Event,
    Finding,
    Parameter,
    Point,
    Severity,
    State,
    fresh,
)
from .engine.row_blocks import QuietRows
from .stats.levels import LARGEST

#: Finite steps in a row for a recovery. A new non-finite value within twice as many after that continues the same
#: event.
RECOVERED_AFTER_STEPS = 10
#: Rows that reveal a habit: a data set absent from a batch has a loss of NaN in many programs, and fp16 loss scaling
#: begins with some overflows. A loss that follows later than so many usual distances is an event of its own.
HABIT_ROWS = 50
#: Points before a never finite metric is news: programs log NaN before the first step.
FIRST_POINTS = 5
#: Points in a row for a warning about a gradient norm or a data set alone; before, it may be routine.
ALONE_POINTS = 3
#: Points in a row beyond any search of a loss scaler: it halves at each, and begins at 2^32 at most (Megatron-LM's
#: default).
SKIPPED_POINTS = 32
#: Separate non-finite intervals that are a habit as well, at any time. A habit becomes news when it lasts so many times
#: longer than ever before.
HABIT_TIMES = 4
#: Absences of a data set before their length means anything: until then a warning needs so many points.
ABSENCES = 20
ABSENT_POINTS = 256
#: Watched metrics, first ones, and those named by one event.
MAX_METRICS = 66
MAX_NAMED = 16

__all__ = ["NonfiniteDetector"]


@dataclass(slots=True)
class _NonfiniteEvent(Event):
    first_value: str
    last_bad: int
    #: metric -> spelling -> count, of the first MAX_NAMED metrics.
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    total: int = 0
    loss: bool = False
    #: The gradient norm was not finite for SKIPPED_POINTS in a row, with a finite loss.
    skipped: bool = False
    #: The first lost loss, where the event began with another metric.
    loss_step: int | None = None
    clean_from: int | None = None
    closed: bool = False
    #: The step at which the loss itself became non-finite, as another event.
    replaced_at: int | None = None


@dataclass(slots=True)
class _Habit:
    """The non-finite intervals of one metric so far.

    ``usual``: they began with the run. ``since``, ``values``: start of the newest, and its values by spelling.
    """

    usual: bool
    stretches: int = 0
    in_a_row: int = 0
    longest: int = 0
    last_step: int = -1
    since: int = -1
    values: dict[str, int] = field(default_factory=dict)


class NonfiniteDetector(Detector):
    """Opens one incident at the first NaN or infinity, recovered once ten steps in a row are finite.

    Idea: a non-finite loss is never noise, so there is no threshold and no warm-up: it is critical immediately. A
    non-finite gradient norm or loss of one data set alone is reported as ``info`` and is a warning from the third point
    in a row on: mixed-precision loss scaling skips single steps as routine. A loss of exactly 0 with a non-finite
    gradient norm is a lost loss as well: fp16 training of some libraries logs it so. One cause is one incident,
    whichever metrics it touches. A metric non-finite now and then since the start of the run has a habit (a set that
    was absent from a batch) and stays silent until it lasts four times longer than ever.

    Args:
        sensitivity: 0 opens nothing; any other value changes nothing, there is no threshold.

    Source: the event table in the project's detection notes; Megatron-LM's and Lightning's loss checks agree.

    Example:
        >>> detector = NonfiniteDetector()
        >>> found = [detector.update(Point(s, "loss", v, 0.0)) for s, v in enumerate([2.0, 1.9, math.nan, math.nan])]
        >>> [(f.key, f.severity, f.onset_step) for findings in found for f in findings]
        [('nonfinite:loss:2', 'critical', 2)]
    """

    name: ClassVar[str] = "nonfinite"
    kinds: ClassVar[tuple[str, ...]] = ("nonfinite",)
    title: ClassVar[str] = "NaN and infinite values"
    parameters: ClassVar[dict[str, Parameter]] = {"sensitivity": SENSITIVITY}

    _event: _NonfiniteEvent | None = None
    _step: int | None = None
    _clean: int = 0
    _zero_loss_step: int = -1
    #: Metrics with a finite value other than 0, and the number of the row of the first.
    _finite: dict[str, int] = fresh(dict)
    _habits: dict[str, _Habit] = fresh(dict)
    _quiet: bool = True

    def configured(self) -> None:
        self._off = self.settings["sensitivity"] == 0

    def wants(self, metric: str) -> bool:
        return role_of(metric) in (LOSS, GRAD_NORM) or dataset_of(metric) is not None

    def update(self, point: Point) -> list[Finding]:
        value = point.value
        if self._quiet and -LARGEST < value < LARGEST and value and point.metric in self._finite:
            return []
        return self._check(point) if self.wants(point.metric) else []

    def take_quiet(self, rows: QuietRows, start: int, stop: int) -> int:
        if not self._quiet:
            return start
        for metric in rows.columns:
            if self.wants(metric):
                low, high = rows.ranges.get(metric, (0.0, 0.0))
                if metric not in self._finite or low <= 0 <= high:
                    return start
        return stop

    def _check(self, point: Point) -> list[Finding]:
        """Take a point that is not plainly finite, or any during or shortly after an event."""
        found: list[Finding] = []
        if point.step != self._step:
            found = self._end_of_step(point.step)
            self._step = point.step
        loss = role_of(point.metric) == LOSS
        if not -LARGEST < point.value < LARGEST:
            severity = self._severity(point, loss)
            return found + self._bad(point, severity, loss) if severity is not None else found
        known = point.metric in self._finite
        if point.value and len(self._finite) < MAX_METRICS:
            self._finite.setdefault(point.metric, self.context.rows)
        if loss and known and not point.value:
            self._zero_loss_step = point.step
            event = self._event
            if event is not None and not event.closed and event.last_bad == point.step:
                return found + self._bad(point, "critical", True)
        return found

    def _severity(self, point: Point, loss: bool) -> Severity | None:
        """Return the severity of this non-finite value, None for a habit of its metric."""
        habit = self._habits.get(point.metric)
        if habit is None:
            first = self._finite.get(point.metric)
            young = first is not None and 0 < self.context.rows <= first + HABIT_ROWS
            habit = _Habit(usual=self.context.rows > 0 and (first is None or (young and not loss)))
            if len(self._habits) < MAX_METRICS:
                self._habits[point.metric] = habit
        if habit.last_step < 0 or point.step - habit.last_step > 1.5 * self.context.interval:
            habit.stretches += 1
            habit.longest = max(habit.longest, habit.in_a_row)
            habit.in_a_row, habit.since, habit.values = 0, point.step, {}
        habit.in_a_row += 1
        spelling = _spell(point.value)
        habit.values[spelling] = habit.values.get(spelling, 0) + 1
        habit.last_step = point.step
        usual = habit.usual or habit.stretches > HABIT_TIMES
        absent = usual and habit.stretches < ABSENCES and dataset_of(point.metric) is not None
        if usual and habit.in_a_row < max(ABSENT_POINTS if absent else FIRST_POINTS, HABIT_TIMES * habit.longest):
            return None
        if loss or self._zero_loss_step == point.step:
            return "critical"
        if absent:
            return "info"
        return "warning" if habit.in_a_row >= ALONE_POINTS else "info"

    def _bad(self, point: Point, severity: Severity, loss: bool) -> list[Finding]:
        spelling = _spell(point.value)
        found = self._replace(point.step) if loss else []
        event = self._event
        news = event is None or event.closed
        if event is None:
            held = self.context.claimed(point.metric, self.name)
            if self._off or (held is not None and held.kind == "nonfinite"):
                return found
            event = self._event = self._opened(point, severity, spelling)
            self._quiet = False
        if SEVERITIES.index(severity) > SEVERITIES.index(event.severity):
            event.severity = severity
            news = True
        if loss and not event.loss and role_of(event.metric) != LOSS:
            event.loss_step = point.step
        event.loss = event.loss or loss
        event.closed, event.clean_from, event.last_bad = False, None, point.step
        event.total += 1
        if not event.skipped and self._skips(point.metric, event.loss):
            event.skipped = news = True
        self._clean = 0
        if point.metric in event.counts or len(event.counts) < MAX_NAMED:
            news = news or (point.metric not in event.counts and not dataset_of(point.metric))
            counts = event.counts.setdefault(point.metric, {})
            counts[spelling] = counts.get(spelling, 0) + 1
        if not news:
            return found
        for metric in event.counts:
            self.claim(metric, event.onset, of=event.metric)
        return [*found, self._finding(event, point.step)]

    def _skips(self, metric: str, loss: bool) -> bool:
        """Return whether every step was skipped for its gradient, for longer than a loss scaler needs."""
        habit = self._habits.get(metric)
        return not loss and role_of(metric) == GRAD_NORM and habit is not None and habit.in_a_row >= SKIPPED_POINTS

    def _opened(self, point: Point, severity: Severity, spelling: str) -> _NonfiniteEvent:
        """Return a new event: of a never finite metric from its first value, then no news."""
        habit = self._habits.get(point.metric)
        if habit is None or point.metric in self._finite or habit.stretches > 1:
            return _NonfiniteEvent(point.metric, point.step, point.step, severity, spelling, point.step)
        event = _NonfiniteEvent(point.metric, habit.since, point.step, severity, next(iter(habit.values)), point.step)
        before = {one: count - (one == spelling) for one, count in habit.values.items()}  # this one is counted below
        event.total, event.counts[point.metric] = habit.in_a_row - 1, {one: n for one, n in before.items() if n}
        return event

    def _replace(self, step: int) -> list[Finding]:
        """Drop an event without the loss that began long before the loss itself is non-finite."""
        event = self._event
        if event is None or event.loss or step - event.onset <= HABIT_ROWS * self.context.interval:
            return []
        self._event, news = None, not event.closed
        for metric in event.counts:
            self.claim(metric, event.onset, step, of=event.metric)
        event.replaced_at = step
        return [self._finding(event, step)] if news else []

    def _end_of_step(self, step: int) -> list[Finding]:
        """Judge the finished step, before the first point of ``step``."""
        event = self._event
        if event is None or self._step is None or event.last_bad == self._step:
            return []
        self._clean += 1
        if event.clean_from is None:
            event.clean_from = self._step
        if not event.closed and self._clean >= RECOVERED_AFTER_STEPS:
            event.closed = True
            for metric in event.counts:
                self.claim(metric, event.onset, self._step, of=event.metric)
            return [self._finding(event, step)]
        if event.closed and self._clean >= 3 * RECOVERED_AFTER_STEPS:
            self._event, self._clean, self._quiet = None, 0, True
        return []

    def _finding(self, event: _NonfiniteEvent, now_step: int) -> Finding:
        metrics = list(event.counts)
        datasets = [name for metric in metrics if (name := dataset_of(metric)) is not None]
        metric = next((one for one in metrics if role_of(one) == LOSS), event.metric) if event.loss else event.metric
        dataset = datasets[0] if len(datasets) == 1 and (event.loss or metric == event.metric) else None
        lost = event.loss and all(role_of(one) != LOSS or list(counts) == ["0"] for one, counts in event.counts.items())
        what = "gradient norm" if lost else "loss" if event.loss else _text(metric)
        values = f"{event.total} values" + (f" of {len(metrics)} metrics" if len(metrics) > 1 else "")
        since = event.onset
        if event.loss_step is not None and event.loss_step > event.onset and not lost:
            since = event.loss_step
        if event.last_bad == event.onset:
            text = f"The {what} was {event.first_value} at step {event.onset}"
        elif event.closed:
            text = f"The {what} was not finite from step {since} to {event.last_bad}"
        else:
            text = f"The {what} has not been finite since step {since}"
        if since != event.onset:
            text += f", the {_text(event.metric)} since step {event.onset}"
        if event.closed and event.last_bad != event.onset:
            text += f" ({values})"
        if event.closed:
            text += f"; it has been finite again since step {event.clean_from}."
        elif event.replaced_at is not None:
            text += f"; at step {event.replaced_at} the loss itself followed, which is an incident of its own."
        elif event.loss or event.severity == "critical":
            text += ", with a loss of exactly 0" if lost else ""
            text += f". From step {event.onset} on the weights may be lost: only a checkpoint from before is sound."
        elif event.skipped:
            text += (
                f". The loss itself is still finite after {SKIPPED_POINTS} such points in a row: no loss scaler needs "
                "so many to find its scale. Where such steps are skipped, the weights stand still: look at the loss "
                "scale, and which layer has a gradient that is not finite."
            )
        else:
            text += (
                ". The loss itself is still finite: with fp16 loss scaling or an absent data set this can be routine."
            )
        state: State = "recovered" if event.closed else "open" if event.replaced_at is None else "resolved"
        return self.finding(
            event,
            now_step,
            state,
            metric=metric,
            title=f"{what[0].upper()}{what[1:]} not finite since step {since}",
            text=text,
            dataset=dataset,
            peak_step=event.onset,
            recovered_step=event.clean_from if event.closed else None,
            score=float(event.total),
            evidence={
                "values": {name: dict(counts) for name, counts in event.counts.items()},
                "last_nonfinite_step": event.last_bad,
                "points": event.total,
                "score_unit": "values",
                "recovered_at": event.clean_from if event.closed else None,
                "explained_by": [],
            },
        )


def _text(metric: str) -> str:
    dataset = dataset_of(metric)
    if dataset is not None:
        return f"loss of {dataset}"
    return "gradient norm" if role_of(metric) == GRAD_NORM else metric


def _spell(value: float) -> str:
    """Return a value in JSON's spelling; an overflow of float32 is an infinity."""
    if math.isnan(value):
        return "NaN"
    if -LARGEST < value < LARGEST:
        return "0"
    return "Infinity" if value > 0 else "-Infinity"
