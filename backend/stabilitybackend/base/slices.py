"""Lets long work of a run give way to everything else: it is done in slices, and the event loop serves others between.

An agent's messages wait until the work is done, so the work finds the state unchanged since its begin.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from typing import TypeVar

__all__ = ["SLICE_S", "Slices", "at_once"]

#: Length of a slice, seconds; a tick of a small job takes less and is one slice.
SLICE_S = 0.005

T = TypeVar("T")


def at_once(work: Generator[None, None, T]) -> T:
    """Return the result of ``work``, without a pause."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: T = end.value
            return found


class Slices:
    """The long work of one run; ``clock`` returns the seconds by which its slices are cut."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._working = False
        self._since = 0.0
        self._waiting: list[Callable[[], None]] = []

    async def run(self, work: Generator[None, None, T]) -> T:
        """Return the result of ``work``; the event loop runs between its slices."""
        self._working, self._since = True, self._clock()
        try:
            while True:
                try:
                    next(work)
                except StopIteration as end:
                    found: T = end.value
                    return found
                await self.breathe()
        finally:
            self._working = False
            waiting, self._waiting = self._waiting, []
            for call in waiting:
                call()

    async def breathe(self) -> None:
        """Let others be served where SLICE_S have passed since they were."""
        if self._clock() - self._since >= SLICE_S:
            await asyncio.sleep(0)
            self._since = self._clock()

    def after(self, call: Callable[[], None]) -> None:
        """Call ``call`` now, or where work is under way as soon as that is done."""
        if self._working:
            self._waiting.append(call)
        else:
            call()
