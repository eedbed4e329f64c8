"""An HTTP server that plays the receiver of a channel; its fixture is `receiver`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

__all__ = ["Received", "Receiver", "receiver"]


@dataclass
class Received:
    """One request that reached the receiver."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass
class Receiver:
    """An HTTP server that writes down what it gets and answers as told."""

    #: Answers of the next requests: status and headers; after them ``status``.
    script: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    status: int = 200
    #: While cleared, a request is written down but not answered.
    answering: asyncio.Event = field(default_factory=asyncio.Event)
    received: list[Received] = field(default_factory=list)
    port: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _serving: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> asyncio.Server:
        self.answering.set()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.received.append(Received(head[0].split()[1], headers, body))
                status, extra = self.script.pop(0) if self.script else (self.status, {})
                await self.answering.wait()
                lines = [f"HTTP/1.1 {status} X", "Content-Length: 2", *(f"{k}: {v}" for k, v in extra.items())]
                writer.write(("\r\n".join(lines) + "\r\n\r\nok").encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def close(self, server: asyncio.Server) -> None:
        self.answering.set()
        server.close()
        for writer in list(self._writers):
            writer.close()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await server.wait_closed()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """A running receiver."""
    running = Receiver()
    server = await running.start()
    yield running
    await running.close(server)
