"""Makes frames of a log's rows, as the job's agent would have: each rank a source of its own, with times.

A log without times gets times that follow from its steps alone, so that a backtest gives the same on every machine and
day.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stabilityclient.wire import EventBlock, Frame, PointsBlock, SourceInfo
from stabilityplugins.importers.batches import Batch
from stabilityplugins.importers.frames import ROWS_WITH_NOTES
from stabilityplugins.importers.rows.lanes import SIDE_BY_SIDE_ROWS

__all__ = ["VIRTUAL_START_S", "log_frames"]

#: When a log without times begins, unix seconds: far from 0, which some code takes for "unknown".
VIRTUAL_START_S = 1_000_000_000.0
#: Virtual seconds that a step takes: the same for all, so that no log without times has slow or fast steps.
VIRTUAL_STEP_S = 1.0
#: Rows after one that goes back that are handed over by themselves: the fold decides about them one by one, which costs
#: ten times as much a row, so that the others come in a block of their own. The first row of a rank is such a one too.
ROWS_AFTER_GOING_BACK = 8


@dataclass(slots=True)
class _LoggedRank:
    """One rank of the log."""

    info: SourceInfo
    time: float
    step: int
    seq: int = 0
    blocks: list[PointsBlock | EventBlock] = field(default_factory=list)
    records: int = 0


def log_frames(batches: Iterable[Batch], mark: str = "log") -> Iterator[Frame]:
    """Yield the frames of one log.

    Times that are missing follow from the steps: each step takes VIRTUAL_STEP_S, and going back takes as long as one
    step.

    Args:
        mark: goes into the names of the sources.
    """
    lanes: dict[int, _LoggedRank] = {}
    world_size = 1
    first_step: int | None = None
    last_time = VIRTUAL_START_S
    for batch in batches:
        rank = batch.who.rank
        if rank is None or not len(batch):
            continue
        first_step = int(batch.steps[0]) if first_step is None else first_step
        lane = lanes.get(rank)
        if lane is None:
            ahead = max(int(batch.steps[0]) - first_step, 0)
            start = last_time if batch.timed else VIRTUAL_START_S + VIRTUAL_STEP_S * ahead
            lane = _LoggedRank(SourceInfo(f"r{rank}-{mark}", rank=rank, local_rank=rank), start, int(batch.steps[0]))
            world_size = max(world_size, rank + 1)
        times = batch.times if batch.timed else _virtual(batch.steps, lane)
        if rank not in lanes:
            lane.info.started = float(times[0])
            lanes[rank] = lane
        lane.step, lane.time = int(batch.steps[-1]), float(times[-1])
        last_time = lane.time
        _add(lane, batch, times)
        if len(lanes) == 1 or lane.records >= SIDE_BY_SIDE_ROWS:
            for other in lanes.values():
                yield from _frame(other, world_size)
    for lane in lanes.values():
        yield from _frame(lane, world_size)


def _add(lane: _LoggedRank, batch: Batch, times: NDArray[np.float64]) -> None:
    for first, last in _pieces(batch.steps, 1 if lane.seq + lane.records == 0 else 0, bool(batch.notes)):
        notes = [note for note in batch.notes if batch.items[first] <= note.item <= batch.items[last - 1]]
        for note in notes:
            at = float(times[np.searchsorted(batch.items, note.item)])
            lane.blocks.append(EventBlock(note.type, at, note.step, note.data))
        lane.records += len(notes)
        if batch.names:
            lane.blocks.append(
                PointsBlock(
                    list(batch.names),
                    batch.steps[first:last].astype("<i8").tobytes(),
                    times[first:last].astype("<f8").tobytes(),
                    np.ascontiguousarray(batch.values[:, first:last], "<f8").tobytes(),
                )
            )
            lane.records += last - first


def _pieces(steps: NDArray[np.int64], alone: int, noted: bool) -> Iterator[tuple[int, int]]:
    """Yield (first, last + 1), cut behind the first ``alone`` rows, and where steps go back and some rows later.

    Args:
        noted: whether rows name their data; then no piece is long.
    """
    edges = {0, min(alone, len(steps)), len(steps)}
    if noted:
        edges.update(range(0, len(steps), ROWS_WITH_NOTES))
    for back in (np.flatnonzero(steps[1:] < steps[:-1]) + 1).tolist():
        edges |= {back, min(back + ROWS_AFTER_GOING_BACK, len(steps))}
    ordered = sorted(edges)
    yield from pairwise(ordered)


def _frame(lane: _LoggedRank, world_size: int) -> Iterator[Frame]:
    if not lane.records:
        return
    blocks, records = lane.blocks, lane.records
    lane.blocks, lane.records = [], 0
    lane.info.world_size = world_size
    first, lane.seq = lane.seq + 1, lane.seq + records
    yield Frame(lane.info, first, lane.seq, blocks)


def _virtual(steps: NDArray[np.int64], lane: _LoggedRank) -> NDArray[np.float64]:
    taken = np.diff(steps, prepend=lane.step)
    taken[taken < 0] = 1
    return lane.time + VIRTUAL_STEP_S * np.cumsum(taken)
