"""The browsers' feed: WebSocket ``/api/v1/live``. Messages: docs/api.md."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import msgspec
from fastapi import APIRouter, WebSocket
from fastapi.responses import JSONResponse
from starlette.websockets import WebSocketDisconnect

from stabilitybackend.access.auth import Principal
from stabilitybackend.base.errors import BadRequest, StabilityBoardError
from stabilitybackend.base.tasks import end
from stabilitybackend.runs.feed.pubsub import Channel, Subscriber
from stabilitybackend.schema.runs import StoringProblem
from stabilitybackend.server.api.access import check_project, identify, server_of, until_refused
from stabilitybackend.server.http_guard import RELAYED
from stabilitybackend.server.stages import Neighbours, Runs

__all__ = ["router"]

#: Seconds after which a browser that takes nothing is given up.
SEND_TIMEOUT_S = 10.0
#: A browser without news gets a ``ping`` so that it can tell a quiet run from a dead connection, seconds.
PING_EVERY_S = 5.0

#: WebSocket close codes (RFC 6455, section 7.4).
_CLOSE_NORMAL, _CLOSE_POLICY = 1000, 1008

router = APIRouter()


@router.websocket("/api/v1/live")
async def live(socket: WebSocket) -> None:
    """Serve one browser until it goes."""
    try:
        identity = await identify(socket)
        identity.require("read")
    except StabilityBoardError as error:
        await socket.send_denial_response(JSONResponse(error.as_json(), status_code=error.status))
        return
    await socket.accept()
    feed = _Feed(socket, identity)
    sender = asyncio.create_task(feed.send_forever())
    receiver = asyncio.create_task(feed.receive_forever())
    refused = asyncio.create_task(until_refused(socket, "read"))
    try:
        await asyncio.wait({sender, receiver, refused}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        feed.leave()
        code = _CLOSE_POLICY if refused.done() else _CLOSE_NORMAL
        await end(sender, receiver, refused)
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await socket.close(code)


class _Subscribe(msgspec.Struct, tag_field="type", tag="subscribe"):
    """Message of a browser: a run, or none for the list of runs, and its newest stream id."""

    run_id: str | None = None
    cursor: str | None = None


class _OneProject(Subscriber):
    """Filters the list of runs by one project."""

    def __init__(self, project: str) -> None:
        super().__init__()
        self._project = project

    def put(self, message: bytes) -> None:
        content = msgspec.json.decode(message)
        about = content["run"] if content["type"] == "run" else content.get("incident")
        if about is None or about["project"] == self._project:
            super().put(message)


class _Feed:
    """One browser's subscription."""

    def __init__(self, socket: WebSocket, identity: Principal) -> None:
        self._socket = socket
        self._identity = identity
        server = server_of(socket)
        self._manager = server[Runs].manager
        self._subscriber = Subscriber() if identity.project is None else _OneProject(identity.project)
        self._channel: Channel | None = None
        #: Another process that passes a feed on asks for that of this one.
        self._open = server[Neighbours].own_feed if socket.scope.get(RELAYED) else server[Neighbours].feed

    async def send_forever(self) -> None:
        """Send queued messages; end when the browser takes none any more."""
        while True:
            try:
                message = await asyncio.wait_for(self._subscriber.get(), PING_EVERY_S)
            except TimeoutError:
                message = msgspec.json.encode({"type": "ping", "server_time": time.time()})
            try:
                await asyncio.wait_for(self._socket.send_text(message.decode()), SEND_TIMEOUT_S)
            except (TimeoutError, WebSocketDisconnect, RuntimeError):
                return

    async def receive_forever(self) -> None:
        """Take the browser's subscriptions; end when it goes."""
        while True:
            try:
                text = await self._socket.receive_text()
            except (WebSocketDisconnect, KeyError, RuntimeError):
                return
            try:
                await self._subscribe(_subscription(text))
            except StabilityBoardError as error:
                self._send({"type": "error", **error.as_json()})

    async def _subscribe(self, wish: _Subscribe) -> None:
        self.leave()
        if wish.run_id is None:
            self._hello(None)
            self._join(self._manager.overview)
            return
        await check_project(self._identity, self._manager, wish.run_id)
        found = await self._open(wish.run_id, wish.cursor)
        self._hello(found.cursor, found.storing_problem)
        if wish.cursor is not None and wish.cursor != found.cursor:
            missed = found.channel.since(wish.cursor, found.cursor)
            if missed is None:
                self._send({"type": "reset", "reason": "too long away; fetch again", "cursor": found.cursor})
            for message in missed or []:
                self._subscriber.put(message)
        self._join(found.channel)

    def _join(self, channel: Channel) -> None:
        channel.join(self._subscriber)
        self._channel = channel

    def leave(self) -> None:
        """Stop the present subscription."""
        if self._channel is not None:
            self._channel.leave(self._subscriber)
            self._channel = None

    def _hello(self, cursor: str | None, problem: StoringProblem | None = None) -> None:
        storing = self._manager.storing or problem
        self._send({"type": "hello", "cursor": cursor, "server_time": time.time(), "storing": storing})

    def _send(self, message: dict[str, Any]) -> None:
        self._subscriber.put(msgspec.json.encode(message))


def _subscription(text: str) -> _Subscribe:
    try:
        return msgspec.json.decode(text, type=_Subscribe)
    except msgspec.DecodeError as error:
        raise BadRequest(
            f"not a subscription: {text[:100]} ({error})",
            hint='send {"type":"subscribe","run_id":...,"cursor":...}, the last two strings or null',
        ) from error
