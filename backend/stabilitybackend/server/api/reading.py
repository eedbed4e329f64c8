"""Runs what reads much in a thread, few at a time, so that live requests are not kept waiting, and once for all."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import Depends, Header
from starlette.requests import HTTPConnection

from stabilitybackend.base.shared_answers import SharedAnswers

__all__ = ["MaxAge", "ReadingThreads", "Shared", "Threads"]

#: Charts that are read at the same time. They share one interpreter lock with the event loop: twelve charts in six
#: threads took as long as in two, but each answer came later and the loop did not move for 34 ms instead of 13.
MAX_AT_ONCE = 2
#: How old an answer about a run that goes on may be at most, seconds, for who takes an older one.
SHARED_FOR_S = 1.0

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


def _shared(connection: HTTPConnection) -> SharedAnswers:
    shared: SharedAnswers = connection.app.state.shared_answers
    return shared


def _max_age(
    cache_control: Annotated[
        str | None, Header(description=f"max-age=N: takes an answer that is N s old, {SHARED_FOR_S:.0f} at most")
    ] = None,
) -> float:
    found = re.search(r"\bmax-age=(\d{1,9})\b", cache_control or "")
    return min(float(found[1]), SHARED_FOR_S) if found else 0.0


#: How old an answer the caller takes, seconds.
MaxAge = Annotated[float, Depends(_max_age)]
#: The application's answers that others may get, too.
Shared = Annotated[SharedAnswers, Depends(_shared)]
