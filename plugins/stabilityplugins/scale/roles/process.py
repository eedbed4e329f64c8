"""One process of several: its entry among the members, its inbox, and what its roles do beside their routes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Collection

from redis.asyncio import Redis
from redis.exceptions import RedisError

from stabilitybackend.base.errors import Unavailable
from stabilitybackend.base.tasks import end
from stabilitybackend.ingest.ingest import Ingest
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.runs.ownership.fence import Ownership
from stabilitybackend.storage.redis_link import make_redis
from stabilitybackend.storage.storing import Storing
from stabilityplugins.scale.membership.members import Member, Members
from stabilityplugins.scale.roles.door import Door
from stabilityplugins.scale.roles.inbox import Inbox, Order, Outbox
from stabilityplugins.scale.roles.owner_side import OwnerSide
from stabilityplugins.scale.roles.placer import Placer, replaceable_by

__all__ = ["RoleProcess"]


class RoleProcess:
    """What a process with roles has, and one that does all alone has not.

    Args:
        redis: for calls that are answered at once.
        roles: of this process, of ``settings.ROLES``. url: where other processes reach it.
        member_id: of this start.

    Attributes:
        door: takes what agents send, where this process is a door.
    """

    def __init__(
        self, redis: Redis, redis_url: str, roles: Collection[str], url: str, version: str, member_id: str = ""
    ) -> None:
        name = member_id or f"{'-'.join(roles)}-{secrets.token_hex(4)}"
        self._redis = redis
        self._roles = roles
        self._waiting = make_redis(redis_url, connections=1)
        self.members = Members(redis, Member(name, tuple(roles), url, version))
        self.ownership = Ownership(name, url, replaceable=self._replaceable)
        self._outbox = Outbox(redis)
        self.door: Door | None = None
        self._owner_side: OwnerSide | None = None
        self._placer: Placer | None = None
        self._beating: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def _replaceable(self, run_id: str) -> str:
        if "worker" not in self._roles:
            raise Unavailable("this process follows no runs", hint="ask one with --role worker", code="moved")
        self.members.check_takes_part()
        return await replaceable_by(self._redis, self.members, run_id)

    def attach(self, manager: RunManager, ingest: Ingest, storing: Storing) -> None:
        """Take over the parts that the roles work with, before ``start``."""
        storing.beside = lambda: self.members.trouble(storing.now())
        self.members.changed.append(storing.notify)
        if "door" in self._roles:
            self.door = Door(self._redis, ingest, self.members, self._outbox, storing.now)
        if "worker" in self._roles:
            self._placer = Placer(self._redis, self.members, RunIndex(self._redis), manager, self._outbox)
            self._owner_side = OwnerSide(self._redis, self.members, manager, self._placer, self._outbox)

    async def enter(self) -> None:
        """Be seen by the others, as soon as Redis is there."""
        with contextlib.suppress(RedisError, OSError):  # ``keep`` reports it, and tries on
            await self.members.beat()
        self._beating = asyncio.create_task(self.members.keep(), name="members")

    def start(self) -> list[asyncio.Task[None]]:
        """Begin to work; return what goes on until ``stop``."""
        inbox = Inbox(self._waiting, self.members.me.member_id, self._runs_named, self._ordered)
        work = {"inbox": inbox.follow(), "outbox": self._outbox.follow()}
        if self._placer is not None and self._owner_side is not None:
            work |= {"placer": self._placer.follow(), "reports": self._owner_side.follow()}
        self._tasks = [asyncio.create_task(each, name=name) for name, each in work.items()]
        return self._tasks

    def _runs_named(self, runs: set[str]) -> None:
        if self._owner_side is not None:
            self._owner_side.named(runs)

    async def _ordered(self, order: Order) -> None:
        if self.door is not None:
            await self.door.deliver(order)

    async def stop(self) -> None:
        """Leave: others take over what this process follows."""
        await end(self._beating)
        await self.members.leave()
        placer = [task for task in self._tasks if task.get_name() in ("placer", "reports")]
        await end(*placer)
        if self._placer is not None:
            await self._placer.give_all()
            await asyncio.sleep(0.02)  # the outbox collects for a moment
        await end(*self._tasks)
        await self._waiting.aclose()
