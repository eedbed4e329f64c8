"""Ends tasks for certain, and waits for threads that can't be ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["end", "in_thread"]

T = TypeVar("T")

#: Pause between two requests to end, seconds.
_AGAIN_S = 1.0


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
    """Return what ``work`` returns, done in a thread.

    A thread can't be ended. A task that is cancelled goes on waiting for it, so that what it holds (a lock, files that
    it writes) is let go only when nothing touches it any more.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # looked at: nobody else will
        raise cancelled
    return task.result()
