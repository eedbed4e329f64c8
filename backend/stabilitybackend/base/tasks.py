"""Ends tasks for certain, and waits for threads that can't be ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

__all__ = ["SingleFlight", "Watched", "end", "in_thread"]

T = TypeVar("T")
_log = logging.getLogger(__name__)

#: Pause between two requests to end, seconds.
_AGAIN_S = 1.0


class SingleFlight(Generic[T]):
    """Does one piece of work once for all who ask for it at the same time.

    Args:
        work: called for the first request; requests during the call get the same result, or the same error.
    """

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self._task: asyncio.Future[T] | None = None

    async def result(self) -> T:
        """Return the result of the work under way; begin it where none is. A cancelled caller stops no other."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._work())
            self._task.add_done_callback(self._over)
        return await asyncio.shield(self._task)

    def _over(self, task: asyncio.Future[T]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()  # retrieved: perhaps no caller waits


class Watched:
    """Tasks as long as the process: one that ends by an error is logged and named.

    Attributes:
        failed: their names, each with the class of its error.
    """

    def __init__(self) -> None:
        self.failed: list[str] = []

    def add(self, *tasks: asyncio.Task[Any]) -> None:
        """Watch these, too."""
        for task in tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed.append(f"{task.get_name()} ({type(error).__name__})")
            _log.error("%s ended, which it never should", task.get_name(), exc_info=error)


async def end(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and return when they are over, whatever they end with.

    Asked again and again: on Python 3.11 ``asyncio.wait_for``, through which redis-py sends, may swallow a
    cancellation that comes just when its work is done (python/cpython#86296, mended in 3.12).
    """
    left = {task for task in tasks if task is not None}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_AGAIN_S)
    await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)


async def in_thread(work: Callable[[], T]) -> T:
    """Return the result of ``work``, called in a thread.

    A thread can't be ended. A cancelled task still waits for it, so that its resources (a lock, files that
    it writes) are let go only when nothing touches them any more.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # retrieved: no other caller does
        raise cancelled
    return task.result()
