"""Loads the points of a run that was taken over from a snapshot: its frames are placed again, and nothing is judged.

Where a row belongs follows from the lineage alone, so the fold of the lineage is all that is done again: from the
newest part's snapshot to the frame of the snapshot that was taken up. It is long work, so each process does it for one
run after the other, those in view first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from redis.asyncio import Redis
from redis.exceptions import RedisError

from stabilitybackend.base.errors import StabilityBoardError
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.base.streams import entries_between
from stabilitybackend.base.tasks import end
from stabilitybackend.base.turns import Turns
from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.lineage.blocks import in_turn
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.runs.archiving import snapshot
from stabilitybackend.runs.archiving.restart_in_redis import TakenOver
from stabilitybackend.runs.archiving.window import FRAME_OVERHEAD_BYTES
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.events import read_event
from stabilitybackend.storage.archive.part import PartReader
from stabilitybackend.storage.points.memtable import Generation
from stabilitybackend.storage.points.unloaded import Outline
from stabilitybackend.storage.redis_link import as_unavailable
from stabilityclient.node_frames import frames_in
from stabilityclient.wire import BadMessage, EventBlock

__all__ = ["OtherPoints", "PointsLoader", "loaded_points", "place"]

#: Pause after Redis or the archive was away, seconds.
AGAIN_AFTER_S = 1.0
_log = logging.getLogger(__name__)


class OtherPoints(StabilityBoardError):
    """The frames do not come to the points that the snapshot speaks of: the run has to be folded again."""

    default_code = "other_points"


class PointsLoader:
    """Loads the points of one run, in its turn.

    Args:
        state: returns the run's. looked_at: returns whether the run is in view now.
        loaded: called when they are there, or can't be.
        clock: unix seconds now.

    Attributes:
        failed: they differ from the snapshot: the run has to be folded again from its parts.
    """

    def __init__(
        self,
        run_id: str,
        redis: Redis,
        turns: Turns,
        state: Callable[[], RunState],
        looked_at: Callable[[], bool],
        loaded: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.failed = False
        self._run_id = run_id
        self._redis = redis
        self._turns = turns
        self._state = state
        self._looked_at = looked_at
        self._loaded = loaded
        self._clock = clock
        self._needed = False
        self._taken: TakenOver | None = None
        self._task: asyncio.Task[Generation | None] | None = None

    def begin(self, taken: TakenOver | None) -> None:
        """Load the points before ``taken``, unless they are there."""
        self._taken, self.failed, self._needed = taken, False, False
        if taken is not None and self._state().store.loading:
            self._task = asyncio.create_task(self._load(taken), name=f"points-{self._run_id}")

    async def needed(self) -> TakenOver | None:
        """Load them now; return the start from which the run can be taken up again, None where the points differ."""
        self._needed = True
        points = None if self._task is None else await self._task
        return None if points is None or self._taken is None else replace(self._taken, points=points)

    async def wait(self) -> None:
        """Wait until all points are there."""
        self._needed = True
        if self._task is not None:
            await asyncio.wait({self._task})

    async def stop(self) -> None:
        """Load no more."""
        await end(self._task)
        self._task = None

    async def _load(self, taken: TakenOver) -> Generation | None:
        store = self._state().store
        try:
            async with self._turns.mine(lambda: self._needed or self._looked_at()):
                points = await self._read(taken)
        except StabilityBoardError as error:
            _log.warning("run %s: it is folded again from its archived parts: %s", self._run_id, error.message)
            self.failed = True
        else:
            points.state = taken.frozen
            store.load(points)
            _log.info("run %s: all points are loaded", self._run_id)
        self._loaded()
        return None if self.failed else points

    async def _read(self, taken: TakenOver) -> Generation:
        state = self._state()
        part = state.store.parts[-1] if state.store.parts else None
        undone = state.fold.undone
        while True:
            try:
                return await loaded_points(self._redis, self._run_id, taken.outline, part, undone, self._clock)
            except (RedisError, OSError) as error:
                if as_unavailable(error) is None:
                    raise
                await asyncio.sleep(AGAIN_AFTER_S)


async def loaded_points(
    redis: Redis,
    run_id: str,
    known: Outline,
    newest_part: PartReader | None,
    undone: Collection[str],
    clock: Callable[[], float],
) -> Generation:
    """Return the points of an outline.

    Args:
        newest_part: of the archived ones, which end where the outline begins.
        undone: keys of inferred segments that a user undid.

    Raises:
        OtherPoints: they are others now.
        SnapshotError, ArchiveError: the part's snapshot can't be used.
        RedisError: Redis is away.
    """
    fold = LineageFold(undone)
    if newest_part is not None:
        fold = (await asyncio.to_thread(lambda: snapshot.load(newest_part.state(), run_id, clock, undone))).fold
    points = Generation(known.begin, 0)
    async for frame_id, message in entries_between(redis, RunKeys(run_id).frames, known.begin, known.end):
        place(points, fold, frame_id, message)
        await asyncio.sleep(0)  # live work goes first
    came = (points.to_id, points.frames, points.bytes, points.values)
    if came != (expected := (known.end, known.frames, known.bytes, known.values)):
        raise OtherPoints(f"the points of run {run_id} are {came}, expected {expected}")
    return points


def place(points: Generation, fold: LineageFold, frame_id: str, message: bytes) -> None:
    """Put the rows of a run's next frame in the places that ``fold``, which continues with it, gives them."""
    points.begin(frame_id, len(message) + FRAME_OVERHEAD_BYTES)
    rows: list[Placed] = []
    for placed in _placed(fold, message):
        rows.append(placed)
        if not placed.more:
            points.add(Batch.of(rows))
            rows = []


def _placed(fold: LineageFold, message: bytes) -> Iterator[Placed]:
    """Yield the rows of a message in their places; messages that the worker passed over are passed over again."""
    try:
        frames = frames_in(message)
    except BadMessage:
        return
    for frame in frames:
        for block in in_turn(frame.blocks):
            try:
                taken = read_event(block)[0] if isinstance(block, EventBlock) else block
                for change in fold.block(frame.source, taken):
                    if isinstance(change, Placed):
                        yield change
            except Exception:
                continue
