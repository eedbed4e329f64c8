"""Discovery of the runs in files and folders, and their frames."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.errors import BadRequest
from stabilityclient.wire import EventBlock, Frame, PointsBlock, SourceInfo
from stabilityplugins.importers.base import Importer, ImportPlan
from stabilityplugins.importers.batches import Batch
from stabilityplugins.importers.detect import find_plans
from stabilityplugins.importers.formats import FORMATS
from stabilityplugins.importers.frames import ROWS_WITH_NOTES
from stabilityplugins.importers.job import ImportJob, Options
from stabilityplugins.importers.problems import Reading
from stabilityplugins.importers.rows.lanes import SIDE_BY_SIDE_ROWS

__all__ = ["Log", "read_files"]

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
    for first, last in _log_pieces(batch.steps, 1 if lane.seq + lane.records == 0 else 0, bool(batch.notes)):
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


def _log_pieces(steps: NDArray[np.int64], alone: int, noted: bool) -> Iterator[tuple[int, int]]:
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


#: A rank, or a node where it is its agent's own stream.
_Lane = tuple[int | None, str]
#: Time of the log call (never falling within a lane), rank of the lane by appearance, number in the lane, content.
_Piece = tuple[float, int, int, SourceInfo, PointsBlock | EventBlock]


def side_by_side(frames: Iterable[Frame]) -> Iterator[Frame]:
    """Yield the same rows and events, the lanes of a run merged by time, in their live order.

    Comparisons of ranks forget a step some hundred steps later, so whole ranks must not follow one another. Within a
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


#: Formats whose rows are in the order of the log, for all ranks: they need not be put side by side by their times.
_IN_ORDER = ("jsonl", "csv", "json_list", "trainer_state", "text_log")


@dataclass
class Log:
    """One run of the past; can be sent to another process before it is read.

    Attributes:
        name: for display: the path as given, or the run's in the folder given.
        plan: the files and their kinds.
        step_key: name of the step's column; None: the usual keys.
        renames: name in the log -> name that it is judged as; empty: the usual other spellings.
        reading: unreadable places and decisions, complete after the last frame.
    """

    name: str
    plan: ImportPlan
    step_key: str | None = None
    renames: Mapping[str, str] = field(default_factory=dict)
    reading: Reading = field(default_factory=Reading)

    def frames(self) -> Iterator[Frame]:
        """Yield the frames, from the beginning.

        Raises:
            BadRequest: nothing in it can be read.
        """
        job = ImportJob(self.plan, Options(step_key=self.step_key, renames=self.renames))
        job.sniff()
        if self.plan.kind in _IN_ORDER and not job.exported:
            frames = log_frames(job.rows())
        else:
            frames = side_by_side(job.frames({}))
        try:
            yield from frames
        finally:
            self.reading = job.reading
        for path, why in self.reading.untimed:
            if why:
                self.reading.note(f"{path}: no times ({why}), so each step counts one second")
        for theirs, ours in job.used_names().items():
            self.reading.note(f"{self.name}: {theirs} is judged as {ours}")


def read_files(
    paths: list[Path],
    *,
    step_key: str | None = None,
    renames: Mapping[str, str] | None = None,
    formats: Sequence[Importer] = FORMATS,
) -> Iterator[Log]:
    """Yield the runs in files and folders, one after the other.

    Args:
        paths: anything that the import reads.
        step_key: name of the step's column; None: the usual keys.
        renames: name in the log -> name that it is judged as; None: the usual other spellings.
        formats: those that are looked for.

    Raises:
        BadRequest: a path is not there or holds no supported format. Paths before it have been yielded.
    """
    for path in paths:
        for plan in find_plans([path], formats=formats):
            if plan.kind == "spool":
                raise BadRequest(
                    f"{plan.paths[0]} is a spool folder, which only its run's server can read",
                    hint="import it (stabilityboard import), then backtest the run by its id",
                )
            yield Log(_name(plan, path), plan, step_key, renames or {})


def _name(plan: ImportPlan, given: Path) -> str:
    one = plan.paths[0]
    name = str(given if not given.is_dir() else one.parent if plan.kind == "tensorboard" else one)
    return f"{name} ({run})" if (run := plan.parts[0].run) else name
