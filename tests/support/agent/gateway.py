"""A small gateway that speaks the true protocol over a real WebSocket and keeps what it stored in memory.

It has the last-number check of the real one, and knobs for the ways in which a server can misbehave.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from stabilityclient.node_frames import apart
from stabilityclient.wire import (
    MAX_MESSAGE_BYTES,
    Ack,
    Acks,
    CommandMessage,
    Error,
    EventBlock,
    Frame,
    Health,
    Hello,
    Message,
    Nack,
    NodeFrame,
    PointsBlock,
    Welcome,
    decode_message,
    encode_message,
)

Point = tuple[int, float, dict[str, float]]


@dataclass
class Store:
    """What a server keeps; handed to the next gateway it is a server that was started again."""

    last_seq: dict[str, int] = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)

    def add(self, frame: Frame) -> Message:
        """Store a frame exactly once, or say what was expected."""
        source = frame.source.source
        last = self.last_seq.get(source, 0)
        if frame.last_seq <= last:
            return Ack(source, last)
        if frame.first_seq != last + 1:
            return Nack(source, last + 1, f"frame {frame.first_seq}..{frame.last_seq} came, expected {last + 1} next")
        self.frames.append(frame)
        self.last_seq[source] = frame.last_seq
        return Ack(source, frame.last_seq)

    def forget_after(self, source: str, seq: int) -> None:
        """Lose the tail of a source, like a server whose disk lost its last second."""
        self.frames = [f for f in self.frames if f.source.source != source or f.last_seq <= seq]
        kept = [f.last_seq for f in self.frames if f.source.source == source]
        self.last_seq[source] = max(kept, default=0)

    def rows(self, rank: int | None = 0) -> list[Point]:
        """Return all rows of a rank (None: of agents) as (step, time, metrics), in stored order."""
        found: list[Point] = []
        for frame in self.frames:
            if frame.source.rank == rank:
                for block in frame.blocks:
                    if isinstance(block, PointsBlock):
                        found.extend(rows_of(block))
        return found

    def steps(self, rank: int | None = 0) -> list[int]:
        """Return the steps of all rows of a rank."""
        return [step for step, _, _ in self.rows(rank)]

    def events(self, kind: str | None = None, rank: int | str | None = "any") -> list[EventBlock]:
        """Return the events of one type, of one rank (None: agents)."""
        return [
            block
            for frame in self.frames
            if rank == "any" or frame.source.rank == rank
            for block in frame.blocks
            if isinstance(block, EventBlock) and kind in (None, block.type)
        ]


def rows_of(block: PointsBlock) -> list[Point]:
    """Return a block's rows as (step, time, metrics)."""
    rows = len(block.steps) // 8
    steps = struct.unpack(f"<{rows}q", block.steps)
    times = struct.unpack(f"<{rows}d", block.times)
    values = struct.unpack(f"<{rows * len(block.names)}d", block.values)
    columns = [values[at * rows : (at + 1) * rows] for at in range(len(block.names))]
    return [
        (steps[row], times[row], {name: column[row] for name, column in zip(block.names, columns, strict=True)})
        for row in range(rows)
    ]


