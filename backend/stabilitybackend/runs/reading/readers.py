"""The runs that this process reads and does not own, as long as they are requested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from redis.asyncio import Redis

from stabilitybackend.base.errors import SnapshotError
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.base.tasks import in_thread
from stabilitybackend.fleet.fleet import Fleet
from stabilitybackend.judging.liveness.budgets import Limits
from stabilitybackend.runs.archiving import snapshot
from stabilitybackend.runs.archiving.archiver import ArchiveFiles
from stabilitybackend.runs.archiving.restart_files import RestartShare
from stabilitybackend.runs.archiving.restart_in_redis import InRedis
from stabilitybackend.runs.feed.pubsub import Channel
from stabilitybackend.runs.reading.reader import Reading, RunReader
from stabilitybackend.runs.state import RunState
from stabilitybackend.storage.redis_link import redis_errors

__all__ = ["RunReaders"]

#: Time without requests after which a run is let go, seconds ...
IDLE_S = 30.0
#: ... or directly when more than so many are read: the most recently requested ones stay.
MAX_IDLE = 64


class RunReaders:
    """Readers of runs; Args as RunManager."""

    def __init__(
        self,
        redis: Redis,
        clock: Callable[[], float],
        files: ArchiveFiles,
        window_bytes: int,
        limits: Limits,
        fleet: Fleet,
    ) -> None:
        self._redis, self._clock = redis, clock
        self._files = replace(files, restart=RestartShare())
        self._window_bytes, self._limits, self._fleet = window_bytes, limits, fleet
        self._ownership = Reading()
        self._overview = Channel()  # reports of the readers, while owners are elsewhere
        self._readers: dict[str, RunReader] = {}

    def __len__(self) -> int:
        return len(self._readers)

    async def get(self, run_id: str) -> RunReader:
        """Return the reader of a run that is there, its state complete. Raises Unavailable."""
        reader = self._readers.get(run_id)
        if reader is None or reader.is_over:
            reader = self._readers[run_id] = RunReader(
                run_id, self._redis, self._clock, self._overview, self._files, self._window_bytes, self._limits,
                self._fleet, self._ownership,
            )  # fmt: skip
            reader.start()
        await reader.ready()
        return reader

    async def written_down(self, run_id: str) -> RunState | None:
        """Return the fold of a run as its worker wrote it down last, without points; None where it did not.

        It is some seconds old, and costs a hundredth of reading the run.
        """
        with redis_errors():
            kept: Any = await self._redis.smembers(RunKeys(run_id).undone)
            try:
                frozen = await InRedis(run_id, self._ownership.fence(run_id, self._redis)).newest()
                undone = [key.decode() for key in kept]
                return (
                    None
                    if frozen is None
                    else await in_thread(lambda: snapshot.thaw(frozen, run_id, self._clock, undone))
                )
            except SnapshotError:
                return None

    async def let_idle_go(self) -> None:
        """Let the unused ones go."""
        now = self._clock()
        free = sorted((one for one in self._readers.values() if not one.busy), key=lambda one: one.used)
        surplus = len(free) - MAX_IDLE
        for place, reader in enumerate(free):
            if place < surplus or now - reader.used > IDLE_S or reader.is_over:
                del self._readers[reader.run_id]
                await reader.stop()

    async def stop(self) -> None:
        """Let all go."""
        for reader in list(self._readers.values()):
            await reader.stop()
        self._readers.clear()
