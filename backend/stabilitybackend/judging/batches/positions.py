"""Reported positions of the loader by step on every branch, as intervals of even growth. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.lineage.tree import PathRange
from stabilityclient.wire import MAX_STEP

__all__ = ["Pace", "Position", "Positions"]

#: A loader's position: a number that grows, or a text that can only be compared.
Position = int | str
#: Remembered intervals, newest ones: all steps of a loader with an even pace, 1,024 to 2,048 steps of one without,
#: 1,024 with a text. A lookup takes 0.3 ms then.
MAX_STRETCHES = 1_024
#: Segments that may grow in turn: the newest one, and those with late records.
LATE_SEGMENTS = 4
#: Intervals before a step that give the pace of the loader.
PACE_POINTS = 64


@dataclass
class _Interval:
    """Positions ``value``, ``value + by``, ... at the steps ``first``, ``first + stride``, ..., ``last``."""

    segment: int
    first: int
    last: int
    value: Position
    stride: int = 0
    by: int = 0

    def at(self, step: int) -> Position | None:
        if not self.first <= step <= self.last:
            return None
        if isinstance(self.value, str) or not self.stride:
            return self.value if step == self.first else None
        count, rest = divmod(step - self.first, self.stride)
        return None if rest else self.value + count * self.by

    def up_to(self, step: int) -> int | None:
        """Return the newest of its steps at or before ``step``."""
        if step < self.first:
            return None
        return min(self.last, step - (step - self.first) % self.stride) if self.stride else self.first

    def since(self, step: int) -> int | None:
        """Return the first of its steps at or after ``step``."""
        if step > self.last:
            return None
        return self.first if step <= self.first else step + (self.first - step) % self.stride


@dataclass(frozen=True)
class Pace:
    """Growth of the position a step: least, usual and most of the newest steps."""

    least: float
    usual: float
    most: float


class Positions(Stateful):
    """The positions of one rank."""

    _stretches: list[_Interval] = fresh(list)

    def note(self, segment: int, step: int, value: Position) -> None:
        """Take the position of a step; of several for one step the last one counts."""
        last = next((one for one in reversed(self._stretches[-LATE_SEGMENTS:]) if one.segment == segment), None)
        if last is not None and step == last.last:
            if last.at(step) == value:
                return
            if last.stride:
                last.last -= last.stride
                last.stride = 0 if last.first == last.last else last.stride
            else:
                last.value = value
                return
        elif last is not None and isinstance(value, int) and isinstance(last.value, int) and step > last.last:
            if not last.stride:
                last.last, last.stride, last.by = step, step - last.first, value - last.value
                return
            if step == last.last + last.stride and last.at(last.last) == value - last.by:
                last.last = step
                return
        self._stretches.append(_Interval(segment, step, step, value))
        if len(self._stretches) > MAX_STRETCHES:
            del self._stretches[0]

    def __bool__(self) -> bool:
        return bool(self._stretches)

    def on(self, path: Sequence[PathRange], step: int) -> Position | None:
        """Return the position at a step of a path, None for none."""
        newest = self.newest(path, step)
        return newest[1] if newest is not None and newest[0] == step else None

    def newest(self, path: Sequence[PathRange], step: int) -> tuple[int, Position] | None:
        """Return the newest step at or before ``step`` with a position, and that."""
        return max(self._ends(path, step), key=lambda one: one[0], default=None)

    def first_after(self, path: Sequence[PathRange], step: int) -> tuple[int, Position] | None:
        """Return the first step after ``step`` with a position, and that."""
        found = []
        for stretch, low, high in self._parts(path):
            at = stretch.since(max(low, step + 1))
            if at is not None and at <= high and (value := stretch.at(at)) is not None:
                found.append((at, value))
        return min(found, key=lambda one: one[0], default=None)

    def pace(self, path: Sequence[PathRange], step: int) -> Pace | None:
        """Return the pace up to ``step``, None for unknown."""
        grown: list[float] = []
        before: tuple[int, int] | None = None
        for first, last, begin, end in self._numbers(path, step)[-PACE_POINTS:]:
            # Else it was late, or another pass over the data began there.
            if before is not None and first > before[0] and begin > before[1]:
                grown.append((begin - before[1]) / (first - before[0]))
            if end > begin:
                grown.append((end - begin) / (last - first))
            before = last, end
        return Pace(min(grown), sorted(grown)[len(grown) // 2], max(grown)) if grown else None

    def highest_before_a_fall(self, path: Sequence[PathRange], step: int) -> int | None:
        """Return the position from which it last fell up to ``step``, as at the end of a pass; None: it only grew."""
        found = before = None
        for _, _, begin, end in self._numbers(path, step):
            if before is not None and begin < before:
                found = before
            found, before = (begin if end < begin else found), end
        return found

    def _numbers(self, path: Sequence[PathRange], step: int) -> list[tuple[int, int, int, int]]:
        """Return (first step, last step, position there, and there) of the intervals of numbers up to ``step``."""
        found = []
        for stretch, low, high in self._parts(path):
            first, last = stretch.since(low), stretch.up_to(min(high, step))
            if first is not None and last is not None and first <= last and isinstance(stretch.value, int):
                begin, end = stretch.at(first), stretch.at(last)
                assert isinstance(begin, int)
                assert isinstance(end, int)
                found.append((first, last, begin, end))
        return sorted(found)

    def _ends(self, path: Sequence[PathRange], step: int) -> Iterator[tuple[int, Position]]:
        for stretch, low, high in self._parts(path):
            at = stretch.up_to(min(high, step))
            if at is not None and at >= low and (value := stretch.at(at)) is not None:
                yield at, value

    def _parts(self, path: Sequence[PathRange]) -> Iterator[tuple[_Interval, int, int]]:
        """Yield the intervals of a path, and the range of their steps in it."""
        ranges = {part.segment: (part.first, MAX_STEP if part.last is None else part.last) for part in path}
        for stretch in self._stretches:
            if (cut := ranges.get(stretch.segment)) is not None:
                yield stretch, *cut
