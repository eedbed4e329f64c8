"""Shared facts of a run for its detectors: learning rate, gradient norm, batch size, forks.

The bank keeps one ``Context`` for every detector of the run. It is filled with a whole row before any point of that row
is judged, so that the order of metrics in a row does not matter. It is part of the snapshots, rewinds with the
detectors, and holds a bounded past only.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from operator import lt
from statistics import median
from typing import NamedTuple

from stabilitybackend.schema.metric_roles import BATCH_SIZE, GRAD_NORM, LOSS, LR, SEQUENCE_LENGTH, dataset_of, role_of

from .base import Claim, Mark

#: Remembered values of a companion metric.
COMPANION_POINTS = 64
#: Remembered excuses, newest ones.
MAX_EXCUSES = 32
#: Remembered marks, newest ones.
MAX_MARKS = 16
#: Least change of the learning rate or the batch size from one value to the next that is a step, not a slope, fraction.
JUMP = 0.1
#: Points that make a sequence length a setting; one that changes with each batch is its padding.
STOOD_POINTS = 4
#: A change so many points before an onset still explains it.
EXCUSE_POINTS = 12
#: Remembered claims, by metric.
MAX_CLAIMS = 256
#: Events of the loss that move the losses of all data sets, and claim them too.
COVERS_DATASETS = frozenset({"resume_artifact", "repeat_data", "divergence"})
#: Distance of two rows relative to the usual one that makes a gap; a large step of the rate behind one is a resume.
GAP_INTERVALS = 5
#: Distances between rows for the usual one.
INTERVALS = 15

__all__ = ["Claim", "Context"]

#: A role, its values, one a row, and the least and the largest of them; None for non-finite ones.
CompanionColumn = tuple[str, Sequence[float], tuple[float, float] | None]


class Excuse(NamedTuple):
    """A reason for a move of a curve, from a step on.

    Args:
        kind: ``lr_jump``, ``batch_size``, ``gap`` or ``fork``.
        step: its first step.
        text: one plain clause, e.g. ``the learning rate went from 0.0003 to 0.00015``.
        before, after: values of the change, NaN for none.
    """

    kind: str
    step: int
    text: str
    before: float = math.nan
    after: float = math.nan


@dataclass(slots=True)
class Companion:
    """The newest finite values of one metric."""

    #: (step, value), oldest first.
    values: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=COMPANION_POINTS))

    @property
    def last(self) -> float:
        """The newest value, NaN when there is none."""
        return self.values[-1][1] if self.values else math.nan

    def at(self, step: int) -> float:
        """Return the value of ``step``, NaN for none."""
        return next((value for at, value in reversed(self.values) if at == step), math.nan)

    def before(self, step: int) -> float:
        """Return the newest value of an earlier step, NaN for none."""
        return next((value for at, value in reversed(self.values) if at < step), math.nan)

    def held(self, points: int) -> bool:
        """Return whether the newest points all have one value."""
        newest = list(self.values)[-points:]
        return len(newest) == points and len({value for _, value in newest}) == 1

    def usual(self, before: int) -> float:
        """Return the median of the remembered values before ``before``, NaN for none."""
        past = [value for at, value in self.values if at < before]
        return median(past) if past else math.nan


@dataclass(slots=True)
class Context:
    """Facts of a run besides a detector's curve."""

    lr: Companion = field(default_factory=Companion)
    grad_norm: Companion = field(default_factory=Companion)
    batch_size: Companion = field(default_factory=Companion)
    sequence_length: Companion = field(default_factory=Companion)
    #: The newest row's step and time; -1 and 0 before the first.
    step: int = -1
    time: float = 0.0
    #: Rows with a new step so far.
    rows: int = 0
    #: Newest marks, oldest first.
    marks: deque[Mark] = field(default_factory=lambda: deque(maxlen=MAX_MARKS))
    #: Newest reasons for a move of a curve, oldest first.
    excuses: deque[Excuse] = field(default_factory=lambda: deque(maxlen=MAX_EXCUSES))
    #: The usual distance between two rows, steps, >= 1.
    interval: float = 1.0
    _claims: dict[str, Claim] = field(default_factory=dict)
    _intervals: deque[int] = field(default_factory=lambda: deque(maxlen=INTERVALS))
    _warming: bool = True
    #: Whether the job's counts are compared with a declared mixture: then other detectors ignore shares.
    mixture: bool = False

    # --- filled by the bank --------------------------------------------------------------------------------------

    def enter(self, step: int, time: float) -> None:
        """Take the next row."""
        if step > self.step:
            if self.step >= 0:
                distance = step - self.step
                if distance != self.interval:
                    if len(self._intervals) == INTERVALS and distance > GAP_INTERVALS * self.interval:
                        self.excuses.append(Excuse("gap", step, f"nothing was logged for {distance} steps"))
                    self._intervals.append(distance)
                    self.interval = max(1.0, median(self._intervals))
                else:
                    self._intervals.append(distance)
            self.rows += 1
            self.step = step
        self.time = time

    def enter_all(self, steps: Sequence[int], times: Sequence[float]) -> None:
        """Take some rows, as ``enter`` does one by one; those at the usual distance cost next to nothing."""
        if max(steps) <= self.step:  # of a rank behind the first one
            self.time = times[-1]
            return
        at = 1
        for step, time in zip(steps[:at], times[:at], strict=True):
            self.enter(step, time)
        count, distance = len(steps) - at, self.interval
        if count and steps[0] == self.step and distance == int(distance):
            last = steps[0] + int(distance) * count
            if steps[-1] == last and list(steps) == list(range(steps[0], last + 1, int(distance))):
                self.advance(steps, times, (), at, len(steps))
                return
        for step, time in zip(steps[at:], times[at:], strict=True):
            self.enter(step, time)

    def companion(self, role: str, value: float) -> None:
        """Take a companion value of the newest row: learning rate, gradient norm, batch size."""
        if not math.isfinite(value):
            return
        if role == GRAD_NORM:
            self.grad_norm.values.append((self.step, value))
        elif role == LR:
            self._jumped(self.lr, value, "lr_jump", "learning rate")
        elif role == BATCH_SIZE:
            self._jumped(self.batch_size, value, "batch_size", "batch size")
        elif role == SEQUENCE_LENGTH and not self.sequence_length.held(STOOD_POINTS):
            self.sequence_length.values.append((self.step, value))
        elif role == SEQUENCE_LENGTH:  # it excuses effects of another batch size
            self._jumped(self.sequence_length, value, "batch_size", "sequence length")

    def _jumped(self, companion: Companion, value: float, kind: str, name: str) -> None:
        last = companion.last
        if value != last and last == last:
            if abs(value - last) > JUMP * abs(last) and not (kind == "lr_jump" and self._warming and value > last):
                text = f"the {name} went from {last:.4g} to {value:.4g}"
                self.excuses.append(Excuse(kind, self.step, text, last, value))
            if kind == "lr_jump" and value < last:
                self._warming = False
        companion.values.append((self.step, value))

    def calm(self, steps: Sequence[int], companions: Sequence[CompanionColumn], start: int, stop: int) -> int:
        """Return the end of the rows after the newest one, at ``start``, without a reason for a move of a curve.

        Args:
            steps: of rows that are evenly spaced. companions: of the same rows. stop: at most.
        """
        evenly = start + 1 < stop and steps[start + 1] - steps[start] == self.interval
        if not evenly or len({role for role, _, _ in companions}) < len(companions):
            return start + 1
        for role, values, among in companions:
            if among is None:
                return start + 1
            if role == GRAD_NORM or among[0] == among[1]:
                continue
            before, seen = values[start], self.sequence_length.values
            known = [value for _, value in seen][-STOOD_POINTS:] if role == SEQUENCE_LENGTH else []
            for at in range(start + 1, stop):
                value = values[at]
                if abs(value - before) > JUMP * abs(before) and _is_setting(known, values, start, at):
                    stop = at
                    break
                before = value
        return stop

    def advance(
        self, steps: Sequence[int], times: Sequence[float], companions: Sequence[CompanionColumn], start: int, stop: int
    ) -> None:
        """Take rows found by ``calm``, as ``enter`` and ``companion`` do for each of them."""
        count = stop - start
        if not count:
            return
        self._intervals.extend([steps[start] - self.step] * min(count, INTERVALS))
        self.rows += count
        self.step, self.time = steps[stop - 1], times[stop - 1]
        newest = max(start, stop - COMPANION_POINTS)
        for role, values, among in companions:
            companion = self._companion_of(role)
            if role == LR and self._warming and among is not None and among[0] < among[1]:
                self._warming = not any(map(lt, values[start:stop], values[start - 1 : stop - 1]))
            companion.values.extend(zip(steps[newest:stop], values[newest:stop], strict=True))

    def _companion_of(self, role: str) -> Companion:
        of = {GRAD_NORM: self.grad_norm, LR: self.lr, SEQUENCE_LENGTH: self.sequence_length}
        return of.get(role, self.batch_size)

    def mark(self, mark: Mark) -> None:
        """Take an event of the run; a declared mixture is no reason for a move of a curve."""
        if mark.kind == "mixture":
            return
        self.marks.append(mark)
        if mark.kind == "fork":
            self._warming = True
        self.excuses.append(Excuse(mark.kind, mark.step, mark.text))

    # --- asked by detectors --------------------------------------------------------------------------------------

    @property
    def warming_up(self) -> bool:
        """Whether the learning rate has only risen since the start or the last fork, and still does."""
        rates = self.lr.values
        return self._warming and len(rates) >= 2 and rates[-1][1] > rates[0][1]

    def excuses_between(self, first: int, last: int) -> list[Excuse]:
        """Return the reasons with a step from ``first`` to ``last``, oldest first."""
        return [excuse for excuse in self.excuses if first <= excuse.step <= last]

    def last_fork(self) -> Mark | None:
        """Return the newest fork, None for none."""
        return next((mark for mark in reversed(self.marks) if mark.kind == "fork"), None)

    def open_claims(self) -> dict[str, Claim]:
        """Return the open claims, by metric."""
        return {metric: claim for metric, claim in self._claims.items() if claim.ended_step is None}

    def claims_since(self, step: int) -> dict[str, Claim]:
        """Return the claims that are open or ended at a step or later, by metric."""
        return {m: claim for m, claim in self._claims.items() if claim.ended_step is None or claim.ended_step >= step}

    def claim(self, metric: str, claim: Claim) -> None:
        """Record that ``claim.detector`` follows an event of ``metric``; again with ``ended_step`` at its end."""
        self._claims.pop(metric, None)
        self._claims[metric] = claim
        while len(self._claims) > MAX_CLAIMS:
            del self._claims[next(iter(self._claims))]

    def release(self, metric: str, detector: str) -> None:
        """Remove a detector's claim: later points are not of its event."""
        if metric in self._claims and self._claims[metric].detector == detector:
            del self._claims[metric]

    def take_claims(self, other: Context, detectors: Collection[str], known: Collection[str]) -> None:
        """Replace the claims of ``detectors`` by those in ``other``; those outside ``known`` claim nothing."""
        kept = {m: claim for m, claim in self._claims.items() if claim.detector in set(known) - set(detectors)}
        taken = {m: claim for m, claim in other._claims.items() if claim.detector in detectors}
        self._claims = {**taken, **kept}

    def claimed(self, metric: str, detector: str, within_steps: float = 0) -> Claim | None:
        """Return the claim of another detector on ``metric`` that is open or ended less than ``within_steps`` ago."""
        if not self._claims:
            return None
        claims = [self._claims.get(metric)]
        if dataset_of(metric) is not None:
            claims += [c for m, c in self._claims.items() if c.kind in COVERS_DATASETS and role_of(m) == LOSS]
        for claim in claims:
            if claim is None or claim.detector == detector:
                continue
            if claim.ended_step is None or self.step - claim.ended_step < within_steps:
                return claim
        return None


def _is_setting(known: Sequence[float], values: Sequence[float], start: int, at: int) -> bool:
    """Return whether the value before an index held long enough; ``known`` ends with the value at ``start``."""
    if not known:
        return True  # of another role: each of its steps counts
    before = [*known, *values[start + 1 : at]][-STOOD_POINTS:]
    return len(before) == STOOD_POINTS and len(set(before)) == 1
