"""Folds a message with the rows of many ranks: those that just go on, as nearly all do, straight from its tables.

It is the same as its frames one after another (``apart``). What is asked of all ranks alike (is a command waiting, who
compares these metrics) is asked once for a table; a rank that does anything else comes as a frame of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from stabilitybackend.detectors.straggler import reports_own_work
from stabilitybackend.lineage.changes import Placed
from stabilitybackend.lineage.sources import SourceState
from stabilitybackend.lineage.usual_rows import go_on
from stabilitybackend.runs.changes import Changes
from stabilityclient.node_frames import frame_of
from stabilityclient.wire import EventBlock, Frame, FramePart, NodeFrame, PointsBlock

if TYPE_CHECKING:
    from stabilitybackend.runs.state import RunState

__all__ = ["fold_node_frame"]


def fold_node_frame(
    state: RunState, message: NodeFrame, changes: Changes, fold: Callable[[Frame], None], *, replayed: bool
) -> None:
    """Fold a message that ``decode_message`` has read.

    Args:
        changes: get what it changed.
        fold: folds one frame, for what is not usual.
        replayed: as for ``RunState.apply``.
    """
    at = [0] * len(message.tables)
    tables: list[_Table | None] = [None] * len(message.tables)
    usual: _UsualRows | None = None
    for part in message.parts:
        block = part.blocks[0] if len(part.blocks) == 1 else None
        if block is not None and not isinstance(block, EventBlock):
            number, count = block
            table = tables[number]
            if table is None:
                table = tables[number] = _Table(message.tables[number])
            if usual is None:
                usual = _UsualRows(state, changes, replayed)
            if usual.take(part, table, at[number], at[number] + count):
                at[number] += count
                continue
        usual = None  # what holds for the ranks after it may be another thing
        fold(frame_of(message, part, at))
    state.liveness.newest_start = state.launch_sizes.newest_start


class _Table:
    """A table of a message as arrays, and its steps and times as Python's numbers."""

    def __init__(self, block: PointsBlock) -> None:
        self.names = block.names
        self.steps = np.frombuffer(block.steps, dtype="<i8")
        self.times = np.frombuffer(block.times, dtype="<f8")
        self.values = np.frombuffer(block.values, dtype="<f8").reshape(len(block.names), len(self.steps))
        self.step_list: list[int] = self.steps.tolist()
        self.time_list: list[float] = self.times.tolist()
        self.own_work = reports_own_work(tuple(block.names))


class _UsualRows:
    """Takes rows of ranks that are not the judged one, into the head, as long as nothing unusual comes."""

    def __init__(self, state: RunState, changes: Changes, replayed: bool) -> None:
        self._state, self._changes = state, changes
        self._reports = not replayed or state.reconciling
        self._now = state.clock()
        tree, commands = state.fold.tree, state.commands
        awaited = commands.get(tree[tree.head].key) is not None or commands.restart_under_way() is not None
        #: Whether rows may be taken at all: nobody waits for the first one after something.
        self._open = state.judge.primary is not None and not awaited and not state.batches.waits

    def take(self, part: FramePart, table: _Table, start: int, stop: int) -> bool:
        """Take some rows of a table; return False, with nothing done, where they are not usual."""
        state, info = self._state, part.source
        primary = state.judge.primary
        if not self._open or info.rank is None or primary is None or info.rank <= primary or start == stop:
            return False
        steps, times = table.step_list[start:stop], table.time_list[start:stop]
        if not table.names or (len(steps) > 1 and any(later < step for step, later in pairwise(steps))):
            return False
        source = go_on(state.fold, info.source, table.names, steps, times[-1])
        if source is None:
            return False
        try:
            self._took(part, source, table, slice(start, stop), steps, times)
        except Exception as error:  # a mistake of ours; folded again it gives the same: what it did so far is kept
            state.unreadable.whole("points", f"{type(error).__name__}: {error}", info.source, error)
        return True

    def _took(
        self, part: FramePart, source: SourceState, table: _Table, rows: slice, steps: list[int], times: list[float]
    ) -> None:
        """Do what ``take_rows`` does for such rows, in the same order."""
        state, rank = self._state, source.rank
        assert rank is not None
        placed = Placed(
            source.segment, source.source, rank, source.node,
            table.names, table.steps[rows], table.times[rows], table.values[:, rows],
        )  # fmt: skip
        state.launch_sizes.seen(part.source)
        state.summary.add(placed, state.store, state.fold.tree)
        state.store.add(placed)
        self._changes.placed.append(placed)
        if state.stretches.of_rank(rank, (times[0], times[-1])):
            state.stretches.rows(placed, state.launch_sizes.size)
        state.launch_sizes.row(source.source, steps[0], steps[-1])
        liveness = state.liveness
        if table.own_work:
            liveness.logs_own_work(rank, self._now)
        liveness.logged(rank, source.source, steps[0], times[0])
        if len(steps) > 1:
            different = sum(later > step for step, later in pairwise(steps))
            liveness.logged(rank, source.source, steps[-1], times[-1], different)
        state.step_clock.in_step(steps[-1] + 1)
        found = state.judge.take_other(placed, steps, times)
        if found and self._reports:
            state.report(found, self._changes)
