"""One run in this process: follows it, and takes what agents report and what people ask of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from stabilitybackend.base.errors import Conflict, NotFound
from stabilitybackend.base.keys import DURABLE, RunKeys
from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.lineage.branching import UNDONE_STEPS
from stabilitybackend.lineage.consumer import Effects
from stabilitybackend.lineage.tree import undoable
from stabilitybackend.runs.agents.connected_agents import Send
from stabilitybackend.runs.feed.messages import publish
from stabilitybackend.runs.follower import RunFollower
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.commands import Command, CommandRequest
from stabilitybackend.schema.health import AgentHealth
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.lineage import Segments
from stabilitybackend.schema.runs import Run, StoringProblem
from stabilitybackend.storage.redis_link import redis_errors
from stabilitybackend.storage.redis_link.replicas import WAIT_S, on_a_replica
from stabilityclient.wire import Health, Hello

__all__ = ["RunWorker"]

#: Longest wait until it is known who is connected, seconds: reports of the doors are read once a second.
AGENTS_KNOWN_S = 3.0
#: What is said of an order that only one Redis is known to hold.
NOT_ON_A_REPLICA = (
    f"It is stored and sent, but no replica of Redis has confirmed it within {WAIT_S:g} s: should Redis fail now, look "
    "whether it is still in the list of commands."
)
_log = logging.getLogger(__name__)


class RunWorker(RunFollower):
    """Owns the state of one run in this process."""

    #: The one that was published last.
    _storing_problem: StoringProblem | None = None

    async def agent_connected(self, hello: Hello, send: Send) -> list[Command]:
        """Note an agent; return the commands that wait for it."""
        state = await self.ready()
        self.rest.came()
        self.listing.touch()
        self._senders[hello.agent] = send
        self._slices.after(partial(state.agents.connect, hello))
        self.listing.rename(hello)
        waiting = state.commands.waiting()
        await self._delivered(waiting, f"sent to the agent of {hello.node} when it connected")
        return waiting

    async def hand_out_again(self) -> None:
        """Send what is not over to every agent once more; an agent that has it carries it out once all the same."""
        if self.readiness.reached:
            for command in self.state.commands.waiting():
                await self._deliver(command)

    def agent_disconnected(self, agent: str) -> None:
        """Note that an agent's connection ended."""
        self.rest.came()
        self.listing.touch()
        self._senders.pop(agent, None)
        self._slices.after(partial(self._take, partial(self.state.agents.disconnect, agent)))

    def health(self, health: Health) -> None:
        """Take an agent's newest report on its ranks."""
        self.rest.active()
        self._slices.after(
            partial(self._take, partial(self.state.agents.health, health, looked_at=len(self.channel) > 0))
        )

    def _take(self, report: Callable[[], AgentHealth | None]) -> None:
        with self.internal_errors.noted("taking what its agents report"):
            if (agent := report()) is not None:
                self._health.put(agent)

    async def issue(
        self, request: CommandRequest, *, command_id: str, issuer: str, check: Callable[[RunState], None] | None = None
    ) -> Command:
        """Issue, store and send a command, unless ``check`` raises; return it, or that of the same idempotency key.

        It is sent when a replica of Redis has it, too, or none has said so in time: then it has a ``warning``.
        """
        await self.ready()
        with contextlib.suppress(TimeoutError):  # "no agent is connected" would be wrong right after a takeover
            async with asyncio.timeout(AGENTS_KNOWN_S):
                await self.agents_known.wait()
        state = await self.ready()
        self.rest.came()
        key = request.idempotency_key
        if (known := state.commands.find(key) or self.orders.find(key)) is not None:
            return known
        if check is not None:
            check(state)
        command = state.issue(request, command_id=command_id, issuer=issuer)
        changes = Effects(commands={command.command_id: command})
        await self._store(changes)
        held = await self._on_a_replica()
        await self._show(changes)
        return command if held else replace(command, warning=NOT_ON_A_REPLICA)

    async def withdraw(self, command_id: str, who: str) -> Command:
        """Take back an order that came while nobody owned the run, and that waits still; return it.

        Raises:
            NotFound: there is no such order. Conflict: it waits for no worker any more.
        """
        state = await self.ready()
        if (known := state.commands.get(command_id)) is not None:
            raise Conflict(
                f"{known.kind} {command_id} was taken by a worker (state {known.state}), and can't be taken back",
                hint="it goes on, or expires by itself; a rollback can be undone on the run's page once it is done",
            )
        command = await self.orders.withdraw(command_id, who)
        publish(self.channel, state, Effects(commands={command_id: command}), self.cursor)
        return command

    async def _on_a_replica(self) -> bool:
        return await on_a_replica(self.fence.redis, RunKeys(self.run_id).commands, DURABLE)

    async def orders_came(self) -> None:
        """Note that something was ordered, acknowledged or set while nobody owned the run; the next tick takes it."""
        await self.orders.load()
        await self.detectors.load_waiting()
        self.rest.came()

    def commands(self) -> list[Command]:
        """Return what was ordered, newest first; what waits for an owner before all that has one."""
        return [*self.orders.commands(), *self.state.commands.all()]

    def command(self, command_id: str) -> Command | None:
        """Return one of them, None where there is none."""
        return self.state.commands.get(command_id) or self.orders.get(command_id)

    async def acknowledge(self, incident_id: str, who: str) -> Incident:
        """Note that somebody takes care of an incident; return it. Raises NotFound where there is none."""
        await self.ready()
        await self._take_acknowledged()  # who came before is the first one
        incident = (await self.ready()).incidents.acknowledge(incident_id, who, self._clock())
        if incident is None:
            raise self._no_incident(incident_id)
        changes = Effects(incidents={incident_id: incident})
        await self._store(changes)
        await self._on_a_replica()
        await self._show(changes)
        return incident

    def _no_incident(self, incident_id: str) -> NotFound:
        return NotFound(f"run {self.run_id} has no incident {incident_id}", hint="list them with GET .../incidents")

    async def take(self, finding: Finding) -> None:
        """Take in what was found about the run beside its own points, at this moment."""
        state, changes = await self.ready(), Effects()
        state.found(finding, self._clock(), changes)
        await self._conclude(changes)

    async def undo_segment(self, segment: int, who: str) -> Segments:
        """Take back a segment that was inferred from steps alone, and all like it: they were no rollback.

        The lineage is a fold over what is stored, so the run is folded again without them. Returns the segments, raises
        as ``undoable``.
        """
        async with self._turning:
            found = undoable(self.run_id, (await self.ready()).fold.tree, segment)
            alike = [one for one in found if not one.undone]
            if not alike:
                return self.state.fold.tree.view()
            keys = [one.key for one in alike] + [UNDONE_STEPS] * (alike[0].inferred == "steps")
            with redis_errors():
                await self.journal.undo(keys, min(one.fork_step for one in alike))
            _log.warning("run %s: segment %d and %d like it undone by %s", self.run_id, segment, len(alike) - 1, who)
            await self._pause()
            self.readiness.lose()
            if not self._closed:
                self.start()
            await self.ready()
        self.channel.publish({"type": "reset", "reason": "the lineage was corrected; fetch again"}, self.cursor)
        return self.state.fold.tree.view()

    def arrived(self, frame_id: str, size: int) -> None:
        """Note that an agent's frame of ``size`` bytes was stored in the stream."""
        if not self.handed.covers(frame_id):
            self.rest.wake()
        self.window.arrived(self.state.store, frame_id, size)

    @property
    def followed_to(self) -> str:
        """The stream id that frames have to follow to be handed over, "" where they are to be read."""
        if not self.readiness.reached or self.journal.interrupted or self.is_over:
            return ""
        return self.handed.newest

    async def note_full(self) -> None:
        """Let the doors know whether the stream may grow."""
        if self.journal.more:
            await self.journal.count()
            self.window.found_waiting(self.state.store, self.journal)
        full, key = self.window.full, RunKeys(self.run_id).owner
        if full != self._noted_full:
            await self.fence.write(("HSET", key, "full", full) if full else ("HDEL", key, "full"))
            self._noted_full = full

    async def flush(self) -> None:
        """Archive everything: the run is idle. Raises ArchiveError when that is not possible."""
        await self.window.flush(lambda: (self.state, self._stored_to))
        if not self.state.store.hot_bytes:
            await self._restart.forget()

    async def compact(self) -> None:
        """Merge the run's small parts."""
        await self.ready()
        await self.window.compact(lambda: self.state.store)

    async def delete_files(self) -> None:
        """Stop, and remove every file of the run."""
        async with self._turning:
            await self.stop()
        with redis_errors():
            await self.fence.take()
            async with self.window.changing:
                await self._archive.delete()
                await self._restart.forget()

    def run(self) -> Run:
        """Return the run as it is now."""
        return self.listing.shown(self.internal_errors.view(self.state.view, self.listing.run))

    @property
    def storing_problem(self) -> StoringProblem | None:
        """Why nothing new of this run alone is stored, None while it is."""
        since = self.window.full_since
        if since is None:
            return None
        return StoringProblem(
            "window_full",
            f"Nothing new of this run is stored: {self.window.full}",
            "Training goes on, and agents keep what comes and send it again. Mend what is named; where nothing is, "
            "look into the server's log.",
            since,
        )

    async def tick(self) -> None:
        """Judge silence and expiry, store and publish the summary, and whether what comes is stored."""
        await super().tick()
        problem = self.storing_problem
        if problem != self._storing_problem:
            self._storing_problem = problem
            self.channel.publish({"type": "storing", "storing": problem})

    @property
    def has_agents(self) -> bool:
        """Whether an agent is connected."""
        return bool(self._senders)

    @property
    def busy(self) -> bool:
        """Whether agents or browsers are connected."""
        return self.has_agents or len(self.channel) > 0

    @property
    def expects(self) -> bool:
        """Whether something is open that time alone ends: an order, a fault of a GPU."""
        state, commands = self.state, self.state.commands
        ordered = self.orders.waiting or commands.waiting() or commands.restart_under_way() is not None
        return bool(ordered) or state.gpus.expects
