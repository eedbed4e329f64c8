"""The whole server as one process serves it: real uvicorn, real Redis, all routes and workers."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import httpx
import uvicorn
import uvloop

from stabilitybackend.access.people.proxy import ProxyPeople
from stabilitybackend.base.settings import Settings
from stabilitybackend.cli.serving import server_config
from stabilitybackend.plugins import Plugins, load
from stabilitybackend.server.app import create_app
from stabilitybackend.server.stages import Options
from support.checked_answers import AnswersChecked
from support.made import pages  # noqa: F401
from support.waiting import wait_until

__all__ = ["RunningServer"]


class RunningServer:
    """Serves from a thread of its own while the context lasts. All that it answers has to be what its routes declare.

    Args:
        redis_url: a real server.
        data_dir: folder of the server.
        host: what the settings say; it listens on 127.0.0.1 all the same.
        plugins: of its process; None: the installed ones.
        public: its own address is the public URL.
        port: 0 for a free one.
        settings: others of its settings.

    Raises:
        AssertionError: another one without roles works with the same Redis: each would take the other one's runs.
    """

    _without_roles: ClassVar[set[str]] = set()

    def __init__(
        self,
        redis_url: str,
        data_dir: Path,
        host: str = "127.0.0.1",
        plugins: Plugins | None = None,
        public: bool = False,
        port: int = 0,
        **settings: Any,
    ) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        if settings.get("role"):  # they share what these name
            settings["redis_url"] = redis_url
        if public:
            settings["public_url"] = self.url
        self._settings = Settings(host=host, port=self.port, data_dir=data_dir, **settings)
        self._redis_url = redis_url
        self._plugins = load({}) if plugins is None else plugins
        self._server: uvicorn.Server
        self._thread = threading.Thread(target=self._run, name="server")
        # No TLS here: a context takes 40 ms. Both sides would end an idle connection after 5 s: a request could meet
        # that.
        limits = httpx.Limits(keepalive_expiry=2.0)
        self.client = httpx.Client(base_url=self.url, timeout=30.0, verify=False, limits=limits)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            self.app = create_app(Options(self._settings, self._redis_url, self._plugins))
            self.checked = AnswersChecked(self.app)
            self._server = uvicorn.Server(self._config())
            runner.run(self._server.serve(sockets=[self._socket]))

    def _config(self) -> uvicorn.Config:
        return server_config(
            self.checked, log_level="critical", trusted_proxies=self._settings.trusted_proxies,
            people=ProxyPeople.of(self._settings), below=self._settings.below,
        )  # fmt: skip

    @property
    def thread_ident(self) -> int:
        """The thread that serves, for its CPU clock."""
        assert self._thread.ident is not None
        return self._thread.ident

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def agent_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/api/v1/agent"

    @property
    def live_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/api/v1/live"

    def get(self, path: str, **params: Any) -> Any:
        """Return the JSON of ``GET /api/v1{path}``; an error status fails the test."""
        answer = self.client.get(f"/api/v1{path}", params=params)
        answer.raise_for_status()
        return answer.json()

    def wait_for(self, path: str, condition: Callable[[Any], Any], what: str, timeout_s: float = 10.0) -> Any:
        """Return what ``GET path`` answers once ``condition`` holds of it."""

        def answer() -> Any:
            response = self.client.get(f"/api/v1{path}")
            found = response.json() if response.status_code == 200 else None
            return found if found is not None and condition(found) else None

        return wait_until(answer, timeout_s, what)

    def __enter__(self) -> RunningServer:
        if not self._settings.role:
            assert self._redis_url not in self._without_roles, "two servers without roles on one Redis"
            self._without_roles.add(self._redis_url)
        self._thread.start()
        wait_until(lambda: getattr(getattr(self, "_server", None), "started", False), 30, "the server listens")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
        if not self._settings.role:
            self._without_roles.remove(self._redis_url)
        assert kind is not None or not self.checked.lies, self.checked.lies[:3]
