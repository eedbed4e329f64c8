"""Finds a loss that never falls, and one that stopped falling while the job still trains at full speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from .engine.base import (
    SENSITIVITY,
    CurveDetector,
    Event,
    Finding,
    Parameter,
    Point,
    Row,
    Severity,
    State,
    fresh,
)
from .engine.row_blocks import QuietRows
from .engine.synthetic import noisy
from .stats.levels import LARGEST
from .stats.robust import median, robust_sigma

#: Points whose median is one entry at first.
ENTRY_POINTS = 16
#: Entries that stand for the whole run: when they are full, neighbours become one and each counts twice as many points.
MAX_ENTRIES = 64
#: The part of the run so far that has to be flat. A power law with the usual exponent of 0.1 falls by 3 % in it; in
#: 5 % of a run a healthy loss falls by less than its noise. Twice that where the learning rate is not logged: it may
#: have decayed.
FLAT_PART = 0.25
#: Entries that this part must hold.
MIN_FLAT_ENTRIES = 8
#: The fall within that part above which the loss still improves, fraction of the level.
STILL_FALLS = 0.003
#: A change of the level, fraction of it: what noise may hide of the fall at most (two standard deviations), how far a
#: loss that never learnt may have been lower, and what it falls by when it leaves its plateau (and three sigmas).
CHANGE = 0.025
BOUND_SIGMAS = 2.0
#: At the beginning the loss may move until the model knows how frequent its classes are: so many points after the
#: warm-up. Flat means a fall below STILL_FALLS_EARLY after that.
BEGIN_POINTS = 128
STILL_FALLS_EARLY = 0.015
#: A large change, fraction of the level: before a plateau the loss must have left its first level by so much. A loss so
#: far above its best is what is left of an event. Where single points are so noisy, nothing is said of a loss that
#: never fell.
LARGE = 0.1
#: A learning rate below this fraction of its largest is at its floor: flat is what a loss is then.
LR_FLOOR = 0.2
#: Numbers of classes whose logarithm is the loss of a model that knows nothing: binary, data sets of pictures,
#: arithmetic tasks, bytes, powers of two, vocabularies of well known tokenizers.
KNOWN_CLASSES = (
    2, 10, 64, 97, 100, 113, 128, 256, 257, 512, 1000, 1024, 2048, 4096, 8192, 16384, 21841, 28996, 30522, 32000, 32128,
    32768, 49152, 50257, 50304, 50368, 64000, 65024, 65536, 100277, 100352, 128000, 128256, 151936, 152064, 250112,
    256000, 262144,
)  # fmt: skip
#: Largest distance of a level to such a logarithm, fraction of it.
NEAR_CLASSES = 0.005
#: A first level at least this high is no model that was trained before: fine-tuning starts flat, but low. Such a model
#: that does not move above MOST of its first level knows at most how frequent its classes are. What had learnt can't
#: have been flat for a longer part of the run than that.
UNTRAINED_LEVEL = 3.9
MOST = 0.7
#: A first point later than this many usual distances means that the run begins in the middle of a training.
FIRST_POINT_INTERVALS = 3

__all__ = ["PlateauDetector"]


@dataclass(slots=True)
class _PlateauEvent(Event):
    """One plateau from its onset until the loss leaves it."""

    level: float
    sigma: float
    never: bool
    points: int
    classes: int | None
    explained_by: tuple[str, ...]
    state: State = "open"
    left_step: int | None = None
    left_level: float | None = None


class PlateauDetector(CurveDetector):
    """Finds a loss that never falls from its first level, and one that learnt and then does not move.

    Idea: at most 64 medians stand for the whole run. *Never learns*: the loss does not move for 500 points since the
    first 128 (those of the warm-up of the learning rate do not count), and as high as an untrained model: at its first
    level, or above 70 % of a first level of 3.9 or more (such a model knows how frequent its classes are, and nothing
    else). That is a warning when the first level is above 3.9 or the level is ln(classes) of a common number of
    classes, otherwise a note. *Stopped*: the job had learnt, and over the newest quarter of the run (half of it where
    the learning rate is not logged; 500 points at least) the fall is below 0.3 %, while the learning rate is not at its
    floor; a quiet note. Both end when the loss falls again.

    Args:
        sensitivity: divides the points that have to be flat.
        never_points: points from the start without progress that make a run that never learns.
        flat_points: points without progress that make a plateau of a run that had learnt.

    Example:
        >>> plateau = PlateauDetector()
        >>> losses = [4.852 + 0.004 * (i % 3) for i in range(700)]
        >>> found = [f for step, loss in enumerate(losses) for f in plateau.update(Point(step, "loss", loss, 0.0))]
        >>> [(f.key, f.severity, f.evidence["nearest_classes"]) for f in found]
        [('plateau:loss:0', 'warning', 128)]

    Source: the project's detection notes, section 5 (slope over max(500 points, 5 % of the run), distance to ln(V));
    a quarter of the run in place of 5 %, because healthy power laws are flat within the noise over 5 %.
    """

    name: ClassVar[str] = "plateau"
    kinds: ClassVar[tuple[str, ...]] = ("plateau",)
    title: ClassVar[str] = "Loss does not fall"
    parameters: ClassVar[dict[str, Parameter]] = {
        "sensitivity": SENSITIVITY,
        "never_points": Parameter(
            500.0, 100.0, 1e6, "points", "Points without progress since the start; higher is later and surer."
        ),
        "flat_points": Parameter(
            500.0, 200.0, 1e7, "points", "Points without progress of a run that had learnt; higher is later and surer."
        ),
    }

    _values: list[float] = fresh(list)
    _entries: list[float] = fresh(list)
    _steps: list[int] = fresh(list)
    #: Medians that make one entry, and those of the newest one so far.
    _each: int = 1
    _sum: float = 0.0
    _summed: int = 0
    _sum_step: int = 0
    _points: int = 0
    _warm_up_points: int = 0
    _first_step: int = -1
    _noise: float = 0.0
    _largest_rate: float = 0.0
    _event: _PlateauEvent | None = None

    def configured(self) -> None:
        sensitivity = self.settings["sensitivity"]
        self._never_points = self.settings["never_points"] / sensitivity if sensitivity else math.inf
        self._flat_points = self.settings["flat_points"] / sensitivity if sensitivity else math.inf

    def update(self, point: Point) -> list[Finding]:
        value = point.value
        if point.metric != self._metric and self._is_another(point.metric):
            return []
        if not -LARGEST < value < LARGEST:
            return []
        values = self._values
        if not values:
            self._first(point.step)
        values.append(value)
        if len(values) < ENTRY_POINTS:
            return []
        self._values = []
        return self._median(point.step, values)

    def take_quiet(self, rows: QuietRows, start: int, stop: int) -> int:
        stop = min(stop, start + ENTRY_POINTS - 1 - len(self._values))
        if self._metric not in rows.ranges or stop <= start:
            return start
        if not self._values:
            self._first(rows.steps[start])
        self._values += rows.columns[self._metric][start:stop]
        return stop

    @classmethod
    def story(cls) -> Sequence[Row]:
        rates = [3e-4 * min(1.0, (i + 1) / 100) for i in range(900)]
        losses = noisy(900, seed=23, sigma=0.004, level=math.log(50_304))
        return [Row(i, 1e9 + i, {"loss": loss, "lr": rates[i]}) for i, loss in enumerate(losses)]

    # --- entries ------------------------------------------------------------------------------------------------

    def _first(self, step: int) -> None:
        """Note where the newest median begins."""
        if self._first_step < 0:
            self._first_step = step
        if not self._summed:
            self._sum_step = step

    def _median(self, step: int, values: list[float]) -> list[Finding]:
        """Take the newest 16 points as one median; look once an entry is complete."""
        context = self.context
        rate = context.lr.last
        if rate > self._largest_rate:
            self._largest_rate = rate
        if context.claimed(self._metric, self.name) is not None:
            return []
        middle = median(values)
        if len(self._entries) < MIN_FLAT_ENTRIES:
            self._noise = max(self._noise, robust_sigma(values))
        self._points += ENTRY_POINTS
        if context.warming_up and self._warm_up_points + ENTRY_POINTS == self._points:
            self._warm_up_points = self._points
        self._sum += middle
        self._summed += 1
        if self._summed < self._each:
            return []
        self._entries.append(self._sum / self._summed)
        self._steps.append(self._sum_step)
        self._sum, self._summed = 0.0, 0
        if len(self._entries) == MAX_ENTRIES:
            self._halve()
        event = self._event
        if event is not None and event.state == "open":
            return self._follow(event, step)
        return self._check(step)

    def _halve(self) -> None:
        """Make one entry of two neighbours: the run is twice as long as the entries were made for."""
        entries = self._entries
        self._entries = [0.5 * (a + b) for a, b in zip(entries[::2], entries[1::2], strict=True)]
        self._steps = self._steps[::2]
        self._each *= 2

    def _check(self, step: int) -> list[Finding]:
        entries = self._entries
        count = len(entries)
        if count < 2 * MIN_FLAT_ENTRIES or not math.isfinite(self._never_points):
            return []
        never = self._event is None and self._never_learns(entries[0])
        if not never and not self._stopped(median(entries[:3])):
            return []
        newest = entries[-max(MIN_FLAT_ENTRIES, int(FLAT_PART * count)) :]
        return self._open(step, median(newest), self._entry_sigma(newest), never=never)

    def _entry_sigma(self, entries: Sequence[float]) -> float:
        """Return the standard deviation of an entry by the differences of neighbours."""
        differences = [b - a for a, b in pairwise(entries)]
        return max(robust_sigma(differences) / math.sqrt(2.0), 1e-9)

    def _never_learns(self, first: float) -> bool:
        """Say whether the loss does not move since the beginning, after the warm-up and long enough, and high."""
        if self._first_step > FIRST_POINT_INTERVALS * max(1.0, self.context.interval) or first <= 0:
            return False
        entries, per_entry = self._entries, self._each * ENTRY_POINTS
        begin = (self._warm_up_points + BEGIN_POINTS) // per_entry
        flat = entries[begin:]
        if len(flat) < MIN_FLAT_ENTRIES or len(flat) * per_entry < self._never_points:
            return False
        level, half = median(flat), len(flat) // 2
        fall = abs(median(flat[:half]) - median(flat[-half:]))
        bound = BOUND_SIGMAS * 1.25 * self._entry_sigma(flat) * math.sqrt(2.0 / half)
        lowest = min(0.5 * (a + b) for a, b in pairwise(entries))
        still = fall + bound <= STILL_FALLS_EARLY * level and lowest > (1 - CHANGE) * level
        high = level >= (MOST * first if first >= UNTRAINED_LEVEL else (1 - CHANGE) * first)
        return still and high and self._noise <= LARGE * first

    def _stopped(self, first: float) -> bool:
        """Say whether the loss had fallen and then did not move over the newest quarter of the run."""
        entries = self._entries
        per_entry = self._each * ENTRY_POINTS
        part = FLAT_PART if self._largest_rate else 2 * FLAT_PART
        needed = max(MIN_FLAT_ENTRIES, int(part * len(entries)), math.ceil(self._flat_points / per_entry))
        if needed > MOST * len(entries):
            return False
        flat = entries[-needed:]
        left = None if self._event is None else self._event.left_step
        if left is not None and self._steps[-needed] < left:
            return False
        level = median(flat)
        best = min(entries)
        if first - best <= LARGE * first:
            return False
        if self._largest_rate and self.context.lr.last <= LR_FLOOR * self._largest_rate:
            return False
        half = needed // 2
        fall = median(flat[:half]) - median(flat[-half:])
        bound = BOUND_SIGMAS * 1.25 * self._entry_sigma(flat) * math.sqrt(2.0 / half)
        return abs(fall) <= STILL_FALLS * level and bound <= CHANGE * level

    # --- the event ----------------------------------------------------------------------------------------------

    def _open(self, step: int, level: float, sigma: float, *, never: bool) -> list[Finding]:
        entries = self._entries
        # A model that knows nothing is about where it began: far below that the logarithm is a coincidence.
        classes = _known_classes(level) if never or level >= MOST * entries[0] else None
        untrained = classes is not None or entries[0] >= UNTRAINED_LEVEL
        severity: Severity = "warning" if never and untrained else "info"
        reach = 3 * sigma + 0.5 * STILL_FALLS * abs(level)
        at = len(entries) - 1
        while at > 0 and abs(entries[at - 1] - level) <= reach:
            at -= 1
        onset = self._steps[0] if never else self._steps[at]
        explained: list[str] = []
        if level > min(entries) + LARGE * abs(level):
            claim = self.context.claimed(self._metric, self.name, math.inf)
            if claim is not None:
                explained.append(f"{claim.kind}: {claim.key} at step {claim.onset_step} left the loss there")
        if never and self._largest_rate == 0 and self.context.lr.last == 0:
            explained.append("lr: the learning rate is 0")
        points = self._points if never else (len(entries) - at) * self._each * ENTRY_POINTS
        event = self._event = _PlateauEvent(
            self._metric, onset, step, severity, level, sigma, never, points, classes, tuple(explained)
        )
        return [self._finding(event, step)]

    def _follow(self, event: _PlateauEvent, step: int) -> list[Finding]:
        """End the event when the loss leaves its level, downwards as it should or upwards."""
        event.points += self._each * ENTRY_POINTS
        newest = self._entries[-2:]
        reach = max(CHANGE * abs(event.level), 3 * event.sigma)
        if max(newest) < event.level - reach:
            event.state = "recovered"
        elif min(newest) > event.level + reach:
            event.state = "resolved"
        else:
            return []
        event.left_step, event.left_level = step, median(newest)
        return [self._finding(event, step)]

    def _finding(self, event: _PlateauEvent, now_step: int) -> Finding:
        hint = (
            f" {event.level:.4g} is ln({event.classes}), the loss of a model that knows nothing about"
            f" {event.classes} classes."
            if event.classes
            else ""
        )
        if event.never:
            title = "Loss does not learn from the start"
            text = (
                f"After {event.points} points the loss is flat at {event.level:.4g}; it began at"
                f" {self._entries[0]:.4g}.{hint}"
            )
        else:
            title = f"Loss is flat since step {event.onset}"
            text = f"The loss had fallen before, and is flat at {event.level:.4g} since step {event.onset}.{hint}"
            if not self._largest_rate:
                text += " The learning rate is not logged, so that a decayed one may be the reason."
        if event.explained_by:
            text += " Known before: " + "; ".join(why.partition(": ")[2] for why in event.explained_by) + "."
        if event.state == "recovered":
            text += f" It falls again: {event.left_level:.4g} at step {event.left_step}."
        elif event.state == "resolved":
            text += f" It left that level upwards at step {event.left_step}."
        return self.finding(
            event,
            now_step,
            event.state,
            title=title,
            text=text,
            recovered_step=event.left_step if event.state == "recovered" else None,
            score=float(event.points),
            evidence={
                "direction": "flat",
                "level_before": event.level,
                "level_after": event.left_level,
                "sigma": event.sigma,
                "points": event.points,
                "never_learnt": event.never,
                "nearest_classes": event.classes,
                "learning_rate": self.context.lr.last if math.isfinite(self.context.lr.last) else None,
                "explained_by": list(event.explained_by),
                "recovered_at": event.left_step if event.state == "recovered" else None,
            },
        )


def _known_classes(level: float) -> int | None:
    """Return a common number of classes whose logarithm the level is, None when there is none.

    Example:
        >>> _known_classes(4.727), _known_classes(2.0)
        (113, None)
    """
    nearest = min(KNOWN_CLASSES, key=lambda classes: abs(math.log(classes) - level))
    return nearest if abs(math.log(nearest) - level) <= NEAR_CLASSES * math.log(nearest) else None
