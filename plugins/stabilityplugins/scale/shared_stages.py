"""Stages of one process of several: its entry among the members, and its work with the others."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from redis.exceptions import RedisError
from starlette.types import ASGIApp

from stabilityalerting import Actions
from stabilitybackend.alerts.actions import AlertActions
from stabilitybackend.base.errors import Unavailable
from stabilitybackend.base.tasks import Watched, end
from stabilitybackend.ingest.ingest import Beside
from stabilitybackend.runs.archiving.retention import Retention
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.runs.ownership.fence import Ownership
from stabilitybackend.schema.runs import StoringProblem
from stabilitybackend.server.stages import (
    Access,
    AnyRetention,
    Connections,
    Feed,
    Membership,
    Neighbours,
    Options,
    Runs,
    Storage,
)
from stabilitybackend.storage.redis_link import make_redis
from stabilityplugins.scale.members import Member, Members
from stabilityplugins.scale.relay.pages import Relay
from stabilityplugins.scale.relayed_actions import RelayedActions
from stabilityplugins.scale.roles.door import Door
from stabilityplugins.scale.roles.inbox import Inbox, Order, Outbox
from stabilityplugins.scale.roles.owner_side import OwnerSide
from stabilityplugins.scale.roles.placer import Placer, replaceable_by

__all__ = ["SharedMembership", "SharedWork"]


class SharedMembership(Membership):
    """The entry of this process among the members; others take over its runs when it leaves."""

    def __init__(self, options: Options, connections: Connections) -> None:
        super().__init__(options, connections)
        name = f"{'-'.join(options.settings.role)}-{secrets.token_hex(4)}"
        self._redis = connections.ingest
        self._follows_runs = options.has("worker")
        self.members = Members(self._redis, Member(name, options.settings.role, options.address, options.version))
        self.ownership = Ownership(
            name, options.address, replaceable=self._replaceable, placed=True, reads_only=not self._follows_runs
        )
        self._beating: asyncio.Task[None] | None = None

    async def _replaceable(self, run_id: str) -> str:
        if not self._follows_runs:
            raise Unavailable("this process follows no runs", hint="ask one with --role worker", code="moved")
        self.members.check_takes_part()
        return await replaceable_by(self._redis, self.members, run_id)

    def takes_part(self) -> bool:
        """Return whether the version of this process fits those of the others."""
        return self.members.takes_part

    def problem(self, now: float) -> StoringProblem | None:
        """Return the problem of processes of other versions."""
        return self.members.trouble(now)

    def on_change(self, call: Callable[[], None]) -> None:
        """Call ``call`` when members come or go."""
        self.members.changed.append(call)

    async def start(self) -> None:
        """Write the entry as soon as Redis answers."""
        with contextlib.suppress(RedisError, OSError):  # ``keep`` reports it, and tries again
            await self.members.beat()
        self._beating = asyncio.create_task(self.members.keep(), name="members")

    async def leave(self) -> None:
        """Remove the entry: others take over the runs of this process."""
        await end(self._beating)
        await self.members.leave()


class SharedWork(Neighbours):
    """Agents, runs and pages shared with other processes: door, placer, relay."""

    def __init__(
        self,
        options: Options,
        connections: Connections,
        watched: Watched,
        membership: SharedMembership,
        storage: Storage,
        access: Access,
        runs: Runs,
    ) -> None:
        super().__init__(runs)
        members, redis, now = membership.members, connections.ingest, storage.storing.now
        self._membership = membership
        self._watched = watched
        self._waiting = make_redis(options.redis_url, connections=1)
        self._outbox = Outbox(redis)
        self._door: Door | None = None
        if options.has("door"):
            self._door = Door(redis, members, self._outbox, now)
            self.agents = self._door
        self.passes_on = self._door is not None
        self._placer: Placer | None = None
        self._owner_side: OwnerSide | None = None
        if options.has("worker"):
            self._placer = Placer(redis, members, RunIndex(redis), runs.manager, self._outbox)
            self._owner_side = OwnerSide(redis, members, runs.manager, self._placer, self._outbox)
        self.relay = Relay(connections.redis, members, runs.manager, access.authenticator, now)
        self.news = self.relay.news
        self._tasks: list[asyncio.Task[None]] = []

    def beside(self) -> Beside | None:
        """Return None: workers read their frames from Redis, whichever process stored them."""
        return None

    def owner_seen(self, run_id: str, worker: str, full: str) -> None:
        """Note the owner of a run, as Redis answers it with each stored frame."""
        if self._door is not None:
            self._door.owner_seen(run_id, worker, full)

    async def feed(self, run_id: str, cursor: str | None) -> Feed:
        """Return the feed of a run from the process that owns it."""
        if self.relay.feeds is None:
            return await self.own_feed(run_id, cursor)
        return await self.relay.feeds.open(run_id, cursor)

    def actions(self, here: AlertActions) -> Actions:
        """Return actions that the owner of a run carries out."""
        return RelayedActions(here, self.relay.calls)

    def retention(self, here: Retention) -> AnyRetention:
        """Return a retention in which each worker removes its own runs."""
        return self.relay.retention(here)

    def inside(self, app: ASGIApp) -> ASGIApp:
        """Return ``app`` behind the forwarding of requests to the owner of a run."""
        return self.relay.inside(app)

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return ``app`` behind the check of signatures of other processes."""
        return self.relay.around(app)

    def work(self) -> Mapping[str, Coroutine[Any, Any, object]]:
        """Return the feeds and the overview of other processes' runs."""
        return self.relay.work()

    async def start(self) -> None:
        """Begin to take and give runs, and to deliver commands."""
        inbox = Inbox(self._waiting, self._membership.members.me.member_id, self._runs_named, self._ordered)
        work = {"inbox": inbox.follow(), "outbox": self._outbox.follow()}
        if self._placer is not None and self._owner_side is not None:
            work |= {"placer": self._placer.follow(), "reports": self._owner_side.follow()}
        self._tasks = [asyncio.create_task(each, name=name) for name, each in work.items()]
        self._watched.add(*self._tasks)

    def _runs_named(self, runs: set[str]) -> None:
        if self._owner_side is not None:
            self._owner_side.named(runs)

    async def _ordered(self, order: Order) -> None:
        if self._door is not None:
            await self._door.deliver(order)

    async def stop(self) -> None:
        """Leave and give all runs to other workers, then end the connections to other processes."""
        await self._membership.leave()
        await end(*(task for task in self._tasks if task.get_name() in ("placer", "reports")))
        if self._placer is not None:
            await self._placer.give_all()
            await asyncio.sleep(0.02)  # the outbox collects for a moment
        await end(*self._tasks)
        await self._waiting.aclose()
        await self.relay.stop()
