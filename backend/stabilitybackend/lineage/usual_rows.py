"""Rows that just go on where their rank is, in the head, as nearly all do: placed without a look at each of them."""

from __future__ import annotations

from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.lineage.sources import SourceState

__all__ = ["go_on"]


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
    state.go_on(names, steps[-1], steps[-2] if len(steps) > 1 else None)
    fold.tree[state.segment].saw(steps[0], steps[-1], len(names) * len(steps))
    fold.tree.touch(state.segment)
    return state
