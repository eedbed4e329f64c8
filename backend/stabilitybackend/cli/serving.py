"""Runs an ASGI app on uvicorn, the one way that this product serves: port bound first, URL printed, stopped cleanly."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from stabilitybackend.access.people.proxy import PeopleFromProxy, ProxyPeople
from stabilitybackend.base.errors import SettingsError, StartError
from stabilitybackend.base.settings import Settings
from stabilitybackend.cli.http_protocol import BoundedHttpProtocol, RubbishFilter
from stabilitybackend.server.addresses.served_path import ServedPath
from stabilityclient.wire import MAX_MESSAGE_BYTES

__all__ = [
    "SERVER_FILE", "Stop", "bind", "read_server_file", "serve", "server_config", "stops_as_exit", "url_of",
]  # fmt: skip

#: In the data folder while a server runs: ``{"url", "pid"}``.
SERVER_FILE = "server.json"
#: Twice an agent's limit, so that a message a little too big is answered and not just cut off.
WS_MAX_BYTES = 2 * MAX_MESSAGE_BYTES
#: A half-open connection is noticed after these many seconds together.
WS_PING_S = 10.0
WS_PING_TIMEOUT_S = 20.0
#: Seconds for open requests to end after Ctrl-C; together with the Redis stop it stays below 5 s.
STOP_TIMEOUT_S = 2
BACKLOG = 2048


def server_config(
    app: Any,
    *,
    log_level: str = "warning",
    trusted_proxies: str | None = None,
    people: ProxyPeople | None = None,
    below: str = "",
) -> uvicorn.Config:
    """Return uvicorn's settings for our app: the fastest loop and WebSocket code measured, no compression.

    Args:
        trusted_proxies: addresses and networks whose X-Forwarded-For, -Proto and -Prefix count; None: none.
        people: users that one of them may sign in.
        below: path below which a proxy serves it, "" for none. Not uvicorn's own ``root_path``, which needs a proxy
            that takes the path off, and puts it in front of each request.
    """
    if trusted_proxies is not None:
        forwarded: Any = ProxyHeadersMiddleware(app, trusted_proxies)
        app = ServedPath(forwarded, below, forwarded.trusted_hosts)
    elif below:
        app = ServedPath(app, below)
    if people is not None:  # around it: it has to see the origin of the request
        app = PeopleFromProxy(app, people)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=BoundedHttpProtocol,
        ws="websockets-sansio",
        ws_max_size=WS_MAX_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=WS_PING_S,
        ws_ping_timeout=WS_PING_TIMEOUT_S,
        lifespan="on",
        log_level=log_level,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # done above
        backlog=BACKLOG,
        timeout_graceful_shutdown=STOP_TIMEOUT_S,
    )
    log = logging.getLogger("uvicorn.error")
    if not any(isinstance(one, RubbishFilter) for one in log.filters):
        log.addFilter(RubbishFilter())
    return config


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to ``host`` and ``port`` (0: a free one).

    Raises:
        SettingsError: the port is taken, not allowed, or the host is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host.strip("[]"), port))
    except OSError as error:
        bound.close()
        raise SettingsError(
            f"can't listen on {host}:{port}: {error.strerror or error}",
            hint=f"another program may use it: try --port {port + 1 if 0 < port < 65535 else 8080}, "
            "or --port 0 for a free one",
            setting="port",
        ) from error
    bound.set_inheritable(False)
    return bound


class Stop:
    """Arrival of SIGTERM or SIGINT. ``check`` between pieces of work: Python may swallow their exceptions."""

    def __init__(self) -> None:
        self.asked = False

    def check(self) -> None:
        """Leave with SystemExit(0) after one."""
        if self.asked:
            raise SystemExit(0)


def serve(
    app: Any, bound: socket.socket, settings: Settings, on_up: Callable[[str], None], stop: Stop | None = None
) -> None:
    """Serve ``app`` in this thread until SIGINT or SIGTERM.

    Args:
        app: the ASGI app.
        bound: from ``bind``; closed afterwards.
        settings: their data folder has ``server.json`` while the server is up.
        on_up: called with the URL once requests are answered.
        stop: of a signal that may have come before.

    Raises:
        StartError: the app did not start; its reason is in the log.
    """
    url, data_dir = url_of(bound), settings.data_dir
    config = server_config(
        app, log_level=settings.log_level, trusted_proxies=settings.trusted_proxies, people=ProxyPeople.of(settings),
        below=settings.below,
    )  # fmt: skip
    server = _AnnouncingServer(config, lambda: _announce(data_dir, url, on_up), stop or Stop())
    _raise_open_files()
    try:
        server.run(sockets=[bound])
    finally:
        bound.close()
        with contextlib.suppress(OSError):
            if read_server_file(data_dir).get("pid") == os.getpid():
                (data_dir / SERVER_FILE).unlink()
    if not server.started:
        raise StartError("the server did not start", hint="the reason is in the lines above")


def read_server_file(data_dir: Path) -> dict[str, Any]:
    """Return ``{"url", "pid"}`` of the server that runs on ``data_dir``, or an empty dict."""
    try:
        facts = msgspec.json.decode((data_dir / SERVER_FILE).read_bytes())
    except (OSError, msgspec.MsgspecError):
        return {}
    return facts if isinstance(facts, dict) else {}


@contextlib.contextmanager
def stops_as_exit() -> Iterator[Stop]:
    """Turn SIGTERM and SIGINT within the block into SystemExit(0), so that ``finally`` blocks run.

    uvicorn takes both signals while it serves and raises them again when it is done; without this the second raise
    would end the process before Redis was stopped. One that comes in a weak reference's callback or in ``__del__``
    raises there, and Python swallows that: so it is remembered too.
    """
    stop = Stop()

    def leave(number: int, frame: FrameType | None) -> None:
        stop.asked = True
        stop.check()

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _AnnouncingServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, announce: Callable[[], None], stop: Stop) -> None:
        super().__init__(config)
        self._announce = announce
        self._stop = stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._stop.check()  # from here on uvicorn takes the signals
        await super().startup(sockets=sockets)
        if self.started:
            self._announce()


def _announce(data_dir: Path, url: str, on_up: Callable[[str], None]) -> None:
    path = data_dir / SERVER_FILE
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.encode({"url": url, "pid": os.getpid()}))
    new.replace(path)  # whole or not at all, for those who read it meanwhile
    on_up(url)


def url_of(bound: socket.socket) -> str:
    """Return the URL for a browser on this machine."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _raise_open_files() -> None:
    """Allow as many open connections as the machine lets us have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
