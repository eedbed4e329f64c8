"""The incidents of one run: forks and checkpoints that change their state and advice."""

from __future__ import annotations

from stabilitybackend.judging.detection.run_detection import Judge
from stabilitybackend.judging.incidents.incidents import IncidentBook
from stabilitybackend.judging.liveness.world_size import LaunchSizes
from stabilitybackend.lineage.changes import Forked, LineageEvent
from stabilitybackend.lineage.checkpoints import UsableCheckpoints
from stabilitybackend.lineage.consumer import Consumer, Effects
from stabilitybackend.lineage.lineage import Given, Lineage
from stabilitybackend.schema.incidents import RolledBack

__all__ = ["Incidents"]


class Incidents(Consumer):
    """The incidents of a run, stored in Redis. ``Findings`` adds to them."""

    reads = (Given, Lineage, LaunchSizes, Judge)
    events = frozenset({"checkpoint", "checkpoint_gone", "checkpoint_seen"})

    def __init__(self, given: Given, lineage: Lineage, sizes: LaunchSizes, judge: Judge) -> None:
        self.book = IncidentBook(given.run_id)
        self._fold, self._sizes, self._judge = lineage.fold, sizes, judge

    def usable(self) -> UsableCheckpoints:
        """Return the checkpoints that can be gone back to."""
        return self._fold.checkpoints.usable(self._fold.tree, self._sizes.size)

    def event(self, event: LineageEvent, effects: Effects) -> None:
        effects.checkpoints.add(event.data["path"])
        if effects.reports:
            now_step = self._judge.newest_step
            effects.add_incidents(self.book.refresh_suggestions(self.usable(), event.time, now_step))

    def forked(self, fork: Forked, effects: Effects) -> None:
        effects.segments = True
        tree, segment = self._fold.tree, fork.segment
        tree.touch(segment.id)  # also where only its cause is another one now
        if fork.is_head and effects.reports:
            ends = {s: end for s in self.book.segments() if (end := tree.dead_after(s)) is not None}
            fork_step, time = segment.fork_step, segment.created
            by = RolledBack(fork_step, segment.id, segment.reason, segment.changes)
            effects.add_incidents(self.book.rolled_back(ends, time, by, segment.kept_step))
            effects.add_incidents(self.book.refresh_suggestions(self.usable(), time, fork_step))
