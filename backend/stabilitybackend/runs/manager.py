"""Keeps a worker for every run that somebody sends to or looks at, and lets idle ones go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from stabilitybackend.errors import NotFound
from stabilitybackend.keys import check_run_id
from stabilitybackend.redis_link import redis_errors
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.runs.live import Channel
from stabilitybackend.runs.worker import RunWorker, Send
from stabilityclient.wire import Health, Hello

__all__ = ["RunManager"]

#: A worker without agents, browsers or requests is stopped after this long, seconds.
IDLE_S = 600.0
#: How often idle workers are looked for, seconds.
SWEEP_S = 30.0
#: Runs whose stored state says that they are under way are watched again after a restart of the server.
LIVE_STATES = frozenset({"running", "stalled", "unreachable"})
#: ... if they were heard of within this time, seconds.
WATCH_AGAIN_S = 86_400.0

_log = logging.getLogger(__name__)


class RunManager:
    """All runs of this process; the gateway's ``RunServices``.

    Args:
        redis: client of the server that holds the runs.
        clock: unix seconds now.
    """

    def __init__(self, redis: Redis, clock: Callable[[], float]) -> None:
        self.overview = Channel()
        self._redis = redis
        self._clock = clock
        self._index = RunIndex(redis)
        self._workers: dict[str, RunWorker] = {}
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Watch the runs that were under way when the server stopped."""
        self._sweeper = asyncio.create_task(self._sweep(), name="run-sweeper")
        try:
            for run_id in await self._index.ids():
                stored = await self._index.stored(run_id)
                if stored["status"] in LIVE_STATES and self._clock() - stored["updated"] < WATCH_AGAIN_S:
                    self._worker(run_id)
        except (RedisError, OSError) as error:
            _log.warning("runs under way are watched when they are asked for; Redis is away: %s", error)

    async def stop(self) -> None:
        """Stop all workers."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in self._workers.values()))
        self._workers.clear()

    def _worker(self, run_id: str) -> RunWorker:
        worker = self._workers.get(run_id)
        if worker is None or worker.failed:
            worker = self._workers[run_id] = RunWorker(run_id, self._redis, self._clock, self.overview)
            worker.start()
        return worker

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            for run_id, worker in list(self._workers.items()):
                idle = self._clock() - worker.used > IDLE_S
                if idle and not worker.busy and worker.run()["status"] not in LIVE_STATES:
                    del self._workers[run_id]
                    await worker.stop()

    async def get(self, run_id: str) -> RunWorker:
        """Return the worker of a run, its state complete.

        Raises:
            NotFound: there is no such run.
            Unavailable: Redis is away.
        """
        check_run_id(run_id)
        if run_id not in self._workers:
            with redis_errors():
                if not await self._index.exists(run_id):
                    raise NotFound(f"there is no run {run_id!r}", hint="GET /api/v1/runs lists them")
        worker = self._worker(run_id)
        await worker.ready()
        return worker

    async def runs(self) -> list[dict[str, Any]]:
        """Return all runs, newest first; those that a worker follows as they are now."""
        with redis_errors():
            ids = await self._index.ids()
            return [await self._shown(run_id) for run_id in ids]

    async def _shown(self, run_id: str) -> dict[str, Any]:
        worker = self._workers.get(run_id)
        return await self._index.stored(run_id) if worker is None or not worker.is_ready else worker.run()

    # --- the gateway's RunServices -------------------------------------------------------------------------------

    async def agent_connected(self, hello: Hello, send: Send) -> list[dict[str, Any]]:
        """Take a new agent in; return the commands that wait for it."""
        with redis_errors():
            await self._index.register(hello, self._clock())
        return await self._worker(hello.run_id).agent_connected(hello.agent, hello.node, send)

    async def agent_disconnected(self, run_id: str, agent: str) -> None:
        """Note that an agent is gone."""
        worker = self._workers.get(run_id)
        if worker is not None:
            worker.agent_disconnected(agent)

    async def health(self, run_id: str, health: Health) -> None:
        """Take an agent's newest word."""
        worker = self._workers.get(run_id)
        if worker is not None:
            worker.health(health)

    async def frame_stored(self, run_id: str) -> None:
        """Nothing to do: the worker waits on the stream itself."""
