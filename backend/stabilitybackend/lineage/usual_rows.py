"""Rows that just go on where their rank is, in the head, as nearly all do: placed without a look at each of them."""

from __future__ import annotations

from collections.abc import Sequence

from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.lineage.sources import SourceState
from stabilityclient.wire import SourceInfo

__all__ = ["go_on", "go_on_in_step", "goes_on", "went_on"]


def goes_on(fold: LineageFold, info: SourceInfo, names: list[str], step: int, time: float) -> SourceState | None:
    """Return where a rank is, if rows from ``step`` and ``time`` on, both rising, would go on there; None where not.

    Nothing is taken: that does ``went_on``.
    """
    state = fold.source(info.source)
    if state is None or state.rank is None or state.rank != info.rank or state.segment != fold.tree.head:
        return None
    if state.watched or step <= fold.tree[state.segment].fork_step:
        return None
    launch = fold.launches.of(state.source)
    if launch is not None and (fold.launches.after(launch) is not None or launch.trained > time):
        return None
    return state if state.high(names) <= step else None


def go_on(fold: LineageFold, source: str, names: list[str], steps: list[int], time: float) -> SourceState | None:
    """Take rows of a rank if they are such, and return where their source is. It is the same as ``fold.block``.

    Args:
        names: of their metrics. steps: of each, rising. time: log time of the last one, unix seconds.

    Returns:
        None where they are not: ``fold.block`` is to be given them, for nothing was taken then.
    """
    state = fold.source(source)
    if state is None or state.rank is None or state.segment != fold.tree.head:
        return None
    if not fold.are_usual(state, names, steps[0], steps[-1], time):
        return None
    state.go_on(names, steps)
    fold.tree[state.segment].saw(steps[0], steps[-1], len(names) * len(steps))
    fold.tree.touch(state.segment)
    return state


def went_on(fold: LineageFold, state: SourceState, names: list[str], steps: list[int], time: float) -> None:
    """Take rows that go on (``goes_on``); arguments as of ``go_on``."""
    state.go_on(names, steps)
    segment, launch = fold.tree[state.segment], fold.launches.of(state.source)
    segment.saw(steps[0], steps[-1], len(names) * len(steps))
    fold.tree.touch(segment.id)
    if launch is not None:
        launch.newest = max(launch.newest, time)


def go_on_in_step(
    fold: LineageFold, infos: Sequence[SourceInfo], names: list[str], step: int, times: Sequence[float]
) -> int | None:
    """Take a row of each of some ranks, all at ``step``, if they are such. It is the same as ``go_on`` for each.

    Args:
        infos: whose rows they are. names: of their metrics. times: their log times, unix seconds.

    Returns:
        Their segment, None where one is not usual: nothing was taken then.
    """
    head = fold.tree.head
    segment = fold.tree[head]
    if step <= segment.fork_step:
        return None
    states = []
    for info in infos:
        state = fold.source(info.source)
        if state is None or state.rank is None or state.segment != head or state.watched:
            return None
        if state.high(names) > step:
            return None
        states.append(state)
    if not fold.launches.go_on(infos, times):
        return None
    for state in states:
        state.go_on(names, [step])
    segment.saw(step, step, len(names) * len(states))
    fold.tree.touch(head)
    return head
