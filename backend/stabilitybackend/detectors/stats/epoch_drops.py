"""Recognises the drops of the loss at the boundaries of epochs that repeat the same data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .levels import LARGEST, Level, level_of, quantum
from .robust import median

#: Points before a drop that are looked at, and of them the least.
BEFORE_POINTS, LEAST_POINTS = 32, 10
#: The drop is taken when so many points after it are known, and lies below the newest ones before it by MARGIN.
AFTER_POINTS = 8
#: Points that are taken at once.
ADD_POINTS = 4
MARGIN_POINTS, MARGIN = 6, 0.015
#: A loss that is logged in coarse steps (two decimals) drops by one of them each time that it has fallen so far.
OVER_QUANTUM = 2.0
#: Where the pattern says that a drop is due, so many points after it are enough.
DUE_POINTS = 3
#: A drop is at least so many sigmas.
SIGMAS = 5.0
#: A lasting drop: the second half of the points after it fell no further than this part of it. A loss that learns
#: something new (grokking) or follows a lower learning rate goes on falling.
GOES_ON = 0.25
#: Drops in a row that make a pattern: equal distances within this fraction, each at least this part of the one before.
#: The drops of a learning rate that is cut again and again become smaller.
PATTERN_DROPS, DISTANCE, SHRINKS = 3, 0.15, 0.8
#: Between the last two drops the loss did not fall by more than this part of a drop: the data is memorised, while
#: the model moves on.
FALLS = 0.1

__all__ = ["ADD_POINTS", "Drop", "EpochDrops"]


@dataclass(slots=True)
class Drop:
    """One abrupt and lasting drop.

    Args:
        step: its first step.
        before_step: the step before it.
        size: of the drop.
        before: level and sigma before it.
        after: level after it.
        drift: by how much the loss moved from the drop before to this one, positive when it rose.
    """

    step: int
    before_step: int
    size: float
    before: Level
    after: float
    drift: float


@dataclass(slots=True)
class EpochDrops:
    """Looks for abrupt drops at equal distances between which the loss does not fall.

    One drop says nothing: learning rates are cut, models learn. The third of a row, at the distance of the second from
    the first, is a pattern that only epochs over the same data make.
    """

    _values: list[float] = field(default_factory=list)
    _steps: list[int] = field(default_factory=list)
    #: The newest drops, oldest first.
    drops: list[Drop] = field(default_factory=list)
    #: The step at which the pattern expects the next drop, None without a pattern.
    due: float | None = None

    def add(self, points: Sequence[tuple[int, float]]) -> Drop | None:
        """Take the next ADD_POINTS losses as (step, loss); return a drop once enough points after it are known."""
        values, steps = self._values, self._steps
        for step, value in points:
            values.append(value)
            steps.append(step)
        count = len(values)
        if count < LEAST_POINTS + DUE_POINTS:
            return None
        if count > BEFORE_POINTS + AFTER_POINTS + 16:
            del values[:16], steps[:16]
        after = DUE_POINTS if self.due is not None and self._is_due(steps[-DUE_POINTS]) else AFTER_POINTS
        # Cheap first: all of the newest points lie below all of the last ones before them.
        end = -after - ADD_POINTS - 1
        if max(values[-after:]) >= (1 - MARGIN) * min(values[end - MARGIN_POINTS : end], default=-LARGEST):
            return None
        return self._measure(after)

    def forget(self) -> None:
        """Begin again: something else explains what the loss did."""
        self._values, self._steps, self.drops, self.due = [], [], [], None

    def pattern(self) -> float | None:
        """Return the distance of the drops in steps when the newest three make a pattern."""
        if len(self.drops) < PATTERN_DROPS:
            return None
        first, second, third = self.drops[-PATTERN_DROPS:]
        one, other = second.step - first.step, third.step - second.step
        equal = abs(one - other) <= DISTANCE * max(one, other)
        as_large = second.size >= SHRINKS * first.size and third.size >= SHRINKS * second.size
        flat = third.drift >= -FALLS * third.size and second.drift >= -0.6 * second.size
        return (one + other) / 2 if equal and as_large and flat else None

    def _is_due(self, step: int) -> bool:
        assert self.due is not None
        return abs(step - self.due) <= DISTANCE * (self.due - self.drops[-1].step)

    def _measure(self, points: int) -> Drop | None:
        after = self._values[-points:]
        end = len(self._values) - points
        last = self.drops[-1].step if self.drops else -1
        inside = [i for i in range(max(0, end - BEFORE_POINTS), end) if self._steps[i] >= last]
        before = [self._values[i] for i in inside][:-1]
        if len(before) < LEAST_POINTS:
            return None
        half = len(before) // 2
        slope = (median(before[half:]) - median(before[:half])) / (len(before) - half)
        sigma = level_of([value - slope * i for i, value in enumerate(before)], 0.002)[1]
        level, low = median(before[-MARGIN_POINTS:]), median(after)
        size = level - low
        goes_on = median(after[: points // 2]) - median(after[points // 2 :])
        if (
            size < max(SIGMAS * sigma, MARGIN * abs(level), OVER_QUANTUM * quantum(before + after))
            or goes_on > GOES_ON * size
        ):
            return None
        onset = next(i for i in range(inside[-1], len(self._values)) if self._values[i] < level - 0.5 * size)
        drop = Drop(self._steps[onset], self._steps[onset - 1], size, (level, sigma), low, slope * len(before))
        self.drops = [*self.drops[-PATTERN_DROPS:], drop]
        del self._values[:onset], self._steps[:onset]
        distance = self.pattern()
        self.due = None if distance is None else drop.step + distance
        return drop
