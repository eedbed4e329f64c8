"""Takes rows that found their segment into a run's state: what follows from them, in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stabilitybackend.base.name_sets import key_of
from stabilitybackend.judging.detectors.straggler import reports_own_work
from stabilitybackend.lineage.changes import Placed
from stabilitybackend.runs.changes import Changes
from stabilityclient.wire import started_ns

if TYPE_CHECKING:
    from stabilitybackend.runs.state import RunState

__all__ = ["take_rows"]


def take_rows(state: RunState, together: list[Placed], changes: Changes, *, replayed: bool) -> None:
    """Take rows of one process, of several sets of metrics where these were logged in turn.

    Args:
        replayed: as for ``RunState.apply``.
    """
    own_work = False
    for placed in together:
        state.summary.add(placed, state.store, state.fold.tree)
        state.store.add(placed)
        changes.placed.append(placed)
        own_work = own_work or reports_own_work(key_of(placed.names))
    placed = together[0]
    if len(together) > 1:  # what reached furthest is evidence for all of them
        placed = max(together, key=lambda one: int(one.steps[-1]))
    first = int(together[0].steps[0])
    if placed.rank is None:
        state.gpu_readings.take(placed)
    if placed.stray or placed.rank is None:
        return
    state.stretches.rows(placed, state.launch_sizes.size)
    if not replayed:
        # Not only for the first rows by the segment's count: that is ahead of us while a frame holds more of them.
        segment, time, started = state.fold.tree[placed.segment], float(placed.times[0]), started_ns(placed.source)
        changes.add_commands(state.commands.on_points(segment.id, segment.key, first, time))
        changes.add_commands(state.commands.on_row(placed.node, started, segment.id, first, time))
    state.launch_sizes.row(placed.source, first, int(placed.steps[-1]))
    if own_work:
        state.liveness.logs_own_work(placed.rank, state.clock())
    state.liveness.logged(placed.rank, placed.source, first, float(placed.times[0]))
    last, end = int(placed.steps[-1]), float(placed.times[-1])
    if len(placed.steps) > 1:
        rows = int((placed.steps[1:] > placed.steps[:-1]).sum())
        state.liveness.logged(placed.rank, placed.source, last, end, rows)
    if placed.segment == state.fold.tree.head:
        state.step_clock.row(last, end, primary=placed.rank == state.judge.primary)
    found = [*state.judge.take(together), *state.batches.rows(state.fold)]
    found += state.resumes.take(together, state.launch_sizes.size)
    if not replayed or state.reconciling:
        judged = placed.segment == state.fold.tree.head and placed.rank == state.judge.primary
        state.report(found, changes, together if judged else ())
