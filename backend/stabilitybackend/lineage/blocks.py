"""Blocks of a frame that hold one stretch of steps: sets of metrics that were logged in turn.

Agents gather the rows of such sets by their set, which costs a tenth of a block a row. To which segment they belong and
the order for detectors is as if they had come row by row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from stabilitybackend.lineage.batch import Placed
from stabilitybackend.lineage.sources import SourceState
from stabilityclient.wire import MAX_SETS_IN_TURN, EventBlock, PointsBlock

__all__ = ["in_turn", "one_by_one", "rows_of"]


def in_turn(blocks: Sequence[PointsBlock | EventBlock]) -> Iterator[list[PointsBlock] | EventBlock]:
    """Yield events alone, and points together whose steps rise with time and of which no metric is in two blocks."""
    together = _Together()
    for block in blocks:
        if isinstance(block, EventBlock):
            if together.blocks:
                yield together.blocks
                together = _Together()
            yield block
        elif block.steps and not together.takes(block):
            yield together.blocks
            together = _Together()
            together.takes(block)
    if together.blocks:
        yield together.blocks


class _Together:
    """Points of one stretch of steps, as they are gathered."""

    def __init__(self) -> None:
        self.blocks: list[PointsBlock] = []
        self._names: set[str] = set()
        #: Step and time of the newest row, where the blocks arrived one behind the other; else NaN.
        self._end = (math.nan, math.nan)

    def takes(self, block: PointsBlock) -> bool:
        """Add a block, and return True; or return False where it is not of the same stretch."""
        first, last = _ends(block)
        # Mostly one set of metrics is behind the one before: then the earlier ones need not be looked at again.
        behind = self._end[0] <= first[0] and self._end[1] <= first[1]
        if self.blocks:
            self._names.update(self.blocks[-1].names)  # not before: mostly a set is alone
            if not (
                len(self.blocks) < MAX_SETS_IN_TURN
                and self._names.isdisjoint(block.names)
                and (behind or _rising([*self.blocks, block]))
            ):
                return False
        self._end = last if behind or not self.blocks else (math.nan, math.nan)
        self.blocks.append(block)
        return True


def _ends(block: PointsBlock) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return step and time of the first and the last row; NaN where the rows of the block are in another order."""
    steps, times = np.frombuffer(block.steps, dtype="<i8"), np.frombuffer(block.times, dtype="<f8")
    if len(steps) > 1 and not ((steps[1:] >= steps[:-1]).all() and (times[1:] >= times[:-1]).all()):
        return (math.nan, math.nan), (math.nan, math.nan)
    return (int(steps[0]), float(times[0])), (int(steps[-1]), float(times[-1]))


def rows_of(state: SourceState, block: PointsBlock) -> Placed:
    """Return the rows of a block, in the segment that their source is in."""
    steps = np.frombuffer(block.steps, dtype="<i8")
    times = np.frombuffer(block.times, dtype="<f8")
    values = np.frombuffer(block.values, dtype="<f8").reshape(len(block.names), len(steps))
    return Placed(state.segment, state.source, state.rank, state.node, block.names, steps, times, values)


def one_by_one(blocks: list[Placed]) -> Iterator[Placed]:
    """Yield the rows of some blocks, each alone: of one block in order of arrival, of several by step and time."""
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
