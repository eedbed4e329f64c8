"""Waits for something to become true, and says what did not when it takes too long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["until", "wait_until"]

#: Seconds between two looks: short at first, then a share of what was waited already. Many a look costs a request or a
#: question to Chromium, and takes the two cores from what is waited for.
_PAUSE_S, _LONGEST_PAUSE_S, _SHARE = 0.01, 0.1, 0.05
T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout_s: float, what: str) -> T:
    """Return the first true value of ``condition()``; fail after ``timeout_s`` naming ``what``."""
    started = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited = time.monotonic() - started
        if waited > timeout_s:
            raise AssertionError(f"not within {timeout_s} s: {what} (last seen: {value!r})")
        time.sleep(min(_LONGEST_PAUSE_S, max(_PAUSE_S, _SHARE * waited)))


async def until(condition: Callable[[], Awaitable[T]], timeout_s: float, what: str) -> T:
    """Like ``wait_until`` for a condition that is awaited; the event loop runs on in between."""
    started = time.monotonic()
    while True:
        value = await condition()
        if value:
            return value
        waited = time.monotonic() - started
        if waited > timeout_s:
            raise AssertionError(f"not within {timeout_s} s: {what} (last seen: {value!r})")
        await asyncio.sleep(min(_LONGEST_PAUSE_S, max(_PAUSE_S, _SHARE * waited)))