class Gateway:
    """A gateway in a thread of its own. Use as a context manager.

    Args:
        store: what it holds at the start. port: 0 for any free one. key: the key that it asks for.
        answer: misbehaviour: called with each frame and the true answer, returns what is really sent: a message,
        bytes, or None.
        commands: what the Welcome brings.
    """

    def __init__(
        self,
        store: Store | None = None,
        *,
        port: int = 0,
        key: str | None = None,
        answer: Callable[[Frame, Message], Message | bytes | None] | None = None,
        welcome: Callable[[Hello, Welcome], Message | bytes | None] | None = None,
        commands: list[dict[str, Any]] | None = None,
    ) -> None:
        self.node_frames: list[NodeFrame] = []
        self.store = store or Store()
        self.port = port
        self.hellos: list[Hello] = []
        self.healths: list[Health] = []
        self.frames_seen = 0
        self.refusals = 0
        self._key = key
        self._answer = answer or (lambda frame, message: message)
        self._welcome = welcome or (lambda hello, message: message)
        self._commands = commands or []
        self._connections: set[ServerConnection] = set()
        self._accepted: weakref.WeakSet[ServerConnection] = weakref.WeakSet()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: Server | None = None

    @property
    def url(self) -> str:
        """Return the URL for ``init(url=)``."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Gateway:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def send(self, command: dict[str, Any]) -> None:
        """Send a command to all agents."""
        self._commands = [c for c in self._commands if c["command_id"] != command["command_id"]] + [command]
        self.say(CommandMessage(command))

    def say(self, message: Message) -> None:
        """Send a message to all agents that are there."""
        data = encode_message(message)

        async def send_all() -> None:
            for connection in list(self._connections):
                with contextlib.suppress(ConnectionClosed):
                    await connection.send(data)

        asyncio.run_coroutine_threadsafe(send_all(), self._loop).result(10)

    def drop_connections(self) -> None:
        """Cut all connections without a word."""

        async def cut() -> None:
            for connection in list(self._connections):
                connection.transport.abort()

        asyncio.run_coroutine_threadsafe(cut(), self._loop).result(10)

    async def _start(self) -> None:
        accepted = self._accepted

        class Accepted(ServerConnection):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                accepted.add(self)

        self._server = await serve(
            self._serve,
            "127.0.0.1",
            self.port,
            max_size=MAX_MESSAGE_BYTES,
            compression=None,
            process_request=self._check_key,
            close_timeout=1,
            create_connection=Accepted,
        )
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        for connection in list(self._connections):
            connection.transport.abort()
        self._server.close()
        await self._server.wait_closed()
        # A handshake that has just begun is not among the connections yet, and one just accepted begins with the next
        # turn of the loop.
        await asyncio.sleep(0)
        while rest := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            await asyncio.sleep(0)
        for connection in list(self._accepted):
            connection.transport.abort()
        await asyncio.sleep(0)

    def _check_key(self, connection: ServerConnection, request: Request) -> Response | None:
        if self._key is not None and request.headers.get("Authorization") != f"Bearer {self._key}":
            self.refusals += 1
            return connection.respond(HTTPStatus.UNAUTHORIZED, "wrong key\n")
        return None

    async def _serve(self, connection: ServerConnection) -> None:
        try:
            hello = decode_message(await connection.recv(decode=False))
            assert isinstance(hello, Hello)
            self.hellos.append(hello)
            known = {s.source: self.store.last_seq.get(s.source, 0) for s in hello.sources}
            welcome = Welcome("test", time.time(), known, self._commands)
            await self._send(connection, self._welcome(hello, welcome))
            self._connections.add(connection)
            async for data in connection:
                assert isinstance(data, bytes)
                message = decode_message(data)
                if isinstance(message, Frame):
                    self.frames_seen += 1
                    await self._send(connection, self._answer(message, self.store.add(message)))
                elif isinstance(message, NodeFrame):
                    self.node_frames.append(message)
                    self.frames_seen += 1
                    await self._answer_all(connection, apart(message))
                elif isinstance(message, Health):
                    self.healths.append(message)
                else:
                    await self._send(connection, Error("bad_message", type(message).__name__))
        except ConnectionClosed:
            pass
        finally:
            self._connections.discard(connection)

    async def _answer_all(self, connection: ServerConnection, frames: list[Frame]) -> None:
        """Confirm all at once where nothing else is to be said."""
        answers = [self._answer(frame, self.store.add(frame)) for frame in frames]
        if all(isinstance(answer, Ack) for answer in answers):
            acks = {answer.source: answer.last_seq for answer in answers if isinstance(answer, Ack)}
            await self._send(connection, Acks(acks))
            return
        for answer in answers:
            await self._send(connection, answer)

    async def _send(self, connection: ServerConnection, message: Message | bytes | None) -> None:
        if message is not None:
            await connection.send(message if isinstance(message, bytes) else encode_message(message))
