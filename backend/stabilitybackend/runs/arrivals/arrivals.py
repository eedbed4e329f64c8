"""Shared means of one process's workers to get their frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from redis.asyncio import Redis

from stabilitybackend.runs.arrivals.handed import HandedFrames
from stabilitybackend.runs.arrivals.shared_reads import SharedReads

if TYPE_CHECKING:
    from stabilitybackend.runs.worker import RunWorker

__all__ = ["Arrivals"]


class Arrivals:
    """Of one process.

    Args:
        redis: of its workers.
        workers: those that follow a run now, by run.

    Attributes:
        handed: takes the frames that the process stores itself: parameter ``beside`` of ``Ingest``.
    """

    def __init__(self, redis: Redis, workers: Mapping[str, RunWorker]) -> None:
        self.handed = HandedFrames(workers)
        self._reads = SharedReads(redis)

    def serve(self, worker: RunWorker) -> None:
        """Let a new worker share it."""
        worker.handed.share = self.handed.share
        worker.journal.shared = self._reads

    async def stop(self) -> None:
        """End the work under way; there are no callers left."""
        await self._reads.stop()
