"""Waits for something to become true, and says what did not when it takes too long."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

__all__ = ["PATIENCE", "scroll_to", "until", "wait_in", "wait_until"]

#: Seconds between two looks: short at first, then a share of what was waited already. Many a look costs a request or a
#: question to Chromium, and takes the two cores from what is waited for.
_PAUSE_S, _LONGEST_PAUSE_S, _SHARE = 0.01, 0.1, 0.05
#: Times that a deadline is stretched, and one that a test asserts: each is given for a machine that has nothing else to
#: do. What comes in time costs nothing more, and a loaded machine (a start of the server was seen to take 40 s instead
#: of 2) fails no test.
PATIENCE = 3
T = TypeVar("T")


def wait_until(condition: Callable[[], T | Literal[False] | None], timeout_s: float, what: str) -> T:
    """Return the first true value of ``condition()``; fail naming ``what`` after ``timeout_s`` times ``PATIENCE``."""
    started = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited = time.monotonic() - started
        if waited > PATIENCE * timeout_s:
            raise AssertionError(f"not within {PATIENCE * timeout_s} s: {what} (last seen: {value!r})")
        time.sleep(min(_LONGEST_PAUSE_S, max(_PAUSE_S, _SHARE * waited)))


def wait_in(page: Any, expression: str, timeout_s: float = 30) -> None:
    """Wait until JavaScript is true in a page of Playwright.

    Not ``page.wait_for_function``: that evaluates text from within the page, which our content security policy refuses.
    """
    wait_until(lambda: page.evaluate(expression), timeout_s, expression)


def scroll_to(page: Any, selector: str) -> None:
    """Bring an element into sight that may be made anew meanwhile, as charts are while those above them load.

    Playwright's own ``scroll_into_view_if_needed`` waits until the element moves no more, and fails if it is replaced.
    """
    found = f"document.querySelector({json.dumps(selector)})"
    wait_in(page, f"(found => (found?.scrollIntoView({{block: 'center'}}), Boolean(found)))({found})")


async def until(condition: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """Like ``wait_until``, for a condition that may be awaited; the event loop runs on in between."""
    started = time.monotonic()
    while True:
        found = condition()
        value = await found if isinstance(found, Awaitable) else found
        if value:
            return value
        waited = time.monotonic() - started
        if waited > PATIENCE * timeout_s:
            raise AssertionError(f"not within {PATIENCE * timeout_s} s: {what} (last seen: {value!r})")
        await asyncio.sleep(min(_LONGEST_PAUSE_S, max(_PAUSE_S, _SHARE * waited)))
