"""Writes down from time to time how far one run is folded, so that a restarted server judges it without delay.

A restart folds the frames since then again. So a run is written down every EVERY_ROWS rows or EVERY_S seconds,
and never more often than its price allows: folding took FOLD_A_WRITE times as long since, less while all runs together
have much to fold again. With a usual run that is a millisecond for each 50 ms of folding; one with a huge state is
written down less often by itself, and one whose state takes longer than MAX_STOP_S to copy only when a generation is
sealed, where it is copied anyhow.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from msgspec.structs import replace
from redis.exceptions import RedisError

from stabilitybackend.base.errors import SnapshotError
from stabilitybackend.base.streams import stream_order
from stabilitybackend.base.tasks import end
from stabilitybackend.runs.archiving import snapshot
from stabilitybackend.runs.archiving.restart_files import FoldHead, Found, RestartShare, frame_checksum
from stabilitybackend.runs.archiving.restart_in_redis import InRedis, TakenOver
from stabilitybackend.runs.archiving.restart_on_disk import OnDisk
from stabilitybackend.runs.ownership.fence import Fence, NotOwner
from stabilitybackend.runs.state import RunState
from stabilitybackend.storage.points.memtable import Generation
from stabilitybackend.storage.points.store import RunStore

__all__ = ["RestartPoints", "place_of"]

#: A run is written down after so many rows, or so many seconds, whichever comes first.
EVERY_ROWS = 256
EVERY_S = 30.0
#: Time of folding that has to lie between two writes, as a multiple of the CPU time of one: their share is at most 2 %.
FOLD_A_WRITE = 50.0
#: The same while all runs together have more to fold again than AGAIN_S, seconds: a restart is to end within 5 s.
FOLD_A_WRITE_BEHIND = 10.0
AGAIN_S = 2.0
#: Writes over which the price is a mean: their numbers of rows differ.
COSTS = 4
#: A state that takes longer to copy is copied when a generation is sealed and never else: the event loop is blocked
#: meanwhile, seconds.
MAX_STOP_S = 0.02
#: Pause after a file could not be written, seconds.
AGAIN_AFTER_S = 30.0

T = TypeVar("T")
_log = logging.getLogger(__name__)


class RestartPoints:
    """How far one run is written down.

    Args:
        share: the counts.
        place: where it is written down; None for nowhere.
        clock: unix seconds now.
        cpu: CPU seconds of the calling thread; the wait for the disk delays nothing.
        elapsed: seconds; folding waits for nothing, and asking for CPU time at each small frame costs a twentieth.
    """

    def __init__(
        self,
        run_id: str,
        share: RestartShare,
        place: OnDisk | InRedis | None,
        clock: Callable[[], float],
        cpu: Callable[[], float] = time.thread_time,
        elapsed: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._cpu, self._elapsed = cpu, elapsed
        self._share = share
        self._folded_s = 0.0
        self._run_id = run_id
        #: Contents of Redis for the run that it has lost since; empty while no loss is on record.
        self.lost = ""
        self._place = place
        self._offered: TakenOver | None = None
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._restarted()

    def _restarted(self) -> None:
        #: Snapshot in Redis from which the run was taken up, if any.
        self.taken: TakenOver | None = None
        #: Stream id up to which the results of frames are stored in Redis.
        self._applied = "0-0"
        self._cut: tuple[Generation, FoldHead] | None = None
        self._head: FoldHead | None = None
        self._newest = ""
        self._order = 0
        self._time = self._clock()
        self._costs_s: deque[float] = deque(maxlen=COSTS)
        self._stop_s = 0.0
        self._again_at = float("-inf")
        if self._place is not None:
            self._place.reset()
        self._folded_again(0.0)

    def _folded_again(self, seconds: float) -> None:
        """Set how much of this run a restart would have to fold again."""
        self._share.unwritten_s += seconds - self._folded_s
        self._folded_s = seconds

    # --- after a restart -----------------------------------------------------------------------------------------

    async def find(
        self, after: str, applied: str, stored: Callable[[str], Awaitable[bytes | None]]
    ) -> Found | TakenOver | None:
        """Return the record of the run beyond its archived parts; None without a usable one.

        Args:
            after: stream id where the parts end.
            applied: stream id up to which Redis holds the results of frames.
            stored: returns the message that the run's stream holds at an id.
        """
        offered, self._offered = self._offered, None
        if self._place is None:
            return None
        found: Found | TakenOver | None
        try:
            found = offered if offered is not None and offered.outline.begin == after else await self._place.find(after)
        except SnapshotError as error:
            self._pass_over(error.message)
            return None
        if found is None:
            return None
        message = await stored(found.head.to_id)
        if message is None or frame_checksum(message) != found.head.checksum:
            until = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(stream_order(found.head.to_id)[0] / 1000))
            self.lost = (
                f"Redis came up with less of this run than it had: without rows that came up to {until}. Agents that "
                "still have them send them again; else they are lost"
            )
            self._pass_over(f"{self.lost}. Was its append-only file cut? See its log")
            return None
        if stream_order(applied) < stream_order(found.head.applied):
            self._pass_over("Redis has lost what was found in it")
            return None
        return found

    def offer(self, found: TakenOver | None) -> None:
        """Let ``find`` return this: the points before the snapshot have been loaded."""
        self._offered = found

    def _pass_over(self, why: str) -> None:
        self._share.counts["passed_over"] += 1
        _log.warning("run %s: %s", self._run_id, why)

    async def go_on(self, store: RunStore, found: Any) -> None:
        """Write down from now on the rows and frames after ``found``, which is in ``store``."""
        self._restarted()
        self._newest, self._order = found.head.to_id, store.open.order
        self.taken = found if isinstance(found, TakenOver) else None
        self._share.counts["taken_up"] += 1
        assert self._place is not None
        try:
            await self._place.go_on(store, found)
        except OSError as error:
            self._trouble(error)

    async def forget(self) -> None:
        """Remove the record: it holds no longer, or is archived whole.

        Raises:
            RedisError: Redis is away.
        """
        await self.stop()
        self._restarted()
        if self._place is not None:
            await self._place.forget()

    # --- while it runs -------------------------------------------------------------------------------------------

    def folding(self, fold: Callable[[], T]) -> T:
        """Return the result of ``fold``; its duration decides when the next write pays."""
        begin = self._elapsed()
        found = fold()
        spent_s = self._elapsed() - begin
        self._folded_again(self._folded_s + spent_s)
        self._share.folding_s[self._run_id] = self._share.folding_s.get(self._run_id, 0.0) + spent_s
        return found

    def sealed(self, store: RunStore, message: bytes) -> None:
        """Note that the newest generation but the open one has just been sealed, with ``message`` as its last frame."""
        generation = store.generations[-2]
        self._cut = (generation, FoldHead(self._run_id, generation.to_id, frame_checksum(message)))

    def concluded(self, to_id: str, message: bytes, applied: str) -> None:
        """Note the newest frame that is folded, and of which all that follows is stored.

        Args:
            applied: stream id of the last frame with stored results; not all frames have any.
        """
        if self._place is not None:
            self._applied = applied
            self._head = FoldHead(self._run_id, to_id, frame_checksum(message))

    def write_when_due(self, state: RunState) -> None:
        """Write the run down when it is due: call it also when no frame comes, others may have become expensive."""
        store, now, head = state.store, self._clock(), self._head
        waits = self._task is not None and not self._task.done()
        if self._place is None or head is None or waits or state.reconciling or head.to_id == self._newest:
            return
        if self._again_at - AGAIN_AFTER_S <= now < self._again_at:  # else it is time, or the clock was put back
            return
        if store.open.order - self._order < EVERY_ROWS and 0 <= now - self._time < EVERY_S:
            return
        least = FOLD_A_WRITE if self._share.unwritten_s < AGAIN_S else FOLD_A_WRITE_BEHIND
        if self._costs_s and self._folded_s < least * statistics.fmean(self._costs_s):
            return
        begin = self._cpu()
        if self._stop_s <= MAX_STOP_S:
            frozen, last = snapshot.freeze(state), store.open
            self._stop_s = self._cpu() - begin
        elif self._cut is not None and self._cut[0] in store.generations and self._cut[0].state is not None:
            last, head = self._cut
            frozen = last.state or b""
        else:
            return
        head = replace(head, applied=self._applied)
        self._cut, self._newest = None, head.to_id
        self._order, self._time = store.open.order, now
        self._folded_again(0.0)
        write = self._place.copied(store, last, head, frozen)
        self._task = asyncio.create_task(self._write(write, self._cpu() - begin), name=f"restart-{self._run_id}")

    async def _write(self, write: Callable[[], Awaitable[float]], spent_s: float) -> None:
        try:
            self._costs_s.append(spent_s + await write())
        except NotOwner:
            return  # the run's follower drops it
        except (RedisError, OSError) as error:
            self._trouble(error)
        else:
            self._share.counts["written"] += 1

    def _trouble(self, error: Exception) -> None:
        self._share.counts["failed"] += 1
        self._newest = ""
        if self._place is not None:
            self._place.reset()  # the unfinished record may end anywhere
        self._again_at = self._clock() + AGAIN_AFTER_S
        _log.warning("run %s: not written down, a restart will take longer: %s", self._run_id, error)

    async def write_last(self, state: RunState) -> None:
        """Write the current run down, for the worker that takes it over now."""
        head, last = self._head, state.store.open
        if not isinstance(self._place, InRedis) or head is None or state.reconciling:
            return
        if self._newest != head.to_id == last.to_id:  # else it was stopped within a batch
            self._newest = head.to_id
            head = replace(head, applied=self._applied)
            await self._write(self._place.copied(state.store, last, head, snapshot.freeze(state)), 0.0)

    async def stop(self) -> None:
        """Wait for the write under way; the run is followed no longer."""
        if self._task is not None:
            await end(self._task)
        self._folded_again(0.0)


def place_of(run_id: str, share: RestartShare, fence: Fence) -> OnDisk | InRedis | None:
    """Return where a run is written down."""
    if share.in_redis and not fence.reads_only:
        return InRedis(run_id, fence)
    return OnDisk(run_id, share.folder) if share.folder is not None else None
