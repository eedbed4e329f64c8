"""Relay of one process: its requests, its questions to the owners of runs, its view of all runs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from redis.asyncio import Redis
from starlette.types import ASGIApp

from stabilitybackend.access.auth import Authenticator
from stabilitybackend.runs.archiving.retention import Retention
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.runs.manager import RunManager
from stabilityplugins.scale.members import Members
from stabilityplugins.scale.relay.calls import Calls
from stabilityplugins.scale.relay.feeds import Feeds
from stabilityplugins.scale.relay.forwarding import Forwarding
from stabilityplugins.scale.relay.overview import Overview
from stabilityplugins.scale.relay.owners import Owners
from stabilityplugins.scale.relay.retention import SharedRetention
from stabilityplugins.scale.relay.signer import RelaySigner, SignatureCheck

__all__ = ["Relay"]


class Relay:
    """Of a process that works together with others.

    Args:
        members: all of them. manager: of the runs here. authenticator: identifies the caller.
        clock: unix seconds now.

    Attributes:
        feeds: of runs that other processes own.
        calls: requests of this process to others, and theirs to it.
    """

    def __init__(
        self,
        redis: Redis,
        members: Members,
        manager: RunManager,
        authenticator: Authenticator,
        clock: Callable[[], float],
    ) -> None:
        self._signer = RelaySigner(redis, members.me.member_id)
        self._owners = Owners(redis, members)
        self._authenticator = authenticator
        self._members = members
        self.calls = Calls(self._owners, self._signer)
        self._pages = "pages" in members.me.roles
        self._forwarding: Forwarding | None = None
        self._overview = Overview(redis, manager, RunIndex(redis), clock)
        self.feeds = Feeds(manager, self._owners, self._signer) if self._pages else None

    def retention(self, here: Retention) -> SharedRetention:
        """Return the removal of old runs by all workers; ``here``: of this process, which gets its share."""
        return SharedRetention(here, self.calls, self._owners, self._members)

    @property
    def news(self) -> Callable[[], set[str]] | None:
        """Function that returns the runs that changed, None where no view of all of them is kept."""
        return self._overview.news if self._pages else None

    def inside(self, app: ASGIApp) -> ASGIApp:
        """Return ``app`` with the relay of requests; it goes inside of their checks."""
        if not self._pages:
            return app
        self._forwarding = Forwarding(app, self._owners, self._signer, self._authenticator)
        return self._forwarding

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return ``app`` with the trust in other processes; it goes around the checks of requests."""
        return SignatureCheck(self.calls.around(app), self._signer)

    def work(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return the background tasks, by name."""
        if self.feeds is None:
            return {}
        return {"feeds": self.feeds.follow(), "overview": self._overview.follow()}

    async def stop(self) -> None:
        """End connections to other processes."""
        if self._forwarding is not None:
            await self._forwarding.close()
        await self.calls.close()
