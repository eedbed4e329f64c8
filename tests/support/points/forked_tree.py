"""Random trees of segments with rows in them, and the plainest possible account of what is effective in them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from stabilitybackend.lineage.batch import Placed
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.storage.query.lineage_view import LineageView

__all__ = ["Tree", "same", "trees"]

_NUMBERS = st.one_of(
    st.floats(-1e3, 1e3, width=32), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e30, 2.0, 2.5])
)


@dataclass
class Tree:
    """One rank's metric ``m`` in a tree of segments.

    Attributes:
        parents, forks: by segment; None and -1 for the root.
        head: the newest segment.
        packets: (segment, steps, values) in the order of arrival: late ones, steps that come again, several
            rows a step, and neighbours that changed places.
    """

    parents: list[int | None]
    forks: list[int]
    head: int
    packets: list[tuple[int, list[int], list[float]]] = field(default_factory=list)

    def lineage(self) -> LineageView:
        """Return the tree as a query gets it."""
        fold = LineageFold()
        for segment, (parent, fork) in enumerate(zip(self.parents, self.forks, strict=True)):
            if parent is not None:
                made = fold.tree.fork(parent, fork, key=f"s{segment}", cause="declared", created=0.0)
                assert (made.id, made.parent) == (segment, parent)
        fold.tree.head = self.head
        return LineageView.of(fold)

    def placed(self) -> list[Placed]:
        """Return the packets as the store takes them. The log time of row n in order of arrival is n seconds."""
        found: list[Placed] = []
        time = 0.0
        for segment, steps, values in self.packets:
            times = np.arange(len(steps), dtype=np.float64) + time
            time += len(steps)
            found.append(
                Placed(segment, "r0", 0, "n0", ["m"], np.array(steps, np.int64), times, np.array([values], np.float64))
            )
        return found

    def points(self) -> dict[int, list[tuple[int, float]]]:
        """Return segment -> its rows by step, those of one step as they came."""
        found: dict[int, list[tuple[int, float]]] = {}
        for segment, steps, values in self.packets:
            found.setdefault(segment, []).extend(zip(steps, values, strict=True))
        return {segment: sorted(rows, key=lambda row: row[0]) for segment, rows in found.items()}

    def owner(self, step: int, leaf: int | None = None) -> int:
        """Return the segment whose word counts at ``step`` for a model that is at ``leaf`` (default: the head)."""
        segment = self.head if leaf is None else leaf
        while step <= self.forks[segment]:
            parent = self.parents[segment]
            assert parent is not None
            segment = parent
        return segment

    def curve(self, leaf: int | None = None) -> list[tuple[int, float]]:
        """Return the rows of what led to ``leaf`` by step."""
        every = [(segment, *row) for segment, rows in self.points().items() for row in rows]
        owned = [(step, value) for segment, step, value in every if self.owner(step, leaf) == segment]
        return sorted(owned, key=lambda row: row[0])

    def entries(self) -> dict[tuple[int, bool], list[tuple[int, float]]]:
        """Return (segment, dead) -> rows by step."""
        found: dict[tuple[int, bool], list[tuple[int, float]]] = {}
        for segment, rows in self.points().items():
            for step, value in rows:
                found.setdefault((segment, self.owner(step) != segment), []).append((step, value))
        return found


@st.composite
def trees(draw: st.DrawFn, most_rows: int = 40) -> Tree:
    """Draw a tree of one to six segments with up to ``most_rows`` rows each."""
    parents: list[int | None] = [None]
    forks = [-1]
    for segment in range(1, draw(st.integers(1, 6))):
        parent = draw(st.integers(0, segment - 1))
        parents.append(parent)
        forks.append(draw(st.integers(forks[parent] + 1, forks[parent] + 60)))
    tree = Tree(parents, forks, draw(st.integers(0, len(forks) - 1)))
    for _ in range(draw(st.integers(1, 8))):
        segment = draw(st.integers(0, len(forks) - 1))
        stride = draw(st.sampled_from([1, 1, 1, 3, 50]))
        first = forks[segment] + 1 + draw(st.integers(0, 80))
        values = draw(st.lists(_NUMBERS, min_size=1, max_size=most_rows))
        each = draw(st.sampled_from([1, 1, 4]))
        steps = [first + stride * (i // each) for i in range(len(values))]
        for at in draw(st.sets(st.integers(1, len(steps)), max_size=3)):
            steps[at - 1 : at + 1] = steps[at - 1 : at + 1][::-1]
        tree.packets.append((segment, steps, values))
    return tree


def same(one: float, other: float) -> bool:
    """Return whether two values are the same fact: NaN is NaN."""
    return one == other or (math.isnan(one) and math.isnan(other))
