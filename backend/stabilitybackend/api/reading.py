"""Runs what reads much in a thread, few at a time, so that live requests are not kept waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import Depends
from starlette.requests import HTTPConnection

__all__ = ["ReadingThreads", "Threads"]

#: Charts that are read at the same time. They share one interpreter lock with the event loop: twelve charts in six
#: threads took as long as in two, but each answer came later and the loop did not move for 34 ms instead of 13.
MAX_AT_ONCE = 2

T = TypeVar("T")


class ReadingThreads:
    """A bound on the threads that read for charts, one per application."""

    def __init__(self, at_once: int = MAX_AT_ONCE) -> None:
        self._free = asyncio.Semaphore(at_once)

    async def run(self, read: Callable[[], T]) -> T:
        """Return what ``read`` returns, called in a thread when it is its turn."""
        async with self._free:
            return await asyncio.to_thread(read)


def _threads(connection: HTTPConnection) -> ReadingThreads:
    threads: ReadingThreads = connection.app.state.reading_threads
    return threads


#: The application's threads for reading.
Threads = Annotated[ReadingThreads, Depends(_threads)]
