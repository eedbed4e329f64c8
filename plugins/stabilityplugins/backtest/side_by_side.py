"""Puts the frames of several ranks into the order of their times: files often hold rank after rank."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np

from stabilityclient.wire import EventBlock, Frame, PointsBlock, SourceInfo
from stabilityplugins.importers.rows.lanes import SIDE_BY_SIDE_ROWS

__all__ = ["side_by_side"]

#: A rank, or a node where it is its agent's own stream.
_Lane = tuple[int | None, str]
#: When it was logged (never falling within a lane), the order in which lanes appeared, its number there, what.
_Piece = tuple[float, int, int, SourceInfo, PointsBlock | EventBlock]


def side_by_side(frames: Iterable[Frame]) -> Iterator[Frame]:
    """Yield the same rows and events, the lanes of a run merged by time as they came when it was live.

    What compares ranks forgets a step some hundred steps later, so they must not come one after the other. Within a
    rank the order stays, over all its restarts. All frames are in memory until they are yielded.
    """
    lanes: dict[_Lane, deque[Frame]] = {}
    for frame in frames:
        info = frame.source
        lanes.setdefault((info.rank, "" if info.rank is not None else info.node), deque()).append(frame)
    if len(lanes) == 1:
        [only] = lanes.values()
        while only:
            yield only.popleft()
        return
    numbers: dict[str, int] = {}
    merged = heapq.merge(*(_pieces(frames, number) for number, frames in enumerate(lanes.values())))
    for _, _, _, info, block in merged:
        first = numbers.get(info.source, 0) + 1
        last = numbers[info.source] = first + (len(block.steps) // 8 if isinstance(block, PointsBlock) else 1) - 1
        yield Frame(info, first, last, [block])


def _pieces(frames: deque[Frame], lane: int) -> Iterator[_Piece]:
    number, moment = 0, 0.0
    while frames:
        frame = frames.popleft()
        for block in frame.blocks:
            for piece in _cut(block):
                time = piece.time if isinstance(piece, EventBlock) else float(np.frombuffer(piece.times, "<f8", 1)[0])
                moment = max(moment, time)
                number += 1
                yield moment, lane, number, frame.source, piece


def _cut(block: PointsBlock | EventBlock) -> Iterator[PointsBlock | EventBlock]:
    if isinstance(block, EventBlock):
        yield block
        return
    rows = len(block.steps) // 8
    values = np.frombuffer(block.values, "<f8").reshape(len(block.names), rows)
    for first in range(0, rows, SIDE_BY_SIDE_ROWS):
        last = min(first + SIDE_BY_SIDE_ROWS, rows)
        part = slice(8 * first, 8 * last)
        yield PointsBlock(
            block.names, block.steps[part], block.times[part], np.ascontiguousarray(values[:, first:last]).tobytes()
        )
