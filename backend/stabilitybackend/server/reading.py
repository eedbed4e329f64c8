"""Bounds on requests that read or compute much, so that live requests are not kept waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

__all__ = ["ReadingThreads", "Trials"]

#: Charts that are read at the same time. They share one interpreter lock with the event loop: twelve charts in six
#: threads took as long as in two, but each answer was later and the loop stalled for 34 ms instead of 13.
MAX_AT_ONCE = 2

T = TypeVar("T")


class ReadingThreads:
    """A bound on the threads that read for charts, one per application."""

    def __init__(self, at_once: int = MAX_AT_ONCE) -> None:
        self._free = asyncio.Semaphore(at_once)

    async def run(self, read: Callable[[], T]) -> T:
        """Return the result of ``read``, called in a thread when it is its turn."""
        async with self._free:
            return await asyncio.to_thread(read)


class Trials:
    """Runs on which settings are tried now: one at a time, since each takes a core."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.turn = asyncio.Lock()
