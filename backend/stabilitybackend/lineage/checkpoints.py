"""The checkpoints that a job announced, found by path and by step without looking at all of them."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from stabilitybackend.lineage.tree import SegmentTree
from stabilitybackend.stateful import Stateful, fresh

__all__ = ["CheckpointBook", "LoggedCheckpoint", "UsableCheckpoints"]


@dataclass
class LoggedCheckpoint:
    """A checkpoint that the job announced. What ``schema.lineage.Checkpoint`` adds changes with forks and incidents."""

    step: int
    path: str
    segment: int
    time: float
    available: bool = True


class CheckpointBook(Stateful):
    """The checkpoints of one run, in the order in which they were announced. Of one path the newest is available."""

    _all: list[LoggedCheckpoint] = fresh(list)

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[int] = []
        self._by_path: dict[str, list[LoggedCheckpoint]] = {}
        #: Segment -> rising steps of those that are still there.
        self._there: dict[int, list[int]] = {}

    def restored(self) -> None:
        known = self._all
        self.__init__()  # type: ignore[misc]  # the empty book, spelled once
        for checkpoint in known:
            self._put(checkpoint)

    def __iter__(self) -> Iterator[LoggedCheckpoint]:
        return iter(self._all)

    def __reversed__(self) -> Iterator[LoggedCheckpoint]:
        return reversed(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def add(self, step: int, path: str, segment: int, time: float) -> None:
        """Take one in; the same one from another rank changes nothing, another one at its path is written over."""
        known = self._by_path.get(path)
        if known and known[-1].available:
            if (known[-1].step, known[-1].segment) == (step, segment):
                return
            self._lose(known[-1])  # the dead branch's content is no longer there
        self._put(LoggedCheckpoint(step, path, segment, time))

    def _put(self, checkpoint: LoggedCheckpoint) -> None:
        self._all.append(checkpoint)
        self._by_path.setdefault(checkpoint.path, []).append(checkpoint)
        insort(self._steps, checkpoint.step)
        there = self._there.setdefault(checkpoint.segment, [])
        if checkpoint.available:
            insort(there, checkpoint.step)

    def gone(self, step: int | None, path: str) -> None:
        """Take note that one is no longer there."""
        for checkpoint in self._by_path.get(path, ())[-1:]:
            if checkpoint.step == step and checkpoint.available:
                self._lose(checkpoint)

    def _lose(self, checkpoint: LoggedCheckpoint) -> None:
        checkpoint.available = False
        steps = self._there[checkpoint.segment]
        del steps[bisect_left(steps, checkpoint.step)]

    def newest_step(self, low: int, below: int) -> int | None:
        """Return the greatest step of any with ``low <= step < below``, None where there is none."""
        at = bisect_left(self._steps, below) - 1
        return self._steps[at] if at >= 0 and self._steps[at] >= low else None

    def usable(self, tree: SegmentTree) -> UsableCheckpoints:
        """Return those that can be gone back to: still there, and not dead in ``tree``."""
        return UsableCheckpoints(self._there, tree, self._all)

    def at(self, paths: Iterable[str]) -> list[LoggedCheckpoint]:
        """Return those of some paths, newest first in each."""
        return [checkpoint for path in paths for checkpoint in reversed(self._by_path.get(path, ()))]


class UsableCheckpoints:
    """The steps of the checkpoints that can be gone back to now, found without looking at each of them.

    Args:
        there: segment -> rising steps of those that are still there. tree: says which of them are dead.
        every: all that were announced.
    """

    def __init__(self, there: dict[int, list[int]], tree: SegmentTree, every: Sequence[LoggedCheckpoint]) -> None:
        self._there = there
        self._tree = tree
        self._every = every

    def newest(self, at_most: float = math.inf) -> int | None:
        """Return the greatest step that is at most ``at_most``, None where there is none."""
        found = []
        for segment, steps in self._there.items():
            dead_after = self._tree.dead_after(segment)
            at = bisect_right(steps, at_most if dead_after is None else min(at_most, dead_after))
            found += steps[max(at - 1, 0) : at]
        return max(found, default=None)

    def oldest(self) -> int | None:
        """Return the smallest step, None where there is none."""
        firsts = ((steps[0], self._tree.dead_after(segment)) for segment, steps in self._there.items() if steps)
        return min((step for step, dead_after in firsts if dead_after is None or step <= dead_after), default=None)

    def lost(self, at_most: float) -> int | None:
        """Return the greatest step that is at most ``at_most`` of those that were deleted; looks at each of them."""
        gone = (c for c in self._every if not c.available and c.step <= at_most)
        return max((c.step for c in gone if not self._tree.is_dead(c.segment, c.step)), default=None)
