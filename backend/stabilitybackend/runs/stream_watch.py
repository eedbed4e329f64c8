"""Notices for all followed runs what only Redis can tell: frames that other processes stored, and that it was away.

One connection waits on many streams at once, so that following a run costs none. Frames that this process stored
itself are reported to their worker at once (``RunWorker.arrived``); what is seen here is a hint as well: the worker
reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from stabilitybackend.keys import QUIET, RunKeys
from stabilitybackend.process.quiet_log import QuietLog
from stabilitybackend.redis_link import make_watchful

if TYPE_CHECKING:
    from stabilitybackend.runs.worker import RunWorker

__all__ = ["StreamWatch"]

#: Longest wait in one read, milliseconds.
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

    def __init__(self, redis: Redis, workers: Callable[[], Collection[RunWorker]]) -> None:
        self._redis = self._own = make_watchful(redis)
        self._workers = workers
        #: Run ids looked at last are after this one in the order of ids.
        self._place = ""
        self._quiet = QuietLog(_log)

    async def follow(self) -> None:
        """Watch without end; cancel it to stop."""
        try:
            await self._watch_streams()
        finally:
            await self._own.aclose()

    async def _watch_streams(self) -> None:
        away = False
        while True:
            chunk = self._chunk()
            streams: Any = {QUIET: "$"} | {RunKeys(worker.run_id).frames: worker.cursor for worker in chunk}
            try:
                found: Any = await self._redis.xread(streams, count=1, block=BLOCK_MS if not away else None)
            except (RedisError, OSError) as error:
                away = True
                self._quiet.log(logging.WARNING, f"Redis is away ({error!s:.200}), trying again")
                # At once, before Redis is back: a frame that is read then may lie behind a gap.
                self._interrupt()
                await asyncio.sleep(AWAY_PAUSE_S)
                continue
            if away:  # not before it answers: a thousand workers that ask in vain would be another trouble
                away = False
                self._wake(list(self._workers()))
            if found:
                grown = {key.decode() for key, _ in found}
                self._wake([worker for worker in chunk if RunKeys(worker.run_id).frames in grown])
                await asyncio.sleep(PAUSE_S)

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
