"""Notices for all followed runs the events only Redis has: frames that other processes stored, and its outages.

One connection waits on many streams together, so that following a run costs none. On a cluster, where no wait spans
several slots, they are looked at every second. Frames that this process stored itself are reported to their
worker directly (``RunWorker.arrived``); events seen here are hints as well: the worker reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError, RedisError

from stabilitybackend.base.keys import QUIET, RunKeys
from stabilitybackend.base.quiet_log import QuietLog
from stabilitybackend.storage.redis_link import ClusterClient, make_watchful

if TYPE_CHECKING:
    from stabilitybackend.runs.worker import RunWorker

__all__ = ["StreamWatch"]

#: Longest wait in one read, milliseconds; on a cluster the time between two looks.
BLOCK_MS = 1_000
#: Streams in one read; further ones take turns. Each may answer with one frame of up to 4 MiB.
RUNS_A_READ = 128
#: Pause after something was seen, seconds: a worker that has not read yet would be woken again.
PAUSE_S = 0.02
#: Pause after Redis was away, seconds.
AWAY_PAUSE_S = 0.2

_log = logging.getLogger(__name__)


class StreamWatch:
    """Waits on the streams of the runs that rest and have no agent here.

    Args:
        workers: returns those that follow a run now.
    """

    def __init__(self, redis: Redis | ClusterClient, workers: Callable[[], Collection[RunWorker]]) -> None:
        self._cluster = redis if isinstance(redis, ClusterClient) else None
        #: For a single server, a connection that hides no loss.
        self._redis = self._own = None if isinstance(redis, ClusterClient) else make_watchful(redis)
        #: Name of each master of a cluster -> which life of its process that is.
        self._lives: dict[str, str] = {}
        self._workers = workers
        #: Run ids looked at last are after this one in the order of ids.
        self._place = ""
        self._quiet = QuietLog(_log)

    async def follow(self) -> None:
        """Watch without end; cancel it to stop."""
        if self._cluster is not None:
            self._cluster.on_loss.append(self._interrupt)
            await self._watch(partial(self._poll, self._cluster))
            return
        assert self._own is not None
        try:
            await self._watch(self._wait)
        finally:
            await self._own.aclose()

    async def _watch(self, grown: Callable[[list[RunWorker], bool], Awaitable[list[RunWorker]]]) -> None:
        away = False
        while True:
            chunk = self._chunk()
            try:
                found = await grown(chunk, away)
            except (RedisError, OSError) as error:
                away = True
                self._quiet.log(logging.WARNING, f"Redis is away ({error!s:.200}), trying again")
                # Directly, before Redis is back: a frame that is read then may lie behind a gap.
                self._interrupt()
                await asyncio.sleep(AWAY_PAUSE_S)
                continue
            if away:  # not before it answers: a thousand workers that ask in vain would be another trouble
                away = False
                self._wake(list(self._workers()))
            if found:
                self._wake(found)
                found.clear()
                await asyncio.sleep(PAUSE_S)

    async def _wait(self, chunk: list[RunWorker], away: bool) -> list[RunWorker]:
        """Wait until something comes, and return whose streams have grown."""
        assert self._redis is not None
        streams: Any = {QUIET: "$"} | {RunKeys(worker.run_id).frames: worker.cursor for worker in chunk}
        found: Any = await self._redis.xread(streams, count=1, block=BLOCK_MS if not away else None)
        grown = {key.decode() for key, _ in found}
        return [worker for worker in chunk if RunKeys(worker.run_id).frames in grown]

    async def _poll(self, client: ClusterClient, chunk: list[RunWorker], away: bool) -> list[RunWorker]:
        """Look at all streams, and return whose have grown."""
        if not away:
            await asyncio.sleep(BLOCK_MS / 1000)
        pipe = client.pipeline(transaction=False)
        for worker in chunk:
            pipe.xread({RunKeys(worker.run_id).frames: worker.cursor}, count=1)
        answers = await pipe.execute(raise_on_error=False)
        # A master that was killed and is back, or that another one has taken the place of, may lack its newest writes.
        lives = await self._lives_of(client)
        if self._lives and lives != self._lives:
            self._interrupt()
        self._lives = lives
        for answer in answers:
            if isinstance(answer, RedisError | OSError):
                raise answer
        return [worker for worker, answer in zip(chunk, answers, strict=True) if answer]

    @staticmethod
    async def _lives_of(client: ClusterClient) -> dict[str, str]:
        await client.initialize()
        masters = client.masters()
        answers = await asyncio.gather(*(client.on_node(node, [("INFO", "server")]) for node in masters))
        if not masters:
            raise ConnectionError("no node of the cluster has any slot")
        return {node: str(info.get("run_id")) for node, (info,) in zip(masters, answers, strict=True)}

    # In methods of their own: a worker that is let go must not be kept by a variable of the loop above.

    def _interrupt(self) -> None:
        for worker in list(self._workers()):
            worker.journal.interrupted = True

    @staticmethod
    def _wake(workers: Collection[RunWorker]) -> None:
        for worker in workers:
            worker.rest.wake()

    def _chunk(self) -> list[RunWorker]:
        """Return the next RUNS_A_READ of those that rest, by their ids."""
        resting = {worker.run_id: worker for worker in self._workers() if worker.rest.rests and not worker.has_agents}
        ids = sorted(resting)
        if len(ids) > RUNS_A_READ:
            ids = ([run_id for run_id in ids if run_id > self._place] + ids)[:RUNS_A_READ]
        self._place = ids[-1] if ids else ""
        return [resting[run_id] for run_id in ids]
