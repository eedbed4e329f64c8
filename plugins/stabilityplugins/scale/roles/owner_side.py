"""A worker's use of the doors' reports: the agents of its runs are theirs, and its commands go to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stabilitybackend.base.errors import AgentGone, StabilityBoardError
from stabilitybackend.base.quiet_log import QuietLog
from stabilitybackend.runs.agents.connected_agents import Send
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.storage.redis_link import as_unavailable
from stabilityclient.wire import CommandMessage, Health
from stabilityplugins.scale.members import Members
from stabilityplugins.scale.roles.inbox import Order, Outbox
from stabilityplugins.scale.roles.placer import Placer
from stabilityplugins.scale.roles.reports import (
    READ_COUNT,
    AgentAt,
    Connected,
    Disconnected,
    Ordered,
    Report,
    RunReports,
)

__all__ = ["OwnerSide"]

#: Runs that are looked at in one call to Redis.
BATCH = 200
#: Period of looking at every followed run, seconds, named or not.
EVERY_S = 1.0
#: Unfinished commands are handed out again so often, seconds: the door of an agent may have been stalled when
#: it was to get them, or Redis may have lost them on their way. No agent confirms the receipt of one.
HAND_OUT_S = 3.0
_log = logging.getLogger(__name__)


class _Followed:
    """The agents of one run that is followed here."""

    def __init__(self, redis: Redis, worker: RunWorker) -> None:
        self.worker = worker
        self.reports = RunReports(redis, worker.run_id)
        self.agents: dict[str, AgentAt] = {}
        self.begun = False
        #: When its commands were handed out last, by the monotonic clock.
        self.handed_out = float("-inf")


class OwnerSide:
    """Reads the reports of the runs that this process follows, and hands their commands to doors."""

    def __init__(self, redis: Redis, members: Members, manager: RunManager, placer: Placer, outbox: Outbox) -> None:
        self._redis = redis
        self._members = members
        self._manager = manager
        self._placer = placer
        self._outbox = outbox
        self._runs: dict[str, _Followed] = {}
        self._named = set[str]()
        self._due = asyncio.Event()
        self._quiet = QuietLog(_log)

    def named(self, runs: Collection[str]) -> None:
        """Note that something is new in these runs."""
        ours = self._manager.owned()
        for run_id in runs:
            if (worker := ours.get(run_id)) is None:
                self._placer.place_soon()
            else:
                worker.rest.wake()
        self._named.update(runs)
        self._due.set()

    async def follow(self) -> None:
        """Read reports without end: of named runs without a wait, of all of them each second."""
        looked = float("-inf")
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(max(0.0, looked + EVERY_S - loop.time())):
                    await self._due.wait()
            except TimeoutError:
                pass
            self._due.clear()
            named, self._named = self._named, set()
            if every := loop.time() >= looked + EVERY_S:
                looked = loop.time()
            await self._round(None if every else named)

    async def _round(self, named: Collection[str] | None) -> None:
        ours = self._manager.followed()
        for run_id in self._runs.keys() - ours.keys():
            del self._runs[run_id]
        due = []
        for run_id, worker in ours.items():
            known = self._runs.get(run_id)
            if known is None or known.worker is not worker:
                known = self._runs[run_id] = _Followed(self._redis, worker)
            elif named is not None and run_id not in named:
                continue
            due.append(known)
        for at in range(0, len(due), BATCH):
            await self._ask_all(due[at : at + BATCH], every=named is None)

    async def _ask_all(self, runs: list[_Followed], *, every: bool) -> None:
        """Take the news of some runs; nearly all of thousands have none, so all are asked in one call.

        Args:
            every: it is the round of each second, over all runs.
        """
        pipe = self._redis.pipeline(transaction=False)
        for run in runs:
            run.reports.ask(pipe)
        try:
            answers: list[Any] = await pipe.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            self._quiet.log(logging.WARNING, f"what agents report is not read: {error!s:.200}")
            return
        for run, answer in zip(runs, answers, strict=True):
            run_id = run.worker.run_id
            try:
                if isinstance(answer, Exception):
                    raise answer
                if answer or not run.begun:
                    await self._read(run)
                if every:
                    await self._doors_gone(run)
                    await run.worker.note_full()
                    await self._hand_out_again(run)
            except (RedisError, OSError, StabilityBoardError) as error:
                if not isinstance(error, StabilityBoardError) and as_unavailable(error) is None:
                    raise
                self._quiet.log(logging.WARNING, f"run {run_id}: what its agents report is not read: {error!s:.200}")

    async def _read(self, run: _Followed) -> None:
        if not run.begun:
            for report in await run.reports.begin():
                await self._take(run, report)
            run.begun = True
            run.worker.agents_known.set()
        while True:
            reports = await run.reports.read()
            for report in reports:
                await self._take(run, report)
            if len(reports) < READ_COUNT:
                return

    async def _take(self, run: _Followed, report: Report) -> None:
        match report:
            case Health():
                run.worker.health(report)
            case Connected(hello, at):
                known = run.agents.get(hello.agent)
                if known is not None and known.number >= at.number:
                    return
                run.agents[hello.agent] = at
                await self._manager.fleet.announced(hello)
                send = self._sender(run.worker.run_id, hello.agent, at)
                with suppress(AgentGone):  # seen as dead, and maybe only stalled: it gets them with the others below
                    for command in await run.worker.agent_connected(hello, send):
                        await send(CommandMessage(msgspec.to_builtins(command)))
            case Disconnected(agent, number):
                known = run.agents.get(agent)
                if known is None or known.number <= number:
                    run.agents.pop(agent, None)
                    run.worker.agent_disconnected(agent)
            case Ordered():
                await run.worker.orders_came()

    async def _doors_gone(self, run: _Followed) -> None:
        """Note the agents whose door has died: no other process reports that they are not connected any more."""
        for agent, at in list(run.agents.items()):
            if at.door not in self._members.alive and await run.reports.disconnected(agent, at.number):
                run.agents.pop(agent, None)
                run.worker.agent_disconnected(agent)

    async def _hand_out_again(self, run: _Followed) -> None:
        now = asyncio.get_running_loop().time()
        if now >= run.handed_out + HAND_OUT_S:
            run.handed_out = now
            await run.worker.hand_out_again()

    def _sender(self, run_id: str, agent: str, at: AgentAt) -> Send:
        async def send(message: CommandMessage) -> None:
            if at.door not in self._members.alive:
                raise AgentGone(f"the door of agent {agent} is gone")
            await self._outbox.order(at.door, Order(run_id, agent, at.number, message))

        return send
