"""Blocks of a frame that hold one stretch of steps: sets of metrics that were logged in turn.

Agents gather the rows of such sets by their set, which costs a tenth of a block a row. To which segment they belong and
the order for detectors is as if they had come row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stabilitybackend.lineage.changes import Placed
from stabilitybackend.lineage.sources import SourceState
from stabilityclient.wire import MAX_SETS_IN_TURN, EventBlock, PointsBlock

__all__ = ["in_turn", "one_by_one", "rows_of"]


def in_turn(blocks: Sequence[PointsBlock | EventBlock]) -> Iterator[list[PointsBlock] | EventBlock]:
    """Yield events alone, and points together whose steps rise with time and of which no metric is in two blocks."""
    together: list[PointsBlock] = []
    names: set[str] = set()
    for block in blocks:
        if isinstance(block, PointsBlock):
            if not block.steps:
                continue
            if together and not (
                len(together) < MAX_SETS_IN_TURN and names.isdisjoint(block.names) and _rising([*together, block])
            ):
                yield together
                together, names = [], set()
            together.append(block)
            names.update(block.names)
            continue
        if together:
            yield together
            together, names = [], set()
        yield block
    if together:
        yield together


def rows_of(state: SourceState, block: PointsBlock) -> Placed:
    """Return the rows of a block, in the segment that their source is in."""
    steps = np.frombuffer(block.steps, dtype="<i8")
    times = np.frombuffer(block.times, dtype="<f8")
    values = np.frombuffer(block.values, dtype="<f8").reshape(len(block.names), len(steps))
    return Placed(state.segment, state.source, state.rank, state.node, block.names, steps, times, values)


def one_by_one(blocks: list[Placed]) -> Iterator[Placed]:
    """Yield the rows of some blocks, each alone: of one block as they came, of several by step and time."""
    places = [
        (int(step), float(time), at, row)
        for at, block in enumerate(blocks)
        for row, (step, time) in enumerate(zip(block.steps, block.times, strict=True))
    ]
    for _, _, at, row in places if len(blocks) == 1 else sorted(places):
        yield blocks[at].at(blocks[at].segment, slice(row, row + 1))


def _rising(blocks: Sequence[PointsBlock]) -> bool:
    """Whether the rows of some blocks, in the order of their times, have steps that never go back."""
    steps = np.concatenate([np.frombuffer(block.steps, dtype="<i8") for block in blocks])
    times = np.concatenate([np.frombuffer(block.times, dtype="<f8") for block in blocks])
    in_time = steps[np.argsort(times, kind="stable")]
    return bool((in_time[1:] >= in_time[:-1]).all())
