"""Ends tasks for certain."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["end"]

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
