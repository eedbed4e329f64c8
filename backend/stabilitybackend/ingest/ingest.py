"""Appends agents' frames to Redis Streams: exactly once, in order, many frames in one round trip.

The rule lives in ``ingest.lua`` and runs inside Redis as one step: a frame is appended only when its first number
follows the last number stored for its source. So a frame that is sent twice is stored once, a lost one is noticed,
and two gateways can't disagree. One writer task drains a bounded queue into pipelines; ``append`` returns when the
frame is stored, and fails with Unavailable when Redis is away. A failed frame may be stored or not: sending it
again is always right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol

import msgspec
from redis.asyncio import Redis

from stabilitybackend.base.errors import Unavailable
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.base.streams import StoredEntry
from stabilitybackend.base.tasks import end
from stabilitybackend.storage.redis_link import HeldConnection, as_unavailable, redis_errors
from stabilityclient.wire import Frame, FramePart, NodeFrame, SourceInfo

__all__ = ["QUEUE_BYTES", "Apart", "Beside", "Duplicate", "Gap", "Ingest", "Outcome", "StoredFrames"]

#: Frames that wait for the writer. When it is full, ``enqueue`` waits, and so does the agent behind it.
QUEUE_FRAMES = 512
#: Bytes that wait for the writer; the same happens when they are more. With QUEUE_FRAMES alone, frames of the largest
#: size could take 2 GiB.
QUEUE_BYTES = 64 * 1024 * 1024
#: Frames and bytes in one round trip: enough to make the round trip cheap, little enough to answer within milliseconds.
BATCH_FRAMES = 64
BATCH_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredFrames:
    """The message is in the stream, at ``stream_id``."""

    stream_id: str


@dataclass(frozen=True, slots=True)
class Duplicate:
    """All of the frame was stored before; ``last_seq`` is the newest number of the source."""

    last_seq: int


@dataclass(frozen=True, slots=True)
class Gap:
    """The frame does not start at ``expected_seq``, the number after the newest one stored: nothing was stored."""

    expected_seq: int


@dataclass(frozen=True, slots=True)
class Apart:
    """Not all sources of the message start at the number after their newest: nothing was stored, store each alone."""


Outcome = StoredFrames | Duplicate | Gap | Apart


@dataclass(slots=True)
class _Waiting:
    """A message; ``numbers`` has source, first, last and SourceInfo of each of its sources, as the script wants it.
    ``read``: the decoded message, where there is one."""

    run_id: str
    message: bytes
    numbers: bytes
    records: int
    done: asyncio.Future[Outcome]
    read: Frame | NodeFrame | None


class Beside(Protocol):
    """Workers of the same process: they get stored frames without a read of Redis."""

    def followed_to(self, run_id: str) -> str:
        """Return the stream id up to which a run's frames are here, "" where none are wanted."""

    def hand_over(self, run_id: str, after: str, entries: Sequence[StoredEntry]) -> None:
        """Take entries stored directly behind ``after``. Must return immediately."""


