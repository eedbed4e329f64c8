"""Follows one run's stream: folds what is stored, writes down what follows from it, tells the browsers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from stabilitybackend.errors import ArchiveError, Conflict, NotFound, Unavailable
from stabilitybackend.policy.commands import Order
from stabilitybackend.redis_link import redis_errors
from stabilitybackend.runs.archiver import ArchiveFiles, RunArchive
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.runs.journal import Journal
from stabilitybackend.runs.keeper import WindowKeeper
from stabilitybackend.runs.live import Channel, stream_order
from stabilitybackend.runs.publishing import publish
from stabilitybackend.runs.restore import restored
from stabilitybackend.runs.state import Changes, RunState
from stabilitybackend.tasks import end
from stabilityclient.wire import BadMessage, Frame, Health, decode_message

__all__ = ["RunWorker"]

#: How often silence and expiry are judged and the run's summary is stored, seconds.
TICK_S = 1.0
#: Pause after the archive could not be read at the start, seconds.
ARCHIVE_PAUSE_S = 2.0

Send = Callable[[dict[str, Any]], Awaitable[None]]
_log = logging.getLogger(__name__)


class RunWorker:
    """Owns the state of one run in this process.

    Args:
        run_id: the run.
        redis: client of the server that holds its stream.
        clock: unix seconds now.
        overview: channel of the list of runs.
        files: the archive of all runs.
        window_bytes: bytes of frames that the stream keeps.
    """

    def __init__(
        self,
        run_id: str,
        redis: Redis,
        clock: Callable[[], float],
        overview: Channel,
        files: ArchiveFiles,
        window_bytes: int,
    ) -> None:
        self.run_id = run_id
        self.state = RunState(run_id, clock)
        self.channel = Channel()
        self.cursor = "0-0"
        #: Frames in the stream that could not be read.
        self.unreadable = 0
        self.used = clock()
        self._clock = clock
        self._overview = overview
        self._journal = Journal(run_id, redis)
        self._index = RunIndex(redis)
        self._archive = RunArchive(run_id, redis, files)
        self._keeper = WindowKeeper(run_id, self._archive, window_bytes, clock, self._storage_changed)
        self._sends: dict[str, Send] = {}
        self._unsaved = Changes()
        self._dirty = False
        self._caught_up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._run: dict[str, Any] = {}
        self._updated = 0.0
        self._pushed_metrics = -1
        #: Stream id up to which all that follows is in ``_unsaved`` or stored. In a batch the cursor is ahead of it,
        #: and somebody may acknowledge or order something at that moment.
        self._concluded = "0-0"
        #: The same, stored for certain: frames up to here may leave the stream.
        self._stored_to = "0-0"
        #: Why the archive can't be read at the start; it is tried again.
        self._trouble: ArchiveError | None = None

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to follow the stream."""
        self._task = asyncio.create_task(self._follow(), name=f"run-{self.run_id}")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            _log.error(
                "run %s: its worker failed; the next request starts another", self.run_id, exc_info=task.exception()
            )

    @property
    def failed(self) -> bool:
        """Whether following the stream ended with a mistake of ours."""
        return self._task is not None and self._task.done() and not self._task.cancelled()

    async def stop(self) -> None:
        """Stop following; what is not stored yet is found again in the stream by the next worker."""
        await end(self._task)
        await self._keeper.stop()

    @property
    def is_ready(self) -> bool:
        """Whether everything that was stored at the start is in the state."""
        return self._caught_up.is_set()

    async def ready(self, timeout_s: float = 30.0) -> RunState:
        """Return the state once everything that was stored at the start is in it.

        Raises:
            Unavailable: that took longer than ``timeout_s``, or Redis is away.
        """
        self.used = self._clock()
        if self._task is not None and self._task.done():
            raise Unavailable(f"the worker of run {self.run_id} has stopped", hint="see the server's log")
        if self._trouble is not None:
            raise Unavailable(
                f"run {self.run_id} can't be opened now: {self._trouble.message}",
                hint=self._trouble.hint,
                code="archive_away",
            )
        try:
            await asyncio.wait_for(self._caught_up.wait(), timeout_s)
        except TimeoutError:
            raise Unavailable(
                f"run {self.run_id} is still being read from Redis", hint="try again in a moment", code="loading"
            ) from None
        return self.state

    async def _follow(self) -> None:
        applied = await self._begin()
        next_tick = self._clock() + TICK_S
        while True:
            entries = await self._journal.read(self.cursor, wait=self._caught_up.is_set())
            changes = Changes()
            for cursor, message in entries:
                self.cursor = cursor
                self._keeper.read(self.state, cursor, len(message))
                self._take(message, changes, replayed=stream_order(cursor) <= stream_order(applied))
                self._keeper.cut_when_due(self.state)
                if len(entries) > 1:
                    await asyncio.sleep(0)  # a long history must not hold up the live requests of other runs
            if not entries and not self._caught_up.is_set():
                self._caught_up.set()
                _log.info("run %s: caught up at %s", self.run_id, self.cursor)
            if entries:
                self._dirty = True
                self._updated = self._clock()
                self._concluded = max(self._concluded, self.cursor, key=stream_order)
                await self._conclude(changes)
                self._stored_to = self.cursor
            self._keeper.archive_when_due(self.state, lambda: self._stored_to)
            if self._caught_up.is_set() and self._clock() >= next_tick:
                next_tick = self._clock() + TICK_S
                await self.tick()

    async def _begin(self) -> str:
        """Start from what is stored; return the stream id up to which incidents and commands are complete."""
        stored = await self._journal.load()
        agents = self.state.agents
        self.state, self.cursor = await self._restored(stored.undone)
        self.state.agents.update(agents)
        for agent in self._sends:
            self.state.liveness.agent_connected(agent, self._clock())
        self._run = await self._journal.patiently(lambda: self._index.stored(self.run_id))
        self._updated = self._run["updated"]
        self.state.incidents.load(stored.incidents)
        self.state.liveness.load(stored.incidents)
        self.state.commands.load(stored.commands)
        self._concluded = stored.applied
        self._stored_to = self.cursor
        return stored.applied

    async def _restored(self, undone: list[str]) -> tuple[RunState, str]:
        """Return the state at the end of the archive, and the stream id up to which it goes; wait for both places."""
        while True:
            try:
                found = await self._journal.patiently(lambda: restored(self.run_id, self._archive, self._clock, undone))
            except ArchiveError as error:
                if self._trouble is None:
                    _log.error("run %s: %s", self.run_id, error.message)
                self._trouble = error
                await asyncio.sleep(ARCHIVE_PAUSE_S)
            else:
                self._trouble = None
                return found

    def _storage_changed(self) -> None:
        self._dirty = True

    def _take(self, raw: bytes, changes: Changes, *, replayed: bool) -> None:
        try:
            frame = decode_message(raw)
        except BadMessage as error:
            self.unreadable += 1
            _log.error("run %s: stored frame %s can't be read: %s", self.run_id, self.cursor, error)
            return
        assert isinstance(frame, Frame)
        found = self.state.apply(frame, replayed=replayed)
        changes.placed += found.placed
        changes.segments |= found.segments
        changes.checkpoints |= found.checkpoints
        changes.incidents.update(found.incidents)
        changes.commands.update(found.commands)

    async def tick(self) -> None:
        """Judge silence and expiry, store and publish the summary."""
        await self._conclude(self.state.tick())
        view = self._refresh()
        pushed = self._run
        if self._pushed_metrics == len(self._run["metrics"]):
            pushed = {name: value for name, value in self._run.items() if name != "metrics"}
        self._pushed_metrics = len(self._run["metrics"])
        if self._dirty or self.channel or self._sends:
            self.channel.publish({"type": "run", "run": pushed})
        if self._dirty or self._sends:
            self._overview.publish({"type": "run", "run": pushed})
            try:
                await self._index.save_view(self.run_id, view, self._updated)
                self._dirty = False
            except (RedisError, OSError) as error:
                _log.warning("run %s: summary not stored: %s", self.run_id, error)

    def _refresh(self) -> dict[str, Any]:
        view = self.state.view()
        self._run = {**self._run, **view, "updated": self._updated}
        return view

    # --- what follows from changes -------------------------------------------------------------------------------

    async def _conclude(self, changes: Changes) -> None:
        """Store what changed (once, together with the place in the stream), then publish and deliver it."""
        self._unsaved.incidents.update(changes.incidents)
        self._unsaved.commands.update(changes.commands)
        if self._unsaved.incidents or self._unsaved.commands:
            unsaved, self._unsaved = self._unsaved, Changes()
            await self._journal.save(unsaved.incidents.values(), unsaved.commands.values(), self._concluded)
        if changes:
            publish(self.channel, self.state, changes, self.cursor)
        for command in changes.commands.values():
            await self._deliver(command)

    async def _deliver(self, command: dict[str, Any]) -> None:
        """Hand a command to every agent of the run; one that is away gets it when it comes back."""
        reached = 0
        for agent, send in list(self._sends.items()):
            try:
                await send(command)
                reached += 1
            except Exception as error:
                _log.warning("run %s: command not delivered to agent %s: %s", self.run_id, agent, error)
        if reached and command["state"] == "pending":
            changes = Changes()
            changes.add_commands(
                self.state.commands.delivered(command["command_id"], self._clock(), f"sent to {reached} agents")
            )
            await self._conclude(changes)

    # --- agents and people ---------------------------------------------------------------------------------------

    async def agent_connected(self, agent: str, node: str, send: Send) -> list[dict[str, Any]]:
        """Note an agent; return the commands that wait for it."""
        state = await self.ready()
        self._sends[agent] = send
        known = state.agents.setdefault(agent, {"agent": agent, "node": node, "time": self._clock(), "ranks": []})
        known["connected"] = True
        state.liveness.agent_connected(agent, self._clock())
        self._run |= {
            k: v for k, v in (await self._index.stored(self.run_id)).items() if k in ("name", "project", "config")
        }
        return state.commands.waiting()

    def agent_disconnected(self, agent: str) -> None:
        """Note that an agent's connection ended."""
        self._sends.pop(agent, None)
        known = self.state.agents.get(agent)
        if known is not None:
            known["connected"] = False
            self.channel.publish({"type": "health", "agent": self.state.agent_view(known)})
        self.state.liveness.agent_disconnected(agent, self._clock())

    def health(self, health: Health) -> None:
        """Take an agent's newest word about its ranks."""
        agent = self.state.on_health(health)
        if self.channel:
            self.channel.publish({"type": "health", "agent": agent})

    async def order(self, order: Order, *, command_id: str, issuer: str) -> dict[str, Any]:
        """Order a command, store it and send it on; return it."""
        state = await self.ready()
        known = state.commands.find(order.idempotency_key)
        if known is not None:
            return known
        command = state.order(order, command_id=command_id, issuer=issuer)
        changes = Changes()
        changes.add_commands([command])
        await self._conclude(changes)
        return command

    async def acknowledge(self, incident_id: str, who: str) -> dict[str, Any]:
        """Note that somebody looks after an incident; return it.

        Raises:
            NotFound: there is no such incident.
        """
        state = await self.ready()
        incident = state.incidents.acknowledge(incident_id, who, self._clock())
        if incident is None:
            raise NotFound(f"run {self.run_id} has no incident {incident_id}", hint="list them with GET .../incidents")
        changes = Changes()
        changes.add_incidents([incident])
        await self._conclude(changes)
        return incident

    async def undo_segment(self, segment: int, who: str) -> dict[str, Any]:
        """Take back a segment that was inferred from steps alone: they were no rollback. Return the segments.

        The lineage is a fold over what is stored, so the run is folded again without it.

        Raises:
            NotFound: there is no such segment.
            Conflict: it was declared or ordered, or other segments hang from it.
        """
        tree = (await self.ready()).fold.tree
        if not 0 < segment < len(tree):
            raise NotFound(f"run {self.run_id} has no segment {segment}", hint="list them with GET .../segments")
        found = tree[segment]
        if found.cause != "restart" or any(s.parent == segment for s in tree):
            raise Conflict(
                f"segment {segment} (cause {found.cause}) can't be undone",
                hint="only a segment that nobody declared and from which no other hangs can be",
            )
        with redis_errors():
            await self._journal.undo(found.key)
        _log.warning("run %s: segment %d undone by %s", self.run_id, segment, who)
        await self.stop()
        self._caught_up.clear()
        self.start()
        await self.ready()
        self.channel.publish({"type": "reset", "reason": "the lineage was corrected; fetch again"}, self.cursor)
        return self.segments()

    # --- storage -------------------------------------------------------------------------------------------------

    def arrived(self, size: int) -> None:
        """Note that an agent's frame of ``size`` bytes was stored in the stream."""
        self._keeper.arrived(self.state.store, size)

    async def room(self) -> None:
        """Wait for room in the window; raise Unavailable when there is none for some seconds."""
        await self._keeper.room()

    def storage(self) -> dict[str, Any]:
        """Return where the run's points are, in the shape of docs/api.md."""
        return self._keeper.facts(self.state.store)

    async def flush(self) -> None:
        """Archive everything: the run is idle. Raises ArchiveError when that is not possible."""
        await self._keeper.flush(self.state, self._stored_to)

    async def compact(self) -> int:
        """Merge the run's small parts; return by how many they became fewer."""
        await self.ready()
        return await self._keeper.compact(self.state.store)

    async def delete_files(self) -> None:
        """Stop, and remove every file of the run."""
        await self.ready()
        await self.stop()
        with redis_errors():
            await self._archive.delete(self.state.store.parts)

    def segments(self) -> dict[str, Any]:
        """Return the lineage in the shape of docs/api.md."""
        tree = self.state.fold.tree
        return {"head": tree.head, "segments": tree.as_dicts()}

    def run(self) -> dict[str, Any]:
        """Return the Run of docs/api.md as it is now."""
        self._refresh()
        return self._run

    @property
    def has_agents(self) -> bool:
        """Whether an agent is connected."""
        return bool(self._sends)

    @property
    def busy(self) -> bool:
        """Whether agents or browsers are connected."""
        return bool(self._sends) or len(self.channel) > 0
