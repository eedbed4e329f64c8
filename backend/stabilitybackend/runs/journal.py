"""Stored state of one run without its points: incidents, commands, and how far the stream was read for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import orjson
from redis.exceptions import RedisError

from stabilitybackend.base.keys import RUNS_WITH_INCIDENTS, RunKeys
from stabilitybackend.base.quiet_log import QuietLog
from stabilitybackend.runs.arrivals.shared_reads import MAX_MEAN_BYTES, SHARED_COUNT, SharedReads
from stabilitybackend.runs.ownership.fence import Fence, Write
from stabilitybackend.schema.commands import Command, read_command
from stabilitybackend.schema.incidents import Incident, decoded, encoded
from stabilitybackend.schema.job.autopilot import MAX_ENTRIES
from stabilitybackend.schema.reading import Misfit
from stabilitybackend.storage.redis_link import as_unavailable

if TYPE_CHECKING:
    from stabilitybackend.lineage.consumer import Effects
    from stabilitybackend.runs.state import RunState

__all__ = ["Journal", "StoredRun"]

#: Most stream entries in one read; and so many bytes, about. A batch is in memory, and an answer that arrives for
#: long while other runs are folded looks as if Redis did not answer.
READ_COUNT = 256
READ_BYTES = 2 * 1024 * 1024
#: Entries of the first reads, while their size is unknown.
FIRST_COUNT = 4
#: Pause after Redis was away, seconds.
AWAY_PAUSE_S = 0.2
#: That incidents of the run change is noted for alerting at most this often, seconds.
NOTE_EVERY_S = 60.0
#: Incident events kept for consumers that are away.
MAX_INCIDENT_EVENTS = 10_000

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredRun:
    """Start of a worker.

    Attributes:
        incidents, commands: as they were stored last.
        unreadable: why each incident that is none was passed over; it stays stored.
        applied: stream id up to which they are complete; the results of later entries are still to be reported.
        undone: keys of inferred segments that a user took back.
        retell: fork step of one of them, while the incidents have not been judged without it yet.
    """

    incidents: list[Incident]
    commands: list[Command]
    applied: str
    undone: list[str]
    retell: int | None
    unreadable: list[Misfit]

    def into(self, state: RunState, *, with_incidents: bool) -> None:
        """Let a state continue with the stored values; without its incidents where they are judged again."""
        if with_incidents:
            state.incidents.load(self.incidents)
        state.liveness.load(self.incidents)
        state.gpus.load(self.incidents)
        state.commands.load(self.commands)


class Journal:
    """Reads and writes one run in Redis, trying again while Redis is away; ``clock`` returns unix seconds."""

    def __init__(self, run_id: str, fence: Fence, clock: Callable[[], float]) -> None:
        self._run_id = run_id
        self._fence = fence
        self._redis = fence.redis
        self._keys = RunKeys(run_id)
        #: Redis was away since this was last set to False: it may have lost its newest writes.
        self.interrupted = False
        self._clock = clock
        self._noted_at = float("-inf")
        self._quiet = QuietLog(_log)
        self._count = FIRST_COUNT
        #: Bytes of a message on average in the last read that found any, 0 before.
        self._mean = 0.0
        #: Messages in the stream when they were counted last, 0 where the last read left none there.
        self.length = 0
        #: Reads new entries together with other runs.
        self.shared: SharedReads | None = None
        #: The last read may have left something in the stream.
        self.more = False
        self._saving = asyncio.Lock()  # writes must not overtake each other

    async def load(self) -> StoredRun:
        """Return the last stored state."""
        return await self.patiently(self._load)

    async def _load(self) -> StoredRun:
        incidents: Any = await self._redis.hvals(self._keys.incidents)
        commands: Any = await self._redis.hvals(self._keys.commands)
        applied: Any = await self._redis.hget(self._keys.meta, "applied")
        undone: Any = await self._redis.smembers(self._keys.undone)
        retell: Any = await self._redis.hget(self._keys.meta, "retell")
        readable, unreadable = [], []
        for data in incidents:
            try:
                readable.append(decoded(data))
            except Misfit as error:
                _log.error("run %s: an incident is passed over: %s", self._run_id, error)
                unreadable.append(error)
        return StoredRun(
            readable,
            [command for data in commands if (command := self._read_command(data)) is not None],
            applied.decode() if applied else "0-0",
            [key.decode() for key in undone],
            None if retell is None else int(retell),
            unreadable,
        )

    def _read_command(self, data: bytes) -> Command | None:
        """Return a stored command, None for one of a newer server that is no command here: it is left unchanged."""
        try:
            return read_command(orjson.loads(data))
        except msgspec.ValidationError as error:
            _log.warning("run %s: a stored command is passed over: %s", self._run_id, error)
            return None

    async def read(self, cursor: str) -> list[tuple[str, bytes]]:
        """Return the frames after ``cursor`` that are there, as (stream id, message), at most READ_COUNT."""

        async def read() -> list[tuple[str, bytes]]:
            if self.shared is not None and not self.more and 0 < self._mean <= MAX_MEAN_BYTES:
                found, most = await self.shared.read(self._keys.frames, cursor), SHARED_COUNT
            else:
                streams: Any = await self._redis.xread({self._keys.frames: cursor}, count=self._count)
                found, most = (streams[0][1] if streams else []), self._count
            entries = [(entry_id.decode(), fields[b"b"]) for entry_id, fields in found]
            self.more = len(entries) >= most
            if entries:
                self._mean = sum(len(message) for _, message in entries) / len(entries)
                self._count = max(1, min(READ_COUNT, int(READ_BYTES / self._mean)))
            self.length = self.length if self.more else 0
            return entries

        return await self.patiently(read)

    async def count(self) -> None:
        """Count the messages in the stream, where the last read left some there."""
        length = int(await self._redis.xlen(self._keys.frames)) if self.more else 0
        self.length = length if self.more else 0  # it may have been read meanwhile

    def unread_bytes(self, frames: int) -> int:
        """Return about how many bytes wait in the stream, of which ``frames`` messages are folded; 0 for few."""
        return max(0, self.length - frames) * int(self._mean)

    async def message(self, cursor: str) -> bytes | None:
        """Return the frame that the stream holds at ``cursor``, None where it holds none there."""
        found: Any = await self.patiently(lambda: self._redis.xrange(self._keys.frames, cursor, cursor, count=1))
        return found[0][1][b"b"] if found else None

    async def save(self, changes: Effects, cursor: str) -> None:
        """Store changed incidents and commands, their events, and the place in the stream, all or nothing.

        Raises:
            NotOwner: the run was taken over; nothing was stored.
        """
        news = [(incident.incident_id, encoded(incident)) for incident in changes.incidents.values()]
        written = [(command.command_id, msgspec.json.encode(command)) for command in changes.commands.values()]
        entries = [msgspec.json.encode(entry) for entry in changes.entries.values()]
        keys, writes = self._keys, list[Write]()
        for incident_id, data in news:
            writes.append(("HSET", keys.incidents, incident_id, data))
            writes.append(("XADD", keys.incident_events, "MAXLEN", "~", MAX_INCIDENT_EVENTS, "*", "i", data))
        for command_id, data in written:
            writes += (("HSET", keys.commands, command_id, data), ("XADD", keys.command_audit, "*", "c", data))
        for data in entries:
            writes.append(("RPUSH", keys.autopilot_entries, data))
            writes.append(("LTRIM", keys.autopilot_entries, -MAX_ENTRIES, -1))
            writes.append(("XADD", keys.command_audit, "*", "o", data))
        writes.append(("HSET", keys.meta, "applied", cursor))

        async def save() -> None:
            if news:
                await self._note()
            await self._fence.write(*writes)

        async with self._saving:
            await self.patiently(save)

    async def _note(self) -> None:
        """Let alerting know that there is something in the run's stream of incidents: before it is, so that no kill
        between the two hides it."""
        now = self._clock()
        if not self._noted_at <= now < self._noted_at + NOTE_EVERY_S:
            await self._redis.zadd(RUNS_WITH_INCIDENTS, {self._run_id: now})
            self._noted_at = now

    async def undo(self, keys: Sequence[str], fork_step: int) -> None:
        """Note that inferred segments are none, and that incidents after ``fork_step`` have to be judged without."""
        await self._fence.write(("SADD", self._keys.undone, *keys), ("HSET", self._keys.meta, "retell", fork_step))

    async def reconciled(self) -> None:
        """Note that the stored incidents no longer have the undone segments."""
        await self.patiently(lambda: self._fence.write(("HDEL", self._keys.meta, "retell")))

    async def patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do ``work``, again and again while Redis is away."""
        while True:
            try:
                return await work()
            except (RedisError, OSError) as error:
                if as_unavailable(error) is None:
                    raise
                self.interrupted = True
                self._quiet.log(logging.WARNING, f"run {self._run_id}: Redis is away ({error!s:.200}), trying again")
                await asyncio.sleep(AWAY_PAUSE_S)
