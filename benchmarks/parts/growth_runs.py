"""Many runs that one server follows at once: real uvicorn, Redis and connections, every turn of its loop timed."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from asyncio import events
from pathlib import Path

import uvicorn
from parts.feeder import WireAgent
from parts.growth_jobs import Rank, Steps

from stabilitybackend.base.settings import Settings
from stabilitybackend.cli.serving import bind, server_config
from stabilitybackend.plugins import load
from stabilitybackend.server.app import create_app
from stabilitybackend.server.stages import Options
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from stabilityclient.wire import EventBlock

__all__ = ["followed_runs"]

#: Seconds for which all runs are followed while they are measured, a row of each run in each.
MEASURED_S = 4
START_TIMEOUT_S = 60.0


class _TimedServer:
    """The whole server in a thread of its own, on asyncio's own loop, whose turns can be timed."""

    def __init__(self, redis_url: str, folder: Path) -> None:
        self.steps = Steps()
        self._app = create_app(Options(Settings(data_dir=folder), redis_url, load({})))
        self._socket = bind("127.0.0.1", 0)
        self.port: int = self._socket.getsockname()[1]
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="server")

    async def _serve(self) -> None:
        config = server_config(self._app, log_level="critical")
        config.ws_ping_interval = None  # these agents answer one after the other: the last one would be too late
        self._server = uvicorn.Server(config)
        await self._server.serve(sockets=[self._socket])

    def __enter__(self) -> _TimedServer:
        self._run = events.Handle._run
        run, thread = self._run, self._thread

        def timed(handle: events.Handle) -> None:
            if threading.current_thread() is thread:
                self.steps.take(lambda: run(handle))
            else:
                run(handle)

        events.Handle._run = timed  # type: ignore[method-assign]
        thread.start()
        end = time.monotonic() + START_TIMEOUT_S
        while self._server is None or not self._server.started:
            if time.monotonic() > end or not thread.is_alive():
                raise SystemExit("the server did not start")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.should_exit = True
        self._thread.join()
        events.Handle._run = self._run  # type: ignore[method-assign]


def followed_runs(count: int) -> Steps:
    """Return what it costs to follow ``count`` live runs for some seconds, each with a row a second."""
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedRedis(Path(folder)) as redis,
        _TimedServer(redis.url, Path(folder)) as server,
    ):
        ranks = [Rank(0, 1) for _ in range(count)]
        agents = []
        for at, rank in enumerate(ranks):
            agents.append(WireAgent("127.0.0.1", server.port, f"run-{at}", f"a{at}", sources=(rank.info,)))
            agents[-1].send(rank.frame(EventBlock("start", time.time())))
        for agent in agents:
            agent.drain()
        found = server.steps = Steps()
        for second in range(MEASURED_S):
            begin = time.monotonic()
            for agent, rank in zip(agents, ranks, strict=True):
                agent.send(rank.rows(second + 1, 1))
            for agent in agents:
                agent.drain()
            time.sleep(max(0.0, begin + 1.0 - time.monotonic()))
        server.steps = Steps()
        for agent in agents:
            agent.__exit__(None, None, None)
        return found
