"""A loss or a gradient norm frozen at one value: exactly 0, or the same number at each step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar

from stabilitybackend.schema.metric_roles import GRAD_NORM, LOSS, role_of

from .engine.base import SENSITIVITY, Detector, Event, Finding, Mark, Parameter, Point, Row, State, fresh
from .engine.row_blocks import LARGEST, QuietRows

#: Probability that a metric repeats one number for so long by chance.
CHANCE = 1e-9
#: Points before the rate of equal neighbours is usable: a log of three digits has many such pairs.
LEAST_POINTS = 32
#: Equal points in a row at least, and at most: beyond, equal neighbours are too frequent for a judgement.
FEWEST, MOST = 4, 256
#: Points right before an interval in which equal neighbours are counted as well: they become more frequent as a loss
#: falls to its last logged digit.
RECENT = 64
#: Newest values other than 0, and the least part of the first one that their median has to be, for 0 to be a jump: a
#: loss learned to 0 passes the digits between.
NEWEST, JUMP_PART = 16, 1e-3
#: Points with other values that end the freeze.
BACK_POINTS = 3

__all__ = ["FrozenDetector"]


@dataclass(slots=True)
class _Past:
    """Past of one metric: its points, equal neighbours, zeros, and the newest interval."""

    first: float = math.nan
    points: int = 0
    equal: int = 0
    zeros: int = 0
    last: float = math.nan
    in_a_row: int = 0
    since: int = -1
    #: Of the newest points, whether each equalled the one before.
    again: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT + MOST))
    #: The newest values other than 0.
    newest: deque[float] = field(default_factory=lambda: deque(maxlen=NEWEST))

    def needed(self, value: float) -> float:
        """Return the number of equal points in a row of a frozen value; infinity where that is no news."""
        if self.points < LEAST_POINTS:
            return math.inf
        if self.in_a_row < FEWEST:
            return FEWEST
        share = ((self.zeros if value == 0 else self.equal) + 1) / (self.points + 2)
        if value:
            before = list(self.again)[: len(self.again) - self.in_a_row + 2][-RECENT:]
            share = max(share, (sum(before) + 1) / (len(before) + 2))
        needed = max(FEWEST, math.ceil(math.log(CHANCE) / math.log(share)))
        return needed if needed <= MOST else math.inf


@dataclass(slots=True)
class _FrozenEvent(Event):
    value: float
    before: float
    moving: int = 0
    back: int | None = None


class FrozenDetector(Detector):
    """Reports a loss or gradient norm that has stood at exactly one value since a step.

    Idea: a loss is a mean over another batch at each step, so two neighbours are equal only where the log rounds. How
    often that happened in the run's own past decides how many equal points in a row are no chance any more; the same
    for 0. Opposite to what a curve suggests, nothing is learnt then: labels are masked out, the scaler or the device
    returns zeros, or a stale number is logged. A metric that was so from its first point on is no news, nor is a loss
    that was learnt to 0 through the digits between.

    Args:
        sensitivity: 0 opens nothing; any other value changes nothing, the bound is a chance.

    Source: loss 0.0 for good with fp16 (huggingface/transformers issues about a loss of 0 and a NaN norm).

    Example:
        >>> detector, found = FrozenDetector(), []
        >>> for step in range(80):
        ...     found += detector.update(Point(step, "loss", 0.8 + 0.001 * (step * 7 % 11) if step < 60 else 0.0, 0.0))
        >>> [(f.severity, f.onset_step, f.step) for f in found]
        [('critical', 60, 64)]
    """

    name: ClassVar[str] = "frozen"
    kinds: ClassVar[tuple[str, ...]] = ("frozen",)
    title: ClassVar[str] = "Frozen value"
    parameters: ClassVar[dict[str, Parameter]] = {"sensitivity": SENSITIVITY}

    _pasts: dict[str, _Past] = fresh(dict)
    _events: dict[str, _FrozenEvent] = fresh(dict)

    def configured(self) -> None:
        self._on = self.settings["sensitivity"] > 0

    @classmethod
    def story(cls) -> Sequence[Row | Mark]:
        losses = [2.5 + 0.02 * ((7 * step) % 13 - 6) for step in range(300)] + [0.0] * 100
        return [Row(step, 1e9 + step, {"loss": loss}) for step, loss in enumerate(losses)]

    def wants(self, metric: str) -> bool:
        return role_of(metric) in (LOSS, GRAD_NORM)

    def note(self, mark: Mark) -> list[Finding]:
        for past in self._pasts.values():
            past.in_a_row = 0
        return []

    def update(self, point: Point) -> list[Finding]:
        metric, value = point.metric, point.value
        if not -LARGEST < value < LARGEST:
            return []
        past = self._pasts.get(metric)
        if past is None:
            past = self._pasts[metric] = _Past(value)
        event = self._events.get(metric)
        if event is not None:
            return self._follow(event, point.step, value)
        same = value == past.last and past.in_a_row > 0
        past.in_a_row, past.since = (past.in_a_row + 1, past.since) if same else (1, point.step)
        if self._on and past.in_a_row >= past.needed(value) and self._is_news(metric, past, value):
            return self._open(metric, past, point.step)
        self._learn(past, value)
        return []

    def take_quiet(self, rows: QuietRows, start: int, stop: int) -> int:
        if self._events:
            return start
        wanted = [(metric, values) for metric, values in rows.columns.items() if self.wants(metric)]
        for metric, values in wanted:
            past = self._pasts.get(metric)
            if past is None or metric not in rows.ranges:
                return start
            stop = self._first_repeat(past, values, start, stop)
        if start < stop:
            for metric, values in wanted:
                self._learn_all(self._pasts[metric], values[start:stop], rows.steps[start:stop])
        return stop

    # --- its past ------------------------------------------------------------------------------------------------

    def _learn(self, past: _Past, value: float) -> None:
        past.points += 1
        past.equal += value == past.last
        past.again.append(value == past.last)
        past.zeros += value == 0
        past.last = value
        if value:
            past.newest.append(value)

    @staticmethod
    def _first_repeat(past: _Past, values: Sequence[float], start: int, stop: int) -> int:
        """Return the index of the first value that is 0 or repeats FEWEST times in a row, ``stop`` for none.

        It reads no value after that: a metric that never changes is read once, not once for each row.
        """
        last, in_a_row = past.last, past.in_a_row
        for at in range(start, stop):
            value = values[at]
            in_a_row = in_a_row + 1 if value == last else 1
            if value == 0 or in_a_row >= FEWEST:
                return at
            last = value
        return stop

    def _learn_all(self, past: _Past, values: Sequence[float], steps: Sequence[int]) -> None:
        """Take values without 0 and without FEWEST repeats in a row."""
        past.points += len(values)
        equal = list(map(float.__eq__, values, [past.last, *values]))
        past.equal += sum(equal)
        past.again.extend(equal[-(RECENT + MOST) :])
        again = 1
        while again < len(values) and values[-1 - again] == values[-1]:
            again += 1
        whole = again == len(values) and values[0] == past.last and past.in_a_row > 0
        past.since = past.since if whole else steps[-again]
        past.in_a_row = again + (past.in_a_row if whole else 0)
        past.last = values[-1]
        past.newest.extend(values[-NEWEST:])

    def _is_news(self, metric: str, past: _Past, value: float) -> bool:
        if value and role_of(metric) == GRAD_NORM:
            return False  # a norm logged after clipping stays at the bound
        claim = self.context.claimed(metric, self.name)
        if not past.newest or (claim is not None and claim.kind == "nonfinite"):
            return False
        return bool(value) or median(map(abs, past.newest)) >= JUMP_PART * abs(past.first)

    # --- its events ----------------------------------------------------------------------------------------------

    def _open(self, metric: str, past: _Past, step: int) -> list[Finding]:
        lost = role_of(metric) == LOSS and past.last == 0
        before = median(past.newest)
        event = _FrozenEvent(metric, past.since, step, "critical" if lost else "warning", past.last, before)
        self._events[metric] = event
        if self.context.claimed(metric, self.name) is None:
            self.claim(metric, event.onset)
        return [self._finding(event, step, "open")]

    def _follow(self, event: _FrozenEvent, step: int, value: float) -> list[Finding]:
        if value == event.value:
            event.moving, event.back = 0, None
            return []
        event.moving += 1
        event.back = step if event.back is None else event.back
        if event.moving < BACK_POINTS:
            return []
        del self._events[event.metric]
        past = self._pasts[event.metric]
        past.last, past.in_a_row, past.since = value, 1, step
        claim = self.context.claimed(event.metric, "")
        if claim is not None and claim.detector == self.name:
            self.claim(event.metric, event.onset, step)
        return [self._finding(event, step, "recovered")]

    def _finding(self, event: _FrozenEvent, now_step: int, state: State) -> Finding:
        what = "gradient norm" if role_of(event.metric) == GRAD_NORM else "loss"
        exactly = "exactly 0" if event.value == 0 else f"{event.value:.6g}"
        over = state == "recovered"
        stood = f"was {exactly} at each step from" if over else f"has been {exactly} at each step since"
        text = f"The {what} {stood} step {event.onset}; it was {event.before:.4g} before. "
        if over:
            text += f"It moves again since step {event.back}."
        elif what == "loss" and event.value == 0:
            text += "That is no progress: no batch of real data has a loss of exactly 0, and nothing is learnt from it."
        elif event.value == 0:
            text += "No gradient reaches the weights: the optimizer only decays them or goes on by its momentum."
        else:
            text += "Another batch has another value: it is stale, or what it is computed from does not change."
        return self.finding(
            event, now_step, state, title=f"{what.capitalize()} {exactly} since step {event.onset}", text=text,
            recovered_step=event.back if over else None,
            evidence={"level_before": event.before, "value": event.value, "recovered_at": event.back if over else None},
        )  # fmt: skip