class Ingest:
    """The writer of one process. ``start`` it in the event loop, ``stop`` it at the end; a context manager as well.

    Args:
        refused: called with each error by which Redis refused a write.
        owner_seen: called with a run, the id of the worker that owns it, and why it takes no frame now; each may be "".
        beside: workers of this process, None where it has none.

    Attributes:
        stored: frames stored since the start. stored_records: rows and events in them, also those stored before.
        duplicates: frames that were stored before.
        gaps: frames that did not follow.
        failed: frames that could not be stored because Redis was away.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        refused: Callable[[BaseException], None] = lambda error: None,
        owner_seen: Callable[[str, str, str], None] = lambda run_id, worker, full: None,
        beside: Beside | None = None,
    ) -> None:
        self._redis = redis
        self._held = HeldConnection(redis)
        self._refused = refused
        self._owner_seen = owner_seen
        self._beside = beside
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(QUEUE_FRAMES)
        self._script = resources.files("stabilitybackend.ingest").joinpath("ingest.lua").read_text(encoding="utf-8")
        self._writer: asyncio.Task[None] | None = None
        self._waiting_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self.stored = 0
        self.stored_records = 0
        self.duplicates = 0
        self.gaps = 0
        self.failed = 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the frames that wait for Redis now."""
        return self._waiting_bytes

    def start(self) -> None:
        """Start the writer task."""
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_forever(), name="ingest-writer")

    async def stop(self) -> None:
        """Stop the writer. Frames that still wait fail with Unavailable: their agents send them again."""
        writer, self._writer = self._writer, None
        await end(writer)
        await self._held.give_back()
        while not self._queue.empty():  # reading wakes those who wait to put, so it ends only when all have failed
            waiting = self._queue.get_nowait()
            self._waiting_bytes -= len(waiting.message)
            self._room.set()
            self._fail([waiting], Unavailable("the server stops", code="stopping"))
            await asyncio.sleep(0)

    async def __aenter__(self) -> Ingest:
        self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def append(self, run_id: str, source: SourceInfo, first_seq: int, last_seq: int, message: bytes) -> Outcome:
        """Append one frame and return when Redis has it.

        Args:
            run_id: must have passed ``check_run_id``.
            source: whose numbers these are; kept in the run's sources hash with its first frame.
            first_seq: number of the frame's first record, from 1.
            last_seq: number of its last record, at most 2^53 - 1.
            message: the whole wire message unchanged, header included, so that its checksum stays with it.

        Raises:
            Unavailable: Redis is away; nothing is acknowledged.
        """
        return await (await self.enqueue(run_id, [FramePart(source, first_seq, last_seq, [])], message))

    async def enqueue(
        self, run_id: str, parts: Sequence[Frame | FramePart], message: bytes, read: Frame | NodeFrame | None = None
    ) -> asyncio.Future[Outcome]:
        """Return once a message has its place in the queue; they are stored in that order, each whole or not at all.

        Args:
            parts: its frame, or the parts of its NodeFrame; their sources and numbers are as for ``append``.
            read: the decoded message, so that workers of this process need not decode it again.
        """
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_retrieve_error)
        while self._writer is not None and self._waiting_bytes >= QUEUE_BYTES:
            self._room.clear()
            await self._room.wait()
        if self._writer is None:
            done.set_exception(Unavailable("the server stops", code="stopping"))
            return done
        self._waiting_bytes += len(message)
        numbers: list[str] = []
        records = 0
        for part in parts:
            first, last = part.first_seq, part.last_seq
            info = msgspec.json.encode(part.source).decode() if first == 1 else ""  # it is kept with the first only
            numbers += (part.source.source, str(first), str(last), info)
            records += last - first + 1
        await self._queue.put(_Waiting(run_id, message, msgspec.msgpack.encode(numbers), records, done, read))
        return done

    async def last_seq(self, run_id: str, sources: Sequence[str] | None = None) -> dict[str, int]:
        """Return the newest number stored of each of ``sources`` (0: none yet), or of all sources of the run.

        Raises:
            Unavailable: Redis is away.
        """
        key = RunKeys(run_id).last_seq
        with redis_errors():
            if sources is None:
                every: Any = await self._redis.hgetall(key)
                return {name.decode(): int(seq) for name, seq in every.items()}
            if not sources:
                return {}
            found = await self._redis.hmget(key, list(sources))
        return {name: int(seq or 0) for name, seq in zip(sources, found, strict=True)}

    async def _write_forever(self) -> None:
        while True:
            batch = [await self._queue.get()]
            size = len(batch[0].message)
            while len(batch) < BATCH_FRAMES and size < BATCH_BYTES and not self._queue.empty():
                batch.append(self._queue.get_nowait())
                size += len(batch[-1].message)
            try:
                await self._write(batch)
            except asyncio.CancelledError:
                self._fail(batch, Unavailable("the server stops", code="stopping"))
                raise
            except Exception as error:  # the writer must outlive every fault: it is the only one
                self._fail(batch, error)
            finally:
                self._waiting_bytes -= size
                self._room.set()

    async def _write(self, batch: list[_Waiting]) -> None:
        by_run: dict[str, list[_Waiting]] = {}
        for frame in batch:
            by_run.setdefault(frame.run_id, []).append(frame)
        calls: list[list[Any]] = []
        followed = {run_id: self._beside.followed_to(run_id) if self._beside else "" for run_id in by_run}
        for run_id, frames in by_run.items():
            keys = RunKeys(run_id)
            # EVAL and not EVALSHA: a cluster pipeline takes no EVALSHA, and the text is 2 % of a usual frame. One call
            # for all frames of a run: building and reading a command costs as much as a small frame itself.
            call = ["EVAL", self._script, 4, keys.frames, keys.last_seq, keys.sources, keys.owner, followed[run_id]]
            for frame in frames:
                call += (frame.message, frame.numbers)
            calls.append(call)
        for (run_id, frames), answer in zip(by_run.items(), await self._answers(calls), strict=True):
            if isinstance(answer, Exception):
                self._fail(frames, answer)
                continue
            *answers_to_frames, (worker, full, follows) = answer
            self._owner_seen(run_id, worker.decode(), full.decode())
            outcomes = [self._outcome(one) for one in answers_to_frames]
            stored = [
                (outcome.stream_id, frame.message, frame.read)
                for frame, outcome in zip(frames, outcomes, strict=True)
                if isinstance(outcome, StoredFrames)
            ]
            if follows and stored and self._beside is not None:
                self._beside.hand_over(run_id, followed[run_id], stored)
            for frame, outcome in zip(frames, outcomes, strict=True):
                if isinstance(outcome, StoredFrames):
                    self.stored_records += frame.records
                if not frame.done.done():
                    frame.done.set_result(outcome)

    async def _answers(self, calls: list[list[Any]]) -> list[Any]:
        """Return the answers of Redis to each call, exceptions among them; that of a single call is raised."""
        if len(calls) == 1:
            return [await self._held.execute(*calls[0])]
        pipeline: Any = self._redis.pipeline(transaction=False)
        for call in calls:
            pipeline.execute_command(*call)
        answers: list[Any] = await pipeline.execute(raise_on_error=False)
        return answers

    def _outcome(self, answer: list[Any]) -> Outcome:
        if len(answer) == 1:
            return Apart()
        kind, value = answer
        if kind == 1:
            self.stored += 1
            return StoredFrames(value.decode())
        if kind == 0:
            self.duplicates += 1
            return Duplicate(int(value))
        self.gaps += 1
        return Gap(int(value))

    def _fail(self, batch: list[_Waiting], error: Exception) -> None:
        if as_unavailable(error) is not None:
            self._refused(error)
        for frame in batch:
            if not frame.done.done():
                self.failed += 1
                frame.done.set_exception(as_unavailable(error) or error)


def _retrieve_error(future: asyncio.Future[Outcome]) -> None:
    """Mark the error as seen: an agent that went away no longer waits for its answer."""
    if not future.cancelled():
        future.exception()
