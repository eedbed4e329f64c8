"""Points of both branches of a fork, and of their common past."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.judging.batches.ids import BatchIds
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.lineage.returns import left_by
from stabilitybackend.lineage.tree import PathRange
from stabilitybackend.schema.metric_roles import LOSS, dataset_of, of_machine, role_of
from stabilitybackend.storage.archive.series import SeriesKey
from stabilitybackend.storage.points.store import RunStore

__all__ = ["BranchCurve", "BranchReader", "ForkBranches", "changes_rate", "left_head", "lr_scale"]

#: Steps of a curve before the fork that are read at most, in points of the new branch's stride, and points after it of
#: the discarded branch. Reading and comparing them takes 2 ms.
HISTORY_POINTS = 4_096
#: Metrics compared at most.
MAX_METRICS = 48


@dataclass(frozen=True, slots=True)
class BranchCurve:
    """One metric along one path.

    Attributes:
        steps: int64[n], strictly rising: of a step with several rows the last one. values: float64[n]; NaN and
            infinities as logged.
    """

    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.steps)

    def after(self, step: int) -> BranchCurve:
        """Return the points with a greater step."""
        at = int(np.searchsorted(self.steps, step, side="right"))
        return BranchCurve(self.steps[at:], self.values[at:])

    def up_to(self, step: int) -> BranchCurve:
        """Return the points up to a step."""
        at = int(np.searchsorted(self.steps, step, side="right"))
        return BranchCurve(self.steps[:at], self.values[:at])


class BranchReader(NamedTuple):
    """Source of the branches of a run.

    Attributes:
        ids: of the batches, None for incomparable ones, see ``ids_note``.
        rank: of the compared points; None: no rank logged the compared metrics.
        known_as: returns the name that a metric is judged under, None for none.
    """

    store: RunStore
    fold: LineageFold
    ids: BatchIds | None
    ids_note: str
    rank: int | None
    known_as: Callable[[str], str | None]

    def metrics(self) -> dict[str, str]:
        """Return metric -> the name of its role, of comparable ones, the loss first.

        Then come the losses of the data sets and other roles; speeds, times and readings of the machine never agree and
        are left out. Without a loss it is empty.
        """
        known = {name: self.known_as(name) or name for name in self.store.metrics()}
        loss = self.loss()
        if loss is None:
            return {}
        others = [name for name, role in known.items() if role_of(role) != LOSS and not of_machine(role)]
        others.sort(key=lambda name: (role_of(known[name]) is None and dataset_of(known[name]) is None, name))
        return {loss: LOSS} | {name: known[name] for name in others[:MAX_METRICS]}

    def loss(self) -> str | None:
        """Return the metric judged as the loss, None without one."""
        return next(filter(self.is_loss, self.store.metrics()), None)

    def is_loss(self, metric: str) -> bool:
        """Return whether this metric is judged as the loss."""
        return role_of(self.known_as(metric) or "") == LOSS


@dataclass(frozen=True, slots=True)
class ForkBranches:
    """The two branches of a fork.

    Args:
        run: their source.
        fork_step: their common start.
        old, new: ids of the segments at their ends; ``old`` None where the job did not go back.
        last_step: the newest step of the new branch that counts: a frame may hold later ones already.
    """

    run: BranchReader
    fork_step: int
    old: int | None
    new: int
    last_step: int

    def path(self, head: int) -> Sequence[PathRange]:
        """Return the ranges from the root to a segment."""
        return self.run.fold.tree.path(head)

    def rates(self) -> list[float]:
        """Return the factors that the new learning rate may have over the old one at the same step, by all requested
        changes on both paths. A job may multiply its present rate, that of the checkpoint, or that of its schedule."""
        new = self._scales(self.new)
        old = [1.0] if self.old is None else self._scales(self.old)
        return list(dict.fromkeys([math.prod(new) / math.prod(old), new[-1] / old[-1], self._own_scale()]))

    def _own_scale(self) -> float:
        segment = self.run.fold.tree[self.new]
        return lr_scale(segment.changes) if segment.fork_step == self.fork_step else 1.0

    def _scales(self, head: int) -> list[float]:
        tree = self.run.fold.tree
        found = [lr_scale(tree[part.segment].changes) for part in tree.path(head)]
        return [scale for scale in found if scale != 1] or [1.0]

    def before(self, metric: str, stride: int) -> BranchCurve:
        """Return the newest part of the common past."""
        first = max(0, self.fork_step - HISTORY_POINTS * stride)
        return self._read(metric, self.new, first, self.fork_step)

    def newest(self, metric: str, stride: int, points: int) -> BranchCurve:
        """Return the newest common points."""
        found = self._read(metric, self.new, max(0, self.fork_step - 2 * points * stride), self.fork_step)
        return BranchCurve(found.steps[-points:], found.values[-points:])

    def left(self, metric: str, last: int | None) -> BranchCurve:
        """Return the points of the discarded branch after the fork step, up to ``last``; None: its first points."""
        if self.old is None:
            return BranchCurve(np.empty(0, np.int64), np.empty(0))
        found = self._read(metric, self.old, self.fork_step + 1, last)
        return BranchCurve(found.steps[:HISTORY_POINTS], found.values[:HISTORY_POINTS])

    def again(self, metric: str) -> BranchCurve:
        """Return the points of the new branch after the fork step."""
        return self._read(metric, self.new, self.fork_step + 1, self.last_step)

    def _read(self, metric: str, head: int, first: int, last: int | None) -> BranchCurve:
        steps, values = [], []
        for segment, low, high in self._ranges(head, first, last):
            rows = self.run.store.rows(SeriesKey(metric, segment, self.run.rank, ""), low, high)
            newest = np.append(rows.steps[1:] != rows.steps[:-1], True)[: len(rows)]
            steps.append(rows.steps[newest])
            values.append(rows.values[newest])
        if not steps:
            return BranchCurve(np.empty(0, np.int64), np.empty(0))
        return BranchCurve(np.concatenate(steps), np.concatenate(values))

    def _ranges(self, head: int, first: int, last: int | None) -> Iterator[tuple[int, int, int | None]]:
        for part in self.run.fold.tree.path(head, since=first):
            low = max(first, part.first)
            high = min((end for end in (part.last, last) if end is not None), default=None)
            if high is None or low <= high:
                yield part.segment, low, high


def lr_scale(declared: Mapping[str, object]) -> float:
    """Return the declared factor on the learning rate, 1 for none."""
    scale = declared.get("lr_scale")
    good = isinstance(scale, int | float) and not isinstance(scale, bool) and 0 < scale < math.inf
    return float(scale) if good and isinstance(scale, int | float) else 1.0


def changes_rate(declared: Mapping[str, object]) -> bool:
    """Return whether a free declaration of the job may be about the learning rate."""
    return any(name != "lr_scale" and ("lr" in name or "learning" in name) for name in declared)


def left_head(fold: LineageFold, segment: int) -> int | None:
    """Return the segment that was the head before ``segment`` became it; None where it never did."""
    return left_by(fold.tree, fold.heads, segment)
