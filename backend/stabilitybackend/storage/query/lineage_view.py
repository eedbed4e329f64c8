"""The lineage of a run as it was at one moment, for queries in any thread: the fold itself lives on the event loop."""

from __future__ import annotations

from dataclasses import dataclass

from stabilitybackend.lineage.batch import Placed
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.lineage.tree import PathRange

__all__ = ["LineageView"]


@dataclass(frozen=True, slots=True)
class LineageView:
    """The effective path, and the start of each segment.

    Attributes:
        head: id of the newest segment of the effective timeline.
        path: from the root to the head, each range cut at its child's fork step.
        parents: by segment id; None for the root.
        forks: by segment id, the fork step; -1 for the root.
        limits: by segment id, the step after which its points are dead; None for none of them.
        pending: rows about which nothing is decided yet, as strays.
    """

    head: int
    path: tuple[PathRange, ...]
    parents: tuple[int | None, ...]
    forks: tuple[int, ...]
    limits: tuple[int | None, ...]
    pending: tuple[Placed, ...]

    @classmethod
    def of(cls, fold: LineageFold) -> LineageView:
        """Return the present lineage; call it where the fold is changed, on the event loop."""
        tree = fold.tree
        forks = tuple(segment.fork_step for segment in tree)
        limits = tuple(tree.dead_after(segment.id) for segment in tree)
        parents = tuple(segment.parent for segment in tree)
        return cls(tree.head, tuple(tree.path()), parents, forks, limits, tuple(fold.pending()))

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def effective(self) -> tuple[object, ...]:
        """The part of the lineage that decides which points are effective; equal as long as no answer changes."""
        return self.head, self.path, self.parents, self.forks, self.limits

    def path_of(self, segment: int) -> list[PathRange]:
        """Return the ranges from the root to ``segment``, the last one without an end: the past of its points."""
        ranges: list[PathRange] = []
        current: int | None = segment
        last: int | None = None
        while current is not None:
            ranges.append(PathRange(current, self.forks[current] + 1, last))
            last = self.forks[current]
            current = self.parents[current]
        return ranges[::-1]
