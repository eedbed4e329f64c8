"""Takes a row of each of many ranks at one step, as nodes send them: what holds for all of them is looked up once.

It is the same as ``UsualRows.take`` for one rank after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stabilitybackend.lineage.changes import PlacedInStep
from stabilitybackend.lineage.usual_rows import go_on_in_step
from stabilitybackend.runs.rows.table import Table
from stabilityclient.wire import NodeFrame, SourceInfo

if TYPE_CHECKING:
    from stabilitybackend.runs.changes import Changes
    from stabilitybackend.runs.state import RunState

__all__ = ["ranks_of", "take_in_step"]

#: The blocks of a part that has one row, the next of the message's only table.
_ONE_ROW = [(0, 1)]


def ranks_of(message: NodeFrame) -> list[SourceInfo] | None:
    """Return whose rows a message holds, where these are one of each rank, the ranks rising, all in one table."""
    if len(message.tables) != 1:
        return None
    infos, before = [], -1
    for part in message.parts:
        info = part.source
        if part.blocks != _ONE_ROW or info.rank is None or info.rank <= before:
            return None
        infos.append(info)
        before = info.rank
    return infos


def take_in_step(
    state: RunState, infos: Sequence[SourceInfo], table: Table, start: int, changes: Changes, *, reports: bool
) -> bool:
    """Take the rows of a table from ``start`` on, one of each of ``infos``, whose ranks rise.

    Args:
        changes: get them, and what follows. reports: whether what detectors find is reported.

    Returns:
        False, with nothing done, unless all are at one step and just go on, in the head, above the judged rank.
    """
    step, times, lowest, primary = table.step_list[start], table.time_list[start:], infos[0].rank, state.judge.primary
    if primary is None or lowest is None or lowest <= primary or not table.names:
        return False
    if table.step_list[start:].count(step) != len(infos):
        return False
    if state.stretches.is_of(lowest) or state.launch_sizes.is_of(lowest):
        return False
    segment = go_on_in_step(state.fold, infos, table.names, step, times)
    if segment is None:
        return False
    try:
        state.launch_sizes.seen_again(infos)
        state.liveness.newest_start = state.launch_sizes.newest_start
        rows = PlacedInStep(
            segment, infos, table.names, table.steps[start:], table.times[start:], table.values[:, start:]
        )
        _took(state, rows, table, step, times, changes, reports)
    except Exception as error:  # a mistake of ours; folded again it gives the same: what it did so far is kept
        state.unreadable.whole("points", f"{type(error).__name__}: {error}", infos[0].source, error)
    return True


def _took(
    state: RunState, rows: PlacedInStep, table: Table, step: int, times: list[float], changes: Changes, reports: bool
) -> None:
    changes.placed.append(rows)
    state.summary.add_in_step(rows, state.store, state.fold.tree)
    state.stretches.of_rank(rows.infos[0].rank or 0, (min(times), max(times)))
    state.step_clock.row(step, times[0], primary=False)
    liveness, judge = state.liveness, state.judge
    if not table.own_work:
        state.store.add_in_step(rows)
        for info, time in zip(rows.infos, times, strict=True):
            liveness.logged(info.rank or 0, info.source, step, time)
        found = judge.compare(rows.names, rows.steps, rows.times, rows.values, [info.rank or 0 for info in rows.infos])
        if found and reports:
            state.report(found, changes)
        return
    now = state.clock()
    for placed, time in zip(
        rows.each(), times, strict=True
    ):  # what is found of one is judged beside the ranks below it
        state.store.add(placed)
        liveness.logs_own_work(placed.rank or 0, now)
        liveness.logged(placed.rank or 0, placed.source, step, time)
        found = judge.take_other(placed, [step], [time])
        if found and reports:
            state.report(found, changes)
