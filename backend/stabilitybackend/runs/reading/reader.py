"""Reads one run that this process does not own: folds the stored frames, and writes neither Redis nor files.

Other than points, it shows the owner's last stored state (incidents, commands, the run's state): nothing is judged
here, and nothing is judged by time. Where the owner makes parts of the frames, or merges parts, it begins again from
them; files that were replaced stay for ten seconds (runs/archiving/window.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from msgspec.structs import replace
from redis.asyncio import Redis

from stabilitybackend.base.errors import Unavailable
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.base.streams import stream_order
from stabilitybackend.lineage.consumer import Effects
from stabilitybackend.runs.archiving.recovery import Recovery
from stabilitybackend.runs.feed.messages import publish
from stabilitybackend.runs.follower import RunFollower
from stabilitybackend.runs.ownership.fence import Fence, Ownership, Write
from stabilitybackend.runs.pending_frames import PendingFrames
from stabilitybackend.runs.state import RunState
from stabilitybackend.runs.worker import NOT_ON_A_REPLICA, RunWorker
from stabilitybackend.schema.commands import Command, CommandRequest
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.lineage import Segments
from stabilitybackend.schema.runs import Run, StoringProblem

__all__ = ["READ_EVERY_S", "Reading", "RunReader", "no_worker"]

#: Interval of looking for news, seconds.
READ_EVERY_S = 1.0
#: Stream entries in one read: all of them are in memory.
READ_COUNT = 256
#: Frames are kept in memory up to so many windows; then it begins again from the parts that its owner made of them.
FULL_AT_WINDOWS = 2.0
#: Meta facts that change how a run is shown.
_SHOWN = ("view", "updated", "name", "tags", "about", "project")


def no_worker(run_id: str) -> Unavailable:
    """Return the error for requests to change a run without an owner."""
    return Unavailable(
        f"no worker follows run {run_id} now, and this needs one; nothing was done. Orders for the job, "
        "acknowledgements, settings of detectors, notes and tags are taken meanwhile",
        hint="start one (stabilityboard up --role worker), or wait until one that was away is back; then send it again",
        code="no_worker",
    )


class _ReadingFence(Fence):
    """Refuses every write."""

    reads_only = True

    async def take(self) -> None:
        """Own nothing."""

    async def release(self) -> None:
        """Own nothing."""

    async def write(self, *commands: Write) -> None:
        """Raise Unavailable."""
        raise no_worker(self._run_id)

    async def commit(self, *change: Any, **options: Any) -> None:
        """Raise Unavailable."""
        raise no_worker(self._run_id)


class Reading(Ownership):
    """Of a process that takes no run."""

    def fence(self, run_id: str, redis: Redis) -> Fence:
        """Return a fence that lets nothing through."""
        return _ReadingFence(run_id, redis, self)


class RunReader(RunWorker):
    """One run, read only. It has the interface of a worker; methods that would change something raise Unavailable.

    Args: as RunWorker; ``ownership`` is a ``Reading``, and ``files`` keep nothing for a restart.
    """

    async def _follow(self, after: RunFollower | None = None) -> None:
        if after is not None:
            await after.stop()
        self._keys = RunKeys(self.run_id)
        while True:
            await self._load()
            while (found := await self.journal.patiently(self._read_news)) is not None:
                entries, there = found
                if not there:
                    self.readiness.fail(Unavailable(f"run {self.run_id} was deleted", code="deleted"))
                    return
                await self._take_entries(entries)
                if len(entries) < READ_COUNT:
                    self.readiness.reach()
                    await asyncio.sleep(READ_EVERY_S)
            self.readiness.lose()

    async def _load(self) -> None:
        """Begin from storage."""
        self._stored = await self.journal.load()
        await self.detectors.load()
        await self.autopilot.load()
        self._newest: tuple[Any, ...] | None = None
        self._undone = len(self._stored.undone)
        recovery = Recovery(
            self.run_id, self._archive, self._given, self._stored.undone, self.detectors, None, self._restart,
            self.journal.message, self._stored.applied,
        )  # fmt: skip
        self.state, self.cursor = await self.journal.patiently(lambda: recovery.restored(self.readiness.troubled))
        self.state.liveness.limits = self._limits
        await self.journal.patiently(self.listing.load)
        await self.journal.patiently(self.orders.load)
        self._stored.into(self.state, with_incidents=True)
        self.orders.acknowledged.given(self.state, self._clock())
        self.channel.begin(self.cursor)

    async def _read_news(self) -> tuple[list[tuple[str, bytes]], bool] | None:
        """Return the frames after the cursor and whether the run is there; None where it has to begin again.

        All is read at one moment, so that frames which became a part meanwhile are not missed.
        """
        keys = self._keys
        pipe = self.fence.redis.pipeline(transaction=True)
        pipe.xread({keys.frames: self.cursor}, count=READ_COUNT)
        pipe.hkeys(keys.parts)
        pipe.scard(keys.undone)
        pipe.xrevrange(keys.incident_events, count=1)
        pipe.xrevrange(keys.command_audit, count=1)
        pipe.hlen(keys.acknowledged)
        pipe.hmget(keys.meta, "created", *_SHOWN)
        frames, stems, undone, incidents, commands, acknowledged, shown = await pipe.execute()
        listed = frozenset(stem.decode() for stem in stems)
        if undone != self._undone or self._is_behind(listed):
            return None
        newest = ([entry[0] for entry in (*incidents, *commands)], acknowledged, shown)
        if newest != self._newest:
            await self._take_stored()
            self._newest = newest
        entries = [(entry_id.decode(), fields[b"b"]) for entry_id, fields in frames[0][1]] if frames else []
        return entries, shown[0] is not None or bool(entries)

    def _is_behind(self, listed: frozenset[str]) -> bool:
        """Whether the parts are other ones by now, so that files go or frames are missing."""
        known, at = self._archive.listed, stream_order(self.cursor)
        full = self.state.store.hot_bytes > FULL_AT_WINDOWS * self.window.limit_bytes
        return (
            bool(known - listed)
            or any(stream_order(_end(stem)) > at for stem in listed - known)
            or (full and listed != known)
        )

    async def _take_entries(self, entries: list[tuple[str, bytes]]) -> None:
        changes, waiting = Effects(), PendingFrames(entries)
        while waiting:
            begin = partial(self.window.read, self.state)
            changes.add(waiting.fold(self.state, self.detectors, begin, entries[-1][0]), with_incidents=False)
            self.cursor, _ = waiting.newest
            if waiting:
                await asyncio.sleep(0)  # the live requests of other runs go on meanwhile
        if changes.commands:
            changes.commands.clear()
            self.state.commands.load(self._stored.commands)  # as its owner has them
        if changes:
            publish(self.channel, self.state, changes, self.cursor)

    async def _take_stored(self) -> None:
        """Take over the owner's stored state, without points, and notify the browsers."""
        before, now = self._stored, await self.journal.load()
        waited = self.orders.waiting
        await self.journal.patiently(self.orders.load)
        self._stored, run = now, self.listing.run
        now.into(self.state, with_incidents=True)
        changes = Effects()
        changes.add_incidents(_newer(before.incidents, now.incidents))
        changes.add_incidents(self.orders.acknowledged.given(self.state, self._clock()).values())
        changes.add_commands(_newer(before.commands, now.commands))
        changes.add_commands(one.command for one in _newer(waited, self.orders.waiting))
        if changes:
            publish(self.channel, self.state, changes, self.cursor)
        await self.journal.patiently(self.listing.load)
        if self.listing.run != run:
            self.channel.publish({"type": "run", "run": self.listing.run})

    def run(self) -> Run:
        """Return the run as its owner stored it last."""
        return self.internal_errors.marked(self.listing.run)

    @property
    def storing_problem(self) -> StoringProblem:
        """Text of the page on a run without an owner; since when: time of its newest judged message."""
        return StoringProblem(
            "no_worker",
            "No worker follows this run now: you see what is stored, and nothing was judged",
            "Training goes on, and agents' points are kept. Start one (stabilityboard up --role worker), or wait until "
            "one that was away is back. It is tried again by itself.",
            self.listing.updated,
        )

    # --- owner only ----------------------------------------------------------------------------------------------

    def _refuse(self) -> NoReturn:
        raise no_worker(self.run_id)

    async def tick(self) -> None:
        """Judge nothing."""

    async def report_to_fleet(self) -> None:
        """Report nothing."""

    async def flush(self) -> None:
        """Archive nothing."""

    async def let_go(self) -> None:
        """Stop for good."""
        await self.stop()

    async def issue(
        self, request: CommandRequest, *, command_id: str, issuer: str, check: Callable[[RunState], None] | None = None
    ) -> Command:
        """Store an order for the next owner; return the waiting order. Raises an owner's errors, where predictable."""
        state = await self.ready()
        if (known := state.commands.find(request.idempotency_key)) is not None:
            return known
        if check is not None:
            check(state)
        command = await self.orders.put(state, request, command_id=command_id, issuer=issuer)
        held = await self._on_a_replica()
        publish(self.channel, state, Effects(commands={command.command_id: command}), self.cursor)
        return command if held else replace(command, warning=NOT_ON_A_REPLICA)

    async def acknowledge(self, incident_id: str, who: str) -> Incident:
        """Store it for the next owner; return the incident as it will be. Raises NotFound where there is none."""
        state = await self.ready()
        incident = state.incidents.get(incident_id)
        if incident is None:
            raise self._no_incident(incident_id)
        if incident.acknowledged_by is None:
            await self.orders.acknowledged.put(incident_id, who, self._clock())
            changes = Effects(incidents=self.orders.acknowledged.given(state, self._clock()))
            await self._on_a_replica()
            publish(self.channel, state, changes, self.cursor)
        return state.incidents.get(incident_id) or incident

    async def take(self, finding: object) -> None:
        """Raise Unavailable."""
        self._refuse()

    async def undo_segment(self, segment: int, who: str) -> Segments:
        """Raise Unavailable."""
        self._refuse()

    async def compact(self) -> None:
        """Raise Unavailable."""
        self._refuse()

    async def delete_files(self) -> None:
        """Raise Unavailable."""
        self._refuse()


def _newer(before: list[Any], now: list[Any]) -> list[Any]:
    return [one for one in now if one not in before]


def _end(stem: str) -> str:
    """Return the stream id up to which the part of a stem has the frames (runs/archiving/archiver.py)."""
    return stem.partition("_")[2].rpartition("-")[0]
