"""Door: agents connect to it, it stores their frames, and the run's owner, a process elsewhere, is notified.

Any agent may use any door, and another one the next time. A door holds nothing that is not in Redis: its
connections, and their reports, are stored with the run (reports.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from stabilitybackend.base.errors import AgentGone, NotFound, Unavailable
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.base.quiet_log import QuietLog
from stabilitybackend.runs.agents.output import OutputLog
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.schema.commands import Command
from stabilitybackend.storage.redis_link import redis_errors
from stabilityclient.wire import CommandMessage, Health, Hello, Output
from stabilityplugins.scale.members import Members
from stabilityplugins.scale.placement import choices
from stabilityplugins.scale.roles.inbox import Order, Outbox
from stabilityplugins.scale.roles.reports import RunReports

__all__ = ["Door"]

#: A run that no worker follows gets at most so many bytes of frames into its stream; then its agents keep them.
UNFOLLOWED_BYTES = 64 * 1024 * 1024
#: Shortest time between two notes that a run has to be followed, seconds, while it is not.
NOTE_EVERY_S = 1.0
#: Whether a run that takes nothing does so again is asked at most this often, seconds.
ASK_EVERY_S = 0.5
_log = logging.getLogger(__name__)

Send = Callable[[CommandMessage], Awaitable[None]]


@dataclass(slots=True)
class _Agent:
    hello: Hello
    number: int
    send: Send


@dataclass(slots=True)
class _Run:
    """A door's view of a run: its owner's id, why it takes nothing now, the bytes since it had none.

    When it was noted as live, and its owner asked for, by the monotonic clock.
    """

    owner: str = ""
    full: str = ""
    unfollowed_bytes: int = 0
    noted_at: float = float("-inf")
    asked_at: float = float("-inf")


class Door:
    """The gateway's ``RunServices`` where no worker is in the process.

    Args:
        members: who is there. outbox: to the workers' inboxes.
        clock: unix seconds now. monotonic: seconds.
    """

    def __init__(
        self,
        redis: Redis,
        members: Members,
        outbox: Outbox,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis
        self._members = members
        self._outbox = outbox
        self._clock = clock
        self._monotonic = monotonic
        self._index = RunIndex(redis)
        self._output = OutputLog(redis)
        self._runs: dict[str, _Run] = {}
        self._agents: dict[tuple[str, str], _Agent] = {}
        self._tasks = set[asyncio.Task[None]]()
        self._quiet = QuietLog(_log)

    def owner_seen(self, run_id: str, worker: str, full: str) -> None:
        """Note a run's owner ("" for none), and why it takes nothing now ("" while it does)."""
        run = self._runs.setdefault(run_id, _Run())
        run.owner, run.full = worker, full
        if worker in self._members.alive:
            run.unfollowed_bytes = 0

    async def project(self, run_id: str) -> str:
        """Return the project of a run, "" where it has none. Raises NotFound where there is no such run."""
        with redis_errors():
            found = await self._index.project(run_id)
        if found is None:
            raise NotFound(f"there is no run {run_id!r}", hint="GET /api/v1/runs lists them")
        return found

    async def agent_connected(self, hello: Hello, send: Send) -> Sequence[Command]:
        """Note an agent. The commands that wait for it come from the run's owner, right behind the Welcome.

        Raises:
            Unavailable: Redis is away, or this door takes no part: the agent comes again, and to another one.
        """
        self._members.check_takes_part()
        with redis_errors():
            await self._index.register(hello, self._clock())
            await self._index.note_live(hello.run_id, self._clock())
            number = await RunReports(self._redis, hello.run_id).connected(hello, self._members.me.member_id)
        self._agents[(hello.run_id, hello.agent)] = _Agent(hello, number, send)
        self._notify(hello.run_id)
        return ()

    async def agent_disconnected(self, run_id: str, agent: str) -> None:
        """Note that an agent's connection to this door ended."""
        known = self._agents.pop((run_id, agent), None)
        if known is not None:
            with redis_errors():
                await RunReports(self._redis, run_id).disconnected(agent, known.number)
            self._notify(run_id)
        if not any(run == run_id for run, _ in self._agents):
            self._runs.pop(run_id, None)

    async def health(self, run_id: str, health: Health) -> None:
        """Report an agent's view of its ranks to the run's owner, and that the agent is here if Redis lost that.

        Raises TakesNoPart as ``room``: an agent that has no frames leaves, too.
        """
        self._members.check_takes_part()
        known = self._agents.get((run_id, health.agent))
        reports = RunReports(self._redis, run_id)
        with redis_errors():
            is_known = await reports.health(health, 0 if known is None else known.number)
            if known is not None and not is_known:
                known.number = await reports.connected(known.hello, self._members.me.member_id)
        self._notify(run_id)

    async def output(self, run_id: str, output: Output) -> None:
        """Keep lines that ranks printed."""
        with redis_errors():
            await self._output.add(run_id, output)

    async def room(self, run_id: str) -> None:
        """Raise Unavailable while the run's window is full, or it has no follower and too much unread data.

        TakesNoPart: this door does not (any more): the agent is to look for another one.
        """
        self._members.check_takes_part()
        run = self._runs.get(run_id)
        if run is None or not (run.full or run.unfollowed_bytes >= UNFOLLOWED_BYTES):
            return
        await self._ask_owner(run_id, run)
        if run.full:
            raise Unavailable(run.full, hint="nothing is lost: agents keep what is not confirmed", code="window_full")
        if run.unfollowed_bytes >= UNFOLLOWED_BYTES:
            raise Unavailable(
                f"no worker follows run {run_id}, and {UNFOLLOWED_BYTES // 2**20} MiB of it wait in Redis",
                hint="start a worker (up --role worker); agents keep what is not confirmed",
                code="unfollowed",
            )

    async def _ask_owner(self, run_id: str, run: _Run) -> None:
        """See whether a run that takes nothing does so again: no frame is stored meanwhile whose answer would tell."""
        now = self._monotonic()
        if run.asked_at <= now < run.asked_at + ASK_EVERY_S:
            return
        run.asked_at = now
        with redis_errors():
            found: Any = await self._redis.hmget(RunKeys(run_id).owner, ["worker", "full"])
        worker, full = ((value or b"").decode() for value in found)
        self.owner_seen(run_id, worker, full)

    async def frame_stored(self, run_id: str, frame_id: str, size: int) -> None:
        """Notify the run's owner; without one, let a worker take it."""
        run = self._runs.setdefault(run_id, _Run())
        if run.owner not in self._members.alive:
            run.unfollowed_bytes += size
            if not run.owner and not run.noted_at <= self._monotonic() < run.noted_at + NOTE_EVERY_S:
                # It had ended, and was let go while its agent returned.
                run.noted_at = self._monotonic()
                self._later(self._index.note_live(run_id, self._clock()))
        self._notify(run_id)

    def _notify(self, run_id: str) -> None:
        run = self._runs.get(run_id)
        owner = "" if run is None else run.owner
        if owner not in self._members.alive:
            workers = [one.member_id for one in self._members.having("worker")]
            if not workers:
                return
            owner = choices(run_id, workers)[0]
        self._outbox.name(owner, run_id)

    async def deliver(self, order: Order) -> None:
        """Send a command to its agent, where that is connected here still."""
        known = self._agents.get((order.run_id, order.agent))
        if known is None or known.number != order.number:
            return  # its newer connection gets it, too
        try:
            await known.send(order.command)
        except AgentGone as error:
            self._quiet.log(logging.WARNING, f"run {order.run_id}: a command did not reach {order.agent}: {error}")

    def _later(self, work: Awaitable[None]) -> None:
        async def guarded() -> None:
            try:
                with redis_errors():
                    await work
            except Unavailable:
                pass  # noted with a later frame

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
