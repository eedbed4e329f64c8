"""A proxy in front of an object store: counts requests and bytes, and is slow, broken, silent or away when told so."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import urlsplit

__all__ = ["StoreProxy", "Traffic", "store_proxy"]

#: ``well``; ``slow``: each answer comes ``delay_s`` later; ``failing``: 500; ``silent``: takes the request and never
#: answers; ``away``: hangs up.
Mood = Literal["well", "slow", "failing", "silent", "away"]


@dataclass
class Traffic:
    """What went through. ``sent`` and ``received`` are bytes of bodies as the server sends and receives them."""

    requests: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    received: int = 0


class StoreProxy:
    """What a test says to it, and what it saw.

    Attributes:
        mood: how it answers from now on.
        traffic: since the last ``take``.
    """

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self.upstream = (parts.hostname or "", parts.port or 80)
        self.mood: Mood = "well"
        self.delay_s = 0.0
        #: Who waits on it goes when it is set.
        self.silence = threading.Event()
        self._lock = threading.Lock()
        self._traffic = Traffic()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self) -> Traffic:
        """Return what went through since the last call."""
        with self._lock:
            taken, self._traffic = self._traffic, Traffic()
        return taken

    def note(self, method: str, path: str, sent: int, received: int) -> None:
        """Count one request that was answered. A GET that lists is a LIST, which costs as much as a PUT."""
        with self._lock:
            self._traffic.requests["LIST" if "list-type=" in path else method] += 1
            self._traffic.sent += sent
            self._traffic.received += received

    def release(self) -> None:
        """Hang up on all who wait for an answer that was never to come."""
        waited, self.silence = self.silence, threading.Event()
        waited.set()

    def serve(self) -> None:
        self._server.serve_forever(poll_interval=0.05)

    def close(self) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no news."""


def _handler(proxy: StoreProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            self.upstream = http.client.HTTPConnection(*proxy.upstream, timeout=60)

        def finish(self) -> None:
            self.upstream.close()
            super().finish()

        def forward(self) -> None:
            if proxy.mood == "away":
                self._hang_up()
                return
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if proxy.mood == "silent":
                proxy.silence.wait()
                self._hang_up()
                return
            if proxy.mood == "failing":
                proxy.note(self.command, self.path, len(body), 0)
                self._answer(500, [], b"<Error><Code>InternalError</Code></Error>")
                return
            if proxy.mood == "slow":
                time.sleep(proxy.delay_s)
            self.upstream.request(self.command, self.path, body, dict(self.headers.items()))
            answer = self.upstream.getresponse()
            found = answer.read()
            proxy.note(self.command, self.path, len(body), len(found))
            self._answer(answer.status, answer.getheaders(), found)

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response_only(status)
            told = {name.lower() for name, _ in headers}
            for name, value in headers:
                if name.lower() not in ("transfer-encoding", "connection"):
                    self.send_header(name, value)
            if "content-length" not in told and status not in (204, 304):
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _hang_up(self) -> None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing: what matters is counted."""

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward

    return Handler


@contextmanager
def store_proxy(upstream: str) -> Iterator[StoreProxy]:
    """Give a proxy that stands before the store at ``upstream`` while the context lasts."""
    proxy = StoreProxy(upstream)
    thread = threading.Thread(target=proxy.serve, name="store-proxy", daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
