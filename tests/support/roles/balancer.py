"""A load balancer for TCP, as one stands before the doors: each connection goes to the next door that answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

__all__ = ["Balancer"]

_CHUNK = 64 * 1024


class Balancer:
    """Listens on a port of its own while the context lasts, in a thread of its own.

    Args:
        ports: of the doors, on 127.0.0.1.
        listen: TCP port, 0 for a free one.
    """

    def __init__(self, ports: Sequence[int], listen: int = 0) -> None:
        self.ports = list(ports)
        self.port = listen
        self._next = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="balancer")
        self._ready = threading.Event()
        self._writers = set[asyncio.StreamWriter]()
        #: What is passed on, to the doors and back.
        self._passes_up, self._passes_down = asyncio.Event(), asyncio.Event()
        self.cut(up=False, down=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self, *, up: bool, down: bool) -> None:
        """Pass nothing on to the doors, or nothing back, and close no connection, as a cut cable would; or go on."""
        for event, gone in ((self._passes_up, up), (self._passes_down, down)):
            self._loop.call_soon_threadsafe(event.clear if gone else event.set)

    def drop_all(self) -> None:
        """Close every connection: agents come back, to other doors."""

        def close() -> None:
            for writer in list(self._writers):
                writer.transport.abort()

        self._loop.call_soon_threadsafe(close)

    def __enter__(self) -> Balancer:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for writer in list(self._writers):  # of a connection that came meanwhile
            writer.transport.abort()
        await asyncio.sleep(0)  # what was aborted is closed in the next turn of the loop

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            for _ in self.ports:
                self._next += 1
                with suppress(OSError):
                    door = await asyncio.open_connection("127.0.0.1", self.ports[self._next % len(self.ports)])
                    break
            else:
                return
            self._writers.add(door[1])
            try:
                ways = [
                    asyncio.create_task(self._pass(reader, door[1], up=True)),
                    asyncio.create_task(self._pass(door[0], writer, up=False)),
                ]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
            finally:
                self._writers.discard(door[1])
                door[1].transport.abort()
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                await (self._passes_up if up else self._passes_down).wait()
                writer.write(data)
                await writer.drain()
