"""The gateway: the WebSocket ``/api/v1/agent``.

One connection is one agent of one run. Frames are stored by Ingest, exactly once; several may be on their way, and
the answers go out in the frames' order. A message that can't be read is answered and counted, and the connection goes
on. When Redis is away a frame is answered with Error ``busy``: the agent keeps it and tries again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import APIRouter, WebSocket
from fastapi.responses import JSONResponse
from msgspec.msgpack import Decoder

from stabilitybackend.access.auth import Authenticator, Principal
from stabilitybackend.base.errors import Forbidden, StabilityBoardError, Unauthorized, Unavailable
from stabilitybackend.base.quiet_log import QuietLog
from stabilitybackend.base.tasks import end
from stabilitybackend.ingest.connection import AgentConnection
from stabilitybackend.ingest.ingest import Ingest
from stabilitybackend.schema.commands import Command
from stabilitybackend.schema.health import TYPED_HEALTH
from stabilityclient.wire import CommandMessage, Health, Hello, Output

__all__ = ["Gateway", "GatewayCounts", "RunServices", "router"]

_log = logging.getLogger(__name__)


#: How often it is asked whether the key of a connected agent still works, seconds.
RECHECK_S = 5.0
#: WebSocket close code (RFC 6455, section 7.4).
_CLOSE_POLICY = 1008


class RunServices(Protocol):
    """Services of the rest of the server for the gateway. Each may raise Unavailable."""

    async def project(self, run_id: str) -> str:
        """Return the project of a run, "" where it has none. Raises NotFound where there is no such run."""

    async def agent_connected(
        self, hello: Hello, send: Callable[[CommandMessage], Awaitable[None]]
    ) -> Sequence[Command]:
        """Note that the agent is here and return the commands that wait for it.

        ``send(message)`` pushes a command to it later and raises AgentGone when the connection is closed.
        """

    async def agent_disconnected(self, run_id: str, agent: str) -> None:
        """Note that the agent's connection ended. Not called when a newer connection of the same agent took over."""

    async def health(self, run_id: str, health: Health) -> None:
        """Take the newest slots of the agent's ranks."""

    async def output(self, run_id: str, output: Output) -> None:
        """Keep lines that ranks printed."""

    async def room(self, run_id: str) -> None:
        """Wait some seconds for room in the run's window; raise Unavailable while there is none.

        AgentGone ends the connection: the agent comes back with its Hello. So does TakesNoPart, here and in
        ``health``, and the agent gets the reason.
        """

    async def frame_stored(self, run_id: str, frame_id: str, size: int) -> None:
        """A hint that a frame of ``size`` bytes is in the stream. Must return immediately: answers wait for it."""


@dataclass
class GatewayCounts:
    """Counts of the gateway since its start.

    Args:
        connections: agents connected now.
        bad_messages: messages that could not be read.
        bad_frames: readable frames that can't be stored.
        bad_healths: readable Health messages that can't be shown.
        busy: frames refused because Redis was away.
        refused: connections refused for their key, version or Hello.
    """

    connections: int = 0
    bad_messages: int = 0
    bad_frames: int = 0
    bad_healths: int = 0
    busy: int = 0
    refused: int = 0

    def add(self, name: str, count: int = 1) -> None:
        """Add to one of the counts."""
        setattr(self, name, getattr(self, name) + count)


@dataclass
class Gateway:
    """Shared by all connections.

    Args:
        ingest: started writer.
        clock: unix seconds now. takes_output: lines printed by ranks are kept.
        types: as for ``decode_message``; empty where messages are only passed on.
    """

    ingest: Ingest
    authenticator: Authenticator
    services: RunServices
    server_version: str = ""
    clock: Callable[[], float] = time.time
    takes_output: bool = False
    types: Mapping[Any, Decoder[Any]] = field(default_factory=lambda: TYPED_HEALTH)
    counts: GatewayCounts = field(default_factory=GatewayCounts)
    #: Where refused messages are named: agents can send as many as they like.
    refused: QuietLog = field(default_factory=lambda: QuietLog(_log))
    #: Where sources are named whose numbers are spoilt.
    spoilt: QuietLog = field(default_factory=lambda: QuietLog(_log))
    #: The newest connection of each agent of each run.
    connections: dict[tuple[str, str], AgentConnection] = field(default_factory=dict)


def router(gateway: Gateway) -> APIRouter:
    """Return the route ``/api/v1/agent``."""
    routes = APIRouter()

    @routes.websocket("/api/v1/agent")
    async def agent(socket: WebSocket) -> None:
        async def allowed() -> Principal:
            identity = await gateway.authenticator.authenticate(socket.headers, socket.cookies)
            identity.require("agent")
            return identity

        async def until_refused() -> None:
            while True:
                await asyncio.sleep(RECHECK_S)
                try:
                    await allowed()
                except (Unauthorized, Forbidden):
                    return await connection.close(_CLOSE_POLICY, "the key no longer works")
                except Unavailable:
                    continue

        try:
            identity = await allowed()
        except StabilityBoardError as error:
            gateway.counts.add("refused")
            await socket.send_denial_response(JSONResponse(error.as_json(), status_code=error.status))
            return
        await socket.accept()
        connection = AgentConnection(gateway, socket, identity.project)
        watch = asyncio.create_task(until_refused())
        try:
            await connection.serve()
        finally:
            await end(watch)

    return routes
