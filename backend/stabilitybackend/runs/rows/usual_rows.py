"""Folds messages: rows of ranks that just go on, as nearly all do, straight from the message's tables.

It is the same as its frames one after another through ``RunState.apply``, which gets all others. What holds for all
ranks alike (does a command wait for a row) is looked up once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from operator import lt
from typing import TYPE_CHECKING

from stabilitybackend.lineage.changes import Placed
from stabilitybackend.lineage.sources import SourceState
from stabilitybackend.lineage.usual_rows import go_on
from stabilitybackend.runs.changes import Changes
from stabilitybackend.runs.rows.in_step import ranks_of, take_in_step
from stabilitybackend.runs.rows.table import Table
from stabilityclient.node_frames import frame_of
from stabilityclient.wire import Frame, NodeFrame, PointsBlock, SourceInfo

if TYPE_CHECKING:
    from stabilitybackend.runs.state import RunState

__all__ = ["fold_message", "takes_usual"]


def fold_message(
    state: RunState, message: Frame | NodeFrame, changes: Changes, fold: Callable[[Frame], None], *, replayed: bool
) -> None:
    """Fold a message that ``decode_message`` has read.

    Args:
        changes: get what it changed.
        fold: folds one frame, for what is not usual.
        replayed: as for ``RunState.apply``.
    """
    state.metric_names.bound(message)
    if isinstance(message, Frame):
        block = message.blocks[0] if len(message.blocks) == 1 else None
        if not isinstance(block, PointsBlock) or not _UsualRows(state, changes, replayed).take(
            message.source, Table(block), 0, len(block.steps) // 8
        ):
            fold(message)
        return
    at = [0] * len(message.tables)
    tables: list[Table | None] = [None] * len(message.tables)
    usual: _UsualRows | None = None
    parts = message.parts
    if (infos := ranks_of(message)) is not None:
        usual, rows_of_all = _UsualRows(state, changes, replayed), Table(message.tables[0])
        taken = usual.take_in_step(infos, rows_of_all)
        at, tables, parts = [taken], [rows_of_all], parts[taken:]
    for part in parts:
        rows = part.blocks[0] if len(part.blocks) == 1 else None
        if isinstance(rows, tuple):
            number, count = rows
            table = tables[number]
            if table is None:
                table = tables[number] = Table(message.tables[number])
            if usual is None:
                usual = _UsualRows(state, changes, replayed)
            if usual.take(part.source, table, at[number], at[number] + count):
                at[number] += count
                continue
        usual = None  # what holds for the ranks after it may be another thing
        fold(frame_of(message, part, at))


def takes_usual(state: RunState) -> bool:
    """Return whether rows may be taken as usual ones at all: nobody waits for the first one after something."""
    tree, commands = state.fold.tree, state.commands
    awaited = commands.get(tree[tree.head].key) is not None or commands.restart_under_way() is not None
    return state.judge.primary_known and not awaited and not state.batches.waits


class _UsualRows:
    """Takes rows of the judged rank and of those above it, into the head, as long as nothing unusual comes."""

    def __init__(self, state: RunState, changes: Changes, replayed: bool) -> None:
        self._state, self._changes = state, changes
        self._reports = not replayed or state.reconciling
        self._now = state.clock()
        self._open = takes_usual(state)

    def take(self, info: SourceInfo, table: Table, start: int, stop: int) -> bool:
        """Take some rows of a table; return False, with nothing done, where they are not usual."""
        state, primary = self._state, self._state.judge.primary
        if not self._open or info.rank is None or primary is None or info.rank < primary or start == stop:
            return False
        if not table.names or not table.rises(start, stop):
            return False
        steps, times = table.step_list[start:stop], table.time_list[start:stop]
        source = go_on(state.fold, info.source, table.names, steps, times[-1])
        if source is None:
            return False
        try:
            state.launch_sizes.seen(info)
            state.liveness.newest_start = state.launch_sizes.newest_start
            self._took(source, table, slice(start, stop), steps, times)
        except Exception as error:  # a mistake of ours; folded again it gives the same: what it did so far is kept
            state.unreadable.whole("points", f"{type(error).__name__}: {error}", info.source, error)
        return True

    def take_in_step(self, infos: list[SourceInfo], table: Table) -> int:
        """Take the rows of a table, one of each of ``infos``, whose ranks rise; return how many were taken."""
        state, taken = self._state, 0
        if infos[0].rank == state.judge.primary:
            if not self.take(infos[0], table, 0, 1):
                return 0
            taken = 1
        if not self._open or not take_in_step(state, infos[taken:], table, taken, self._changes, reports=self._reports):
            return taken
        return len(infos)

    def _took(self, source: SourceState, table: Table, rows: slice, steps: list[int], times: list[float]) -> None:
        """Do what ``take_rows`` does for such rows, in the same order."""
        state, rank = self._state, source.rank
        assert rank is not None
        placed = Placed(
            source.segment, source.source, rank, source.node,
            table.names, table.steps[rows], table.times[rows], table.values[:, rows],
        )  # fmt: skip
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
            different = sum(map(lt, steps, islice(steps, 1, None)))
            liveness.logged(rank, source.source, steps[-1], times[-1], different)
        judged = rank == state.judge.primary
        state.step_clock.row(steps[-1], times[-1], primary=judged)
        if not judged:
            found = state.judge.take_other(placed, steps, times)
            if found and self._reports:
                state.report(found, self._changes)
            return
        found = [*state.judge.take([placed]), *state.resumes.take([placed], state.launch_sizes.size)]
        if self._reports:
            state.report(found, self._changes, [placed])
