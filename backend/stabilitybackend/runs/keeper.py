"""Keeps the window of one run bounded: cuts what came into generations, has the oldest archived, says when it can't."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from stabilitybackend.errors import ArchiveError, Unavailable
from stabilitybackend.runs import snapshot
from stabilitybackend.runs.archiver import RunArchive
from stabilitybackend.runs.live import stream_order
from stabilitybackend.runs.state import RunState
from stabilitybackend.runs.store import RunStore
from stabilitybackend.tasks import end

__all__ = ["FRAME_OVERHEAD_BYTES", "WindowKeeper"]

#: What Redis needs for a stream entry beside the message itself, bytes (sequence numbers, source, its share of a node).
FRAME_OVERHEAD_BYTES = 96
#: A generation is sealed at this share of the window: a snapshot of the fold is taken as often.
GENERATIONS_A_WINDOW = 8
#: When the window is full, the oldest generations that make up this share of it become one part.
ARCHIVED_SHARE = 0.5
#: Nothing more is taken from agents while the stream is this many times larger than the window.
FULL_AT_WINDOWS = 2.0
#: Longest wait of a frame for room, seconds; then its agent keeps it and tries again.
ROOM_TIMEOUT_S = 5.0
#: Pause after the archive could not be written, seconds.
AGAIN_AFTER_S = 5.0
#: Files that were merged into others are kept for charts that are being read, seconds.
SWEEP_AFTER_S = 10.0
#: Longest time that stopping waits for a part that is being written, seconds. Killed halfway it is only garbage.
STOP_TIMEOUT_S = 2.0

_log = logging.getLogger(__name__)


class WindowKeeper:
    """Bounds what Redis and memory hold of a run.

    Args:
        run_id: the run.
        archive: where its oldest frames go.
        limit_bytes: the window: bytes of frames that the stream holds.
        clock: unix seconds now.
        changed: called when the archive has taken something over, or could not.
    """

    def __init__(
        self,
        run_id: str,
        archive: RunArchive,
        limit_bytes: int,
        clock: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        self.limit_bytes = limit_bytes
        #: Why the archive could not be written the last time, empty when it could.
        self.problem = ""
        self._run_id = run_id
        self._archive = archive
        self._clock = clock
        self._changed = changed
        self._task: asyncio.Task[None] | None = None
        self._again_at = float("-inf")
        self._sweep_at = float("inf")
        #: Bytes that agents have stored and the worker has not read yet.
        self._ahead = 0
        self._room = asyncio.Event()
        self._room.set()

    # --- the stream ----------------------------------------------------------------------------------------------

    def arrived(self, store: RunStore, size: int) -> None:
        """Note that ``size`` bytes went into the stream."""
        self._ahead += size + FRAME_OVERHEAD_BYTES
        self._weigh(store)

    def read(self, state: RunState, frame_id: str, size: int) -> None:
        """Note that the worker takes the frame ``frame_id`` of ``size`` bytes now."""
        weight = size + FRAME_OVERHEAD_BYTES
        self._ahead = max(0, self._ahead - weight)
        state.store.begin(frame_id, weight)

    def cut_when_due(self, state: RunState) -> None:
        """Seal the open generation when it is large enough. Call it between two frames."""
        if state.store.open.bytes * GENERATIONS_A_WINDOW >= self.limit_bytes:
            state.store.cut(snapshot.freeze(state))

    def _weigh(self, store: RunStore) -> None:
        if self._ahead + store.hot_bytes < FULL_AT_WINDOWS * self.limit_bytes:
            self._room.set()
        else:
            self._room.clear()

    async def room(self) -> None:
        """Wait until the stream may grow.

        Raises:
            Unavailable: it may not for now; the message says why.
        """
        if self._room.is_set():
            return
        try:
            await asyncio.wait_for(self._room.wait(), ROOM_TIMEOUT_S)
        except TimeoutError:
            why = self.problem or "the archive is written more slowly than points come"
            raise Unavailable(
                f"the window of run {self._run_id} is full: {why}",
                hint="nothing is lost: agents keep what is not confirmed and send it again",
                code="window_full",
            ) from None

    # --- archiving -----------------------------------------------------------------------------------------------

    def archive_when_due(self, state: RunState, stored_to: Callable[[], str]) -> None:
        """Start to archive when the window is full.

        Args:
            stored_to: stream id up to which all that follows from frames is stored; nothing after it may leave.
        """
        self._weigh(state.store)
        busy = self._task is not None and not self._task.done()
        if busy or self._clock() < self._again_at:
            return
        if state.store.hot_bytes > self.limit_bytes:
            self._task = asyncio.create_task(self._shrink(state.store, stored_to), name=f"archive-{self._run_id}")
        elif self._clock() >= self._sweep_at:
            self._sweep_at = float("inf")
            self._task = asyncio.create_task(self._sweep(), name=f"sweep-{self._run_id}")
        else:
            return
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.problem = "the server made a mistake while archiving; see its log"
            self._again_at = self._clock() + AGAIN_AFTER_S
            _log.error("run %s: archiving failed; it is tried again", self._run_id, exc_info=task.exception())

    async def _shrink(self, store: RunStore, stored_to: Callable[[], str]) -> None:
        while store.hot_bytes > self.limit_bytes:
            count = self._oldest(store, stored_to(), ARCHIVED_SHARE * self.limit_bytes)
            if not count or not await self._archive_oldest(store, count):
                return
            group = self._archive.mergeable(store.parts)
            if group:
                await self._merge(store, group)

    @staticmethod
    def _oldest(store: RunStore, stored_to: str, wanted_bytes: float) -> int:
        count, size = 0, 0
        for generation in store.generations[:-1]:
            if size >= wanted_bytes or stream_order(generation.to_id) > stream_order(stored_to):
                break
            count, size = count + 1, size + generation.bytes
        return count

    async def _archive_oldest(self, store: RunStore, count: int) -> bool:
        try:
            reader = await self._archive.archive(store.generations[:count])
        except ArchiveError as error:
            self._failed(error.message)
            return False
        except (RedisError, OSError) as error:
            self._failed(f"Redis is away: {error}")
            return False
        store.archived(count, reader)
        self.problem = ""
        self._weigh(store)
        self._changed()
        return True

    def _failed(self, problem: str) -> None:
        if problem != self.problem:
            _log.error("run %s: archiving: %s", self._run_id, problem)
        self.problem = problem
        self._again_at = self._clock() + AGAIN_AFTER_S
        self._changed()

    async def _merge(self, store: RunStore, group: list[Any]) -> None:
        try:
            store.compacted(group, await self._archive.merge(group))
            self._sweep_at = self._clock() + SWEEP_AFTER_S  # a chart that is being read still reads the old files
        except (ArchiveError, RedisError, OSError) as error:
            _log.warning("run %s: %d small parts stay as they are for now: %s", self._run_id, len(group), error)
            self._again_at = self._clock() + AGAIN_AFTER_S

    async def _sweep(self) -> None:
        try:
            await self._archive.sweep()
        except (RedisError, OSError) as error:
            _log.warning("run %s: files of merged parts stay for now: %s", self._run_id, error)
            self._sweep_at = self._clock() + SWEEP_AFTER_S

    async def flush(self, state: RunState, stored_to: str) -> None:
        """Archive everything that is stored: the run is idle.

        Raises:
            ArchiveError: it could not be written.
        """
        await self.settle()
        store = state.store
        if store.open.frames and stream_order(store.open.to_id) <= stream_order(stored_to):
            store.cut(snapshot.freeze(state))
        count = self._oldest(store, stored_to, float("inf"))
        if count and not await self._archive_oldest(store, count):
            raise ArchiveError(f"run {self._run_id} was not archived: {self.problem}")

    async def compact(self, store: RunStore) -> int:
        """Merge parts as far as that goes; return how many files sets were saved.

        Raises:
            ArchiveError: a file could not be read or written.
        """
        await self.settle()
        before = len(store.parts)
        while group := self._archive.mergeable(store.parts, everything=True):
            store.compacted(group, await self._archive.merge(group))
            await self._archive.sweep()
        return before - len(store.parts)

    async def settle(self) -> None:
        """Wait for the part that is being written, if any."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def stop(self) -> None:
        """Stop archiving, after the part that is being written when that does not take long."""
        if self._task is not None and not self._task.done():
            await asyncio.wait({self._task}, timeout=STOP_TIMEOUT_S)
            await end(self._task)

    # --- what people ask -----------------------------------------------------------------------------------------

    def facts(self, store: RunStore) -> dict[str, Any]:
        """Return the storage facts of docs/api.md."""
        hot = store.hot_bytes + self._ahead
        full = hot >= FULL_AT_WINDOWS * self.limit_bytes
        busy = self._task is not None and not self._task.done()
        problem = self.problem or (store.unreadable[0] if store.unreadable else "")
        return {
            "hot": {
                "bytes": hot,
                "limit_bytes": self.limit_bytes,
                "frames": sum(generation.frames for generation in store.generations),
                "values": sum(generation.values for generation in store.generations),
            },
            "cold": {
                "parts": len(store.parts),
                "rows": sum(reader.part.rows for reader in store.parts),
                "bytes": sum(reader.part.bytes for reader in store.parts),
                "location": self._archive.place,
            },
            "state": "failed" if problem else "behind" if full else "archiving" if busy else "ok",
            "problem": problem or None,
        }
