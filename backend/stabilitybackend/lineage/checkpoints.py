"""The checkpoints that a job announced, found by path and by step without looking at all of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["Checkpoint", "CheckpointBook"]


@dataclass
class Checkpoint:
    """A checkpoint that the job announced."""

    step: int
    path: str
    segment: int
    time: float
    available: bool = True


class CheckpointBook:
    """The checkpoints of one run, in the order in which they were announced. Of one path the newest is available."""

    def __init__(self) -> None:
        self._all: list[Checkpoint] = []
        self._steps: list[int] = []
        self._by_path: dict[str, list[Checkpoint]] = {}

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self._all)

    def __reversed__(self) -> Iterator[Checkpoint]:
        return reversed(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def add(self, step: int, path: str, segment: int, time: float) -> None:
        """Take one in; the same one from another rank changes nothing, another one at its path is written over."""
        known = self._by_path.setdefault(path, [])
        if known and known[-1].available:
            if (known[-1].step, known[-1].segment) == (step, segment):
                return
            known[-1].available = False  # the dead branch's content is no longer there
        checkpoint = Checkpoint(step, path, segment, time)
        known.append(checkpoint)
        self._all.append(checkpoint)
        insort(self._steps, step)

    def gone(self, step: int | None, path: str) -> None:
        """Take note that one is no longer there."""
        for checkpoint in self._by_path.get(path, ())[-1:]:
            if checkpoint.step == step:
                checkpoint.available = False

    def newest_step(self, low: int, below: int) -> int | None:
        """Return the greatest step of any with ``low <= step < below``, None where there is none."""
        at = bisect_left(self._steps, below) - 1
        return self._steps[at] if at >= 0 and self._steps[at] >= low else None

    def at(self, paths: Iterable[str]) -> list[Checkpoint]:
        """Return those of some paths, newest first in each."""
        return [checkpoint for path in paths for checkpoint in reversed(self._by_path.get(path, ()))]
