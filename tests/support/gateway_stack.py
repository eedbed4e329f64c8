"""A gateway on a real uvicorn with a real Redis behind it, and an agent that speaks raw messages."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import uvicorn
import uvloop
from fastapi import FastAPI
from websockets.asyncio.client import ClientConnection, connect

from stabilitybackend.access.auth import Authenticator, KeyRing
from stabilitybackend.base.errors import NotFound
from stabilitybackend.cli.serving import server_config
from stabilitybackend.ingest.gateway import Gateway, GatewayCounts, router
from stabilitybackend.ingest.ingest import Ingest
from stabilitybackend.schema.commands import Command
from stabilitybackend.storage.redis_link import make_redis
from stabilityclient.wire import (
    Ack,
    CommandMessage,
    Durable,
    EventBlock,
    Frame,
    Health,
    Hello,
    Message,
    Output,
    PointsBlock,
    SourceInfo,
    decode_message,
    encode_message,
)
from support.waiting import wait_until

__all__ = ["SOURCE", "RawAgent", "RecordingServices", "RunningGateway", "event_frame", "frame", "log_frames", "points"]

SOURCE = SourceInfo("r0-1", rank=0, world_size=1, local_rank=0, node="n0", pid=7, started=1.0)


def points(first_step: int, values: list[float], name: str = "loss") -> PointsBlock:
    """Rows of one metric, one step each, from ``first_step``."""
    n = len(values)
    return PointsBlock(
        [name],
        struct.pack(f"<{n}q", *range(first_step, first_step + n)),
        struct.pack(f"<{n}d", *[1000.0] * n),
        struct.pack(f"<{n}d", *values),
    )


def frame(first_seq: int, values: list[float], source: SourceInfo = SOURCE) -> Frame:
    """A frame with one record a value, numbered from ``first_seq``, steps equal to the numbers."""
    return Frame(source, first_seq, first_seq + len(values) - 1, [points(first_seq, values)])


def event_frame(seq: int, event: EventBlock, source: SourceInfo = SOURCE) -> Frame:
    """A frame with one event."""
    return Frame(source, seq, seq, [event])


class RecordingServices:
    """The rest of the server, as far as a gateway test needs it: writes down what it is given."""

    def __init__(self, waiting: Sequence[Command] = ()) -> None:
        self.waiting = waiting
        self.hellos: list[Hello] = []
        self.gone: list[tuple[str, str]] = []
        self.healths: list[Health] = []
        self.stored: list[str] = []
        self.senders: dict[str, Callable[[CommandMessage], Awaitable[None]]] = {}

    async def project(self, run_id: str) -> str:
        raise NotFound("every run is new here")

    async def agent_connected(
        self, hello: Hello, send: Callable[[CommandMessage], Awaitable[None]]
    ) -> Sequence[Command]:
        self.hellos.append(hello)
        self.senders[hello.agent] = send
        return self.waiting

    async def agent_disconnected(self, run_id: str, agent: str) -> None:
        self.gone.append((run_id, agent))

    async def health(self, run_id: str, health: Health) -> None:
        self.healths.append(health)

    async def output(self, run_id: str, output: Output) -> None:
        pass

    async def room(self, run_id: str) -> None:
        pass

    async def frame_stored(self, run_id: str, frame_id: str, size: int) -> None:
        self.stored.append(run_id)


class RunningGateway:
    """Serves ``/api/v1/agent`` from a thread of its own while the context lasts."""

    def __init__(self, redis_url: str, services: RecordingServices | None = None, *, key_needed: bool = False) -> None:
        self._services = services or RecordingServices()
        self.gateway: Gateway
        self._redis_url = redis_url
        self._key_needed = key_needed
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._server: uvicorn.Server
        self._thread = threading.Thread(target=self._run, name="gateway")

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        redis = make_redis(self._redis_url)
        async with Ingest(redis) as ingest:
            authenticator = Authenticator(KeyRing(redis), key_needed=self._key_needed)
            self.gateway = Gateway(ingest, authenticator, self._services, server_version="test", clock=lambda: 1234.5)
            app = FastAPI()
            app.include_router(router(self.gateway))
            self._server = uvicorn.Server(server_config(app, log_level="critical"))
            await self._server.serve(sockets=[self._socket])
        await redis.aclose()

    @property
    def services(self) -> RecordingServices:
        """What the gateway gave to the rest of the server."""
        assert isinstance(self.gateway.services, RecordingServices)
        return self.gateway.services

    def forget(self) -> None:
        """Start the next test with nothing given and nothing counted."""
        wait_until(lambda: not self.gateway.connections, 5, "the last test's agents are gone")
        self.gateway.services = RecordingServices()
        self.gateway.counts = GatewayCounts()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/api/v1/agent"

    def __enter__(self) -> RunningGateway:
        self._thread.start()
        wait_until(lambda: getattr(getattr(self, "_server", None), "started", False), 10, "the gateway listens")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


class RawAgent:
    """An agent's connection without an agent's judgement: sends and receives what a test wants."""

    def __init__(self, url: str, key: str | None = None, **options: Any) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
        self._connect = connect(url, additional_headers=headers, compression=None, max_size=None, **options)
        self.socket: ClientConnection

    async def __aenter__(self) -> RawAgent:
        self.socket = await self._connect
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.socket.close()

    async def hello(
        self, run_id: str = "run-1", agent: str = "a1", sources: list[SourceInfo] | None = None, project: str = "p"
    ) -> Message:
        hello = Hello(
            run_id, agent, "n0", "0.1.0", project=project, name="n", sources=[SOURCE] if sources is None else sources
        )
        return await self.ask(hello)

    async def send(self, message: Message | bytes | str) -> None:
        await self.socket.send(message if isinstance(message, bytes | str) else encode_message(message))

    async def receive(self) -> Message:
        """Return the next message but Durable, which comes at any time."""
        while isinstance(message := decode_message(await self.socket.recv(decode=False)), Durable):
            pass
        return message

    async def ask(self, message: Message | bytes | str) -> Message:
        await self.send(message)
        return await self.receive()

    async def next(self, kind: type[Message]) -> Any:
        """Wait for the next message of a kind; others are passed over."""
        async with asyncio.timeout(30):  # over all messages: on a loaded machine an order takes long to come
            while not isinstance(message := await self.receive(), kind):
                pass
        return message

    async def store(self, *frames: Frame) -> None:
        """Send frames and wait until each is stored."""
        for one in frames:
            await self.send(one)
            answer = await self.next(Ack)
            assert (answer.source, answer.last_seq) == (one.source.source, one.last_seq)

    async def begin(self, *frames: Frame, run_id: str = "run-1", project: str = "p") -> None:
        """Say hello with the source of these frames, and store them."""
        await self.hello(run_id, sources=[frames[0].source], project=project)
        await self.store(*frames)


def log_frames(url: str, *frames: Frame, run_id: str = "run-1", project: str = "p") -> None:
    """Store frames by an agent of its own at a server, from a thread: a browser's event loop may run in this one."""

    async def send() -> None:
        async with RawAgent(f"{url.replace('http', 'ws')}/api/v1/agent") as agent:
            await agent.begin(*frames, run_id=run_id, project=project)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, send()).result()
