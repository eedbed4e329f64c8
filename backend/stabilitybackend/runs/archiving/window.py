"""Keeps the window of one run bounded: cuts it into generations, has the oldest archived, reports when it can't."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Literal

from redis.exceptions import RedisError

from stabilitybackend.base.errors import ArchiveError, Unavailable
from stabilitybackend.base.streams import stream_order
from stabilitybackend.base.tasks import end
from stabilitybackend.runs.archiving import snapshot
from stabilitybackend.runs.archiving.archiver import PartsChanged, RunArchive
from stabilitybackend.runs.journal import Journal
from stabilitybackend.runs.ownership.fence import NotOwner
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.server import ColdPoints, HotPoints, RunStorage
from stabilitybackend.storage.points.store import RunStore, series_of
from stabilitybackend.storage.points.unloaded import LOADING

__all__ = ["FRAME_OVERHEAD_BYTES", "RunWindow"]

#: Overhead of a stream entry in Redis, without the message, bytes (sequence numbers, source, its share of a node).
FRAME_OVERHEAD_BYTES = 96
#: A generation is sealed at this share of the window: a snapshot of the fold is taken as often.
GENERATIONS_A_WINDOW = 8
#: When the window is full, the oldest generations that make up this share become one part.
ARCHIVED_SHARE = 0.5
#: Nothing more is taken from agents while the stream is this many times larger than the window.
FULL_AT_WINDOWS = 2.0
#: Longest wait of a frame for room, seconds; then its agent keeps it and tries again.
ROOM_TIMEOUT_S = 5.0
#: A window that has been full for so long is reported as trouble, seconds: an archive that works makes room sooner.
FULL_REPORTED_AFTER_S = 60.0
#: Pause after the archive could not be written, seconds.
AGAIN_AFTER_S = 5.0
#: Files that were replaced, or whose write was cut off, are kept so long, seconds: charts are being read, and a Redis
#: that saves its newest writes once a second may come back with the list of before.
SWEEP_AFTER_S = 10.0
#: Longest time that stopping lets archiving continue, seconds; afterwards it waits only for a thread's current write.
STOP_TIMEOUT_S = 2.0

_log = logging.getLogger(__name__)


class RunWindow:
    """Bounds the memory of a run, in Redis and in the process.

    Args:
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
        #: Contents of Redis at this machine's last record of the run that are lost now; empty: nothing is missing.
        self.lost = ""
        #: Redis has lost contents: the run must be taken up again from the rest, then ``restarted``.
        self.diverged = False
        #: Held by the one caller that changes the parts or takes the run up from them.
        self.changing = asyncio.Lock()
        self._run_id = run_id
        self._archive = archive
        self._clock = clock
        self._changed = changed
        self._task: asyncio.Task[None] | None = None
        self._again_at = float("-inf")
        self._sweep_at = float("inf")
        #: Generations whose commit had no answer: it is done or not, and must be tried again just so.
        self._unsure = 0
        #: ``problem`` reports that Redis was away.
        self._redis_away = False
        #: Messages of agents that the worker has not read yet: stream id -> bytes, and all bytes.
        self._unread: dict[str, int] = {}
        self._ahead = 0
        self._read_to = (-1, 0)
        #: Bytes that wait there, of all writers, as the worker's last read of the stream showed.
        self._behind = 0
        self._room = asyncio.Event()
        self._room.set()
        #: A caller has waited for room in vain, and there was none since.
        self._refusing = False
        #: Since when there is no room, unix seconds; None while there is.
        self._full_since: float | None = None

    # --- the stream ----------------------------------------------------------------------------------------------

    def arrived(self, store: RunStore, frame_id: str, size: int) -> None:
        """Note that the frame ``frame_id`` of ``size`` bytes went into the stream."""
        if stream_order(frame_id) > self._read_to:  # the worker may be faster than the answer to the agent
            self._unread[frame_id] = size + FRAME_OVERHEAD_BYTES
            self._ahead += size + FRAME_OVERHEAD_BYTES
            self._weigh(store)

    def found_waiting(self, store: RunStore, journal: Journal) -> None:
        """Note the messages left by the last read of the stream: doors in other processes store them, too."""
        self._behind = journal.unread_bytes(sum(generation.frames for generation in store.generations))
        self._weigh(store)

    def read(self, state: RunState, frame_id: str, size: int, ahead: int = 0) -> None:
        """Note that the worker takes the frame ``frame_id`` of ``size`` bytes, behind the next ``ahead`` rows."""
        self._read_to = stream_order(frame_id)
        self._ahead -= self._unread.pop(frame_id, 0)
        while self._unread and stream_order(next(iter(self._unread))) < self._read_to:
            self._ahead -= self._unread.pop(next(iter(self._unread)))  # Redis has lost it
        state.store.begin(frame_id, size + FRAME_OVERHEAD_BYTES, ahead)

    def until_cut(self, state: RunState) -> int:
        """Return how many bytes of frames may still come before ``cut_when_due`` seals the open generation."""
        return -(-self.limit_bytes // GENERATIONS_A_WINDOW) - state.store.open.bytes

    def cut_when_due(self, state: RunState) -> bool:
        """Seal the open generation when it is large enough, and return whether it was. Call it between two frames."""
        due = state.store.open.bytes * GENERATIONS_A_WINDOW >= self.limit_bytes
        if due:
            state.store.cut(snapshot.freeze(state))
        return due

    def _weigh(self, store: RunStore) -> None:
        if max(self._ahead, self._behind) + store.hot_bytes < FULL_AT_WINDOWS * self.limit_bytes:
            self._room.set()
            self._refusing = False
            self._full_since = None
        else:
            self._room.clear()
            self._full_since = self._clock() if self._full_since is None else self._full_since

    async def room(self) -> None:
        """Wait until the stream may grow. Raises Unavailable, with the reason, while it may not."""
        if self._room.is_set():
            return
        try:
            # One frame waits; those behind it in its connection would keep the agent's health from being read for as
            # long again each, and the agent would seem lost.
            await asyncio.wait_for(self._room.wait(), 0.0 if self._refusing else ROOM_TIMEOUT_S)
        except TimeoutError:
            self._refusing = not self._room.is_set()
            raise Unavailable(
                self.full or f"the window of run {self._run_id} was full until now",
                hint="nothing is lost: agents keep what is not confirmed and send it again",
                code="window_full",
            ) from None

    @property
    def full(self) -> str:
        """Why the stream may not grow now, "" where it may."""
        if self._room.is_set():
            return ""
        slow = "they are judged" if self._behind > self.limit_bytes else "the archive is written"
        why = self.problem or f"points come faster than {slow}"
        return f"the window of run {self._run_id} is full: {why}"

    @property
    def full_since(self) -> float | None:
        """Since when the stream may not grow, unix seconds, once that is FULL_REPORTED_AFTER_S ago; else None."""
        since = self._full_since
        return since if since is not None and self._clock() - since >= FULL_REPORTED_AFTER_S else None

    async def has_diverged(self, journal: Journal, state: RunState, cursor: str) -> bool:
        """Return whether Redis no longer holds the folded frames: it is back without its newest writes, or empty.

        Args:
            journal: of the run; asked only after Redis was away. state: folded up to the stream id ``cursor``.

        Raises:
            NotOwner: another worker has taken the run over meanwhile.
        """
        if journal.interrupted and not self.diverged:
            journal.interrupted = False
            parts = state.store.parts
            at_seam = cursor == (parts[-1].part.to_id if parts else "0-0")
            same = await journal.patiently(self._archive.agrees)
            self._sweep_at = self._clock() + SWEEP_AFTER_S
            self.diverged = not same or not (at_seam or await journal.message(cursor) is not None)
        return self.diverged

    # --- archiving -----------------------------------------------------------------------------------------------

    def archive_when_due(self, state: RunState, stored_to: Callable[[], str]) -> None:
        """Start to archive when the window is full. Call it now and then, also while no frame comes: it makes room.

        Args:
            stored_to: stream id up to which all that follows from frames is stored; nothing after it may leave.
        """
        self._weigh(state.store)
        now = self._clock()
        if self.changing.locked() or self.diverged or (self._task is not None and not self._task.done()):
            return
        if self._again_at - AGAIN_AFTER_S <= now < self._again_at:  # else it is time, or the clock was put back
            return
        if state.store.hot_bytes > self.limit_bytes:
            self._task = asyncio.create_task(self._shrink(state, stored_to), name=f"archive-{self._run_id}")
        elif now >= self._sweep_at:
            self._sweep_at = float("inf")
            self._task = asyncio.create_task(self._sweep(), name=f"sweep-{self._run_id}")
        else:
            if self._redis_away:  # the caller has just read from it
                self._redis_away = False
                self._report_problem("")
            return
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._report_problem("internal error while archiving, see the server log")
            self._again_at = self._clock() + AGAIN_AFTER_S
            _log.error("run %s: archiving failed; it is tried again", self._run_id, exc_info=task.exception())

    async def _shrink(self, state: RunState, stored_to: Callable[[], str]) -> None:
        async with self.changing:
            store = state.store
            with contextlib.suppress(NotOwner):  # the run's follower drops it
                while store.hot_bytes > self.limit_bytes:
                    if len(store.generations) == 1:
                        # A restart leaves all rows in the open generation, and while the window is full no frame comes
                        # after which ``cut_when_due`` would seal it.
                        self._seal(state, stored_to())
                    count = self._oldest(store, stored_to(), ARCHIVED_SHARE * self.limit_bytes)
                    if not count or not await self._archive_oldest(store, count):
                        return
                    group = self._archive.mergeable(store.parts)
                    if group:
                        await self._merge(store, group)

    def _seal(self, state: RunState, stored_to: str) -> None:
        """Seal the open generation, where all that follows from it is stored."""
        last = state.store.open
        if last.frames and not state.store.loading and stream_order(last.to_id) <= stream_order(stored_to):
            state.store.cut(snapshot.freeze(state))

    def _oldest(self, store: RunStore, stored_to: str, wanted_bytes: float) -> int:
        if self._unsure:
            return self._unsure
        if store.loading:
            return 0
        count, size = 0, 0
        for generation in store.generations[:-1]:
            if size >= wanted_bytes or stream_order(generation.to_id) > stream_order(stored_to):
                break
            count, size = count + 1, size + generation.bytes
        return count

    async def _archive_oldest(self, store: RunStore, count: int) -> bool:
        try:
            reader = await self._archive.archive(store.generations[:count])
            series = await asyncio.to_thread(series_of, reader)
        except ArchiveError as error:
            self._unsure = 0
            self._sweep_at = self._clock() + SWEEP_AFTER_S
            self.diverged = isinstance(error, PartsChanged)
            self._failed(error.message)
            return False
        except (RedisError, OSError) as error:
            self._unsure, self._redis_away = count, True
            self._failed(f"Redis is away: {error}")
            return False
        self._unsure, self._redis_away = 0, False
        store.archived(count, reader, series)
        self._weigh(store)
        self._report_problem("")
        return True

    def _failed(self, problem: str) -> None:
        if problem != self.problem:
            _log.error("run %s: archiving: %s", self._run_id, problem)
        self._report_problem(problem)
        self._again_at = self._clock() + AGAIN_AFTER_S

    def _report_problem(self, problem: str) -> None:
        self.problem = problem
        self._changed()

    async def _merge(self, store: RunStore, group: list[Any]) -> None:
        try:
            reader = await self._archive.merge(group)
            store.compacted(group, reader, await asyncio.to_thread(series_of, reader))
            self._sweep_at = self._clock() + SWEEP_AFTER_S
        except PartsChanged as error:
            self.diverged = True
            _log.error("run %s: %s", self._run_id, error.message)
        except (ArchiveError, RedisError, OSError) as error:
            _log.warning("run %s: %d small parts stay as they are for now: %s", self._run_id, len(group), error)
            self._again_at = self._clock() + AGAIN_AFTER_S

    async def _sweep(self) -> None:
        try:
            async with self.changing:
                if await self._archive.sweep():
                    self._sweep_at = self._clock() + SWEEP_AFTER_S
        except NotOwner:
            return
        except (RedisError, OSError) as error:
            _log.warning("run %s: files of merged parts stay for now: %s", self._run_id, error)
            self._sweep_at = self._clock() + SWEEP_AFTER_S

    async def flush(self, newest: Callable[[], tuple[RunState, str]]) -> None:
        """Archive everything that is stored: the run is idle.

        Args:
            newest: returns the state and the stream id up to which all that follows from it is stored, as they are
                when it is this call's turn.

        Raises:
            ArchiveError: it could not be written.
        """
        async with self.changing:
            state, stored_to = newest()
            store = state.store
            if store.loading:
                raise ArchiveError(f"run {self._run_id} was not archived: its points are still being loaded")
            self._seal(state, stored_to)
            while count := self._oldest(store, stored_to, float("inf")):
                if not await self._archive_oldest(store, count):
                    raise ArchiveError(f"run {self._run_id} was not archived: {self.problem}")

    async def compact(self, newest: Callable[[], RunStore]) -> None:
        """Merge parts as far as that goes.

        Args:
            newest: returns the store as of this call's turn.

        Raises:
            ArchiveError: a file could not be read or written.
        """
        async with self.changing:
            store = newest()
            try:
                while group := self._archive.mergeable(store.parts, everything=True):
                    reader = await self._archive.merge(group)
                    store.compacted(group, reader, await asyncio.to_thread(series_of, reader))
                    self._sweep_at = self._clock() + SWEEP_AFTER_S
            except PartsChanged:
                self.diverged = True
                raise

    def restarted(self, lost: str = "") -> None:
        """Begin again: the state was taken up from storage; ``lost``: the contents that Redis has lost."""
        self._unsure, self.diverged, self.lost = 0, False, lost
        self._report_problem("")
        self._sweep_at = self._clock() + SWEEP_AFTER_S
        self._read_to, self._behind = (-1, 0), 0

    async def stop(self) -> None:
        """Stop archiving, after the part that is being written when that does not take long."""
        if self._task is not None and not self._task.done():
            await asyncio.wait({self._task}, timeout=STOP_TIMEOUT_S)
            await end(self._task)
        self.problem = ""

    # --- requests of users ---------------------------------------------------------------------------------------

    def facts(self, store: RunStore) -> RunStorage:
        """Return where the run's points are."""
        hot = store.hot_bytes + max(self._ahead, self._behind)
        full = hot >= FULL_AT_WINDOWS * self.limit_bytes
        busy = self.changing.locked()
        problem = self.problem or (next((e.message for e in store.unreadable.values()), ""))
        waits = self.full if self.full_since is not None else LOADING if store.loading else None
        state: Literal["ok", "loading", "archiving", "behind"]
        state = "loading" if store.loading else "behind" if full else "archiving" if busy else "ok"
        return RunStorage(
            hot=HotPoints(
                bytes=hot,
                limit_bytes=self.limit_bytes,
                frames=sum(generation.frames for generation in store.generations),
                values=sum(generation.values for generation in store.generations),
            ),
            cold=ColdPoints(
                parts=len(store.parts),
                rows=sum(reader.part.rows for reader in store.parts),
                bytes=sum(reader.part.bytes for reader in store.parts),
                location=self._archive.place,
            ),
            state="failed" if problem else state,
            problem=problem or waits or self.lost or None,
        )
