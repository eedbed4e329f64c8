"""Waits for something to become true, and says what did not when it takes too long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["until", "wait_until"]

_PAUSE_S = 0.01
T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout_s: float, what: str) -> T:
    """Return the first true value of ``condition()``; fail after ``timeout_s`` naming ``what``."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what} (last seen: {value!r})")
        time.sleep(_PAUSE_S)


async def until(condition: Callable[[], Awaitable[T]], timeout_s: float, what: str) -> T:
    """Like ``wait_until`` for a condition that is awaited; the event loop runs on in between."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = await condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what} (last seen: {value!r})")
        await asyncio.sleep(_PAUSE_S)
