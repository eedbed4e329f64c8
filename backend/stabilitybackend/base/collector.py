"""Keeps the pauses of Python's collector of cycles short, however much the server holds.

A full collection goes through every container that there is, and the whole process stops meanwhile: for 0.1 to 0.3 s
with 16,384 ranks or 500 runs. So survivors are set aside after each one (``gc.freeze``), and the next one goes
through newer objects. Those set aside are freed as ever without a reference to them; only a cycle among them has to
wait for a collection of everything. That runs without connections, or when very much was set aside.

Left to itself the collector waits for more containers made than freed. Where each message of an agent takes the place
of the one before, that is never so, and it meets them all together some time: so new ones are collected every now and
then.

Nothing here lists objects (``gc.get_objects``): the list refers to tuples that other threads are just filling, and
CPython refuses to resize a tuple that two refer to (SystemError in whichever thread that is).
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Literal

__all__ = ["COLLECT_EVERY_S", "NEW_OBJECTS", "SET_ASIDE_FROM_S", "CycleCollector"]

#: New containers after which the collector goes through all that was not set aside: each takes 0.3 to 1 us.
NEW_OBJECTS = 10_000
#: Pause after which survivors are set aside, seconds: some thousand containers. Shorter ones delay no request.
SET_ASIDE_FROM_S = 0.001
#: Containers set aside since the last full collection with which the next one no longer waits for a quiet moment:
#: some hundred MiB, were all of them in dead cycles.
MAX_SET_ASIDE = 2_000_000
#: Share of the time that collecting new objects may take: after a long pause the next one is later.
MAX_SHARE = 0.005
#: Periods of collecting new objects, and of asking for a full collection, seconds.
COLLECT_EVERY_S = 0.25
TEND_EVERY_S = 60.0

#: Generation of ``gc`` that holds the survivors.
_OLDEST = 2


class CycleCollector:
    """The collector of cycles of this process, which serves one app and nothing else.

    Args:
        clock: seconds; how long it stopped us.

    Attributes:
        longest_s: the longest pause, by the objects visited: ``new`` or ``all``.
        pauses_s: all of them together. full_collections: how often it went through everything, but for the start.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.longest_s: dict[Literal["new", "all"], float] = {"new": 0.0, "all": 0.0}
        self.pauses_s = 0.0
        self.full_collections = 0
        self._clock = clock
        self._thresholds = gc.get_threshold()
        self._begin = 0.0
        self._at_all = False
        #: Objects that are set aside after a full collection; whether more were since.
        self._stay = 0
        self._more = False
        #: When the next collection of new objects may begin, and the last pause of one, seconds.
        self._next = float("-inf")
        self._took_s = 0.0

    def start(self) -> None:
        """Set aside all that the start of the server made: modules, classes, routes stay as long as the process."""
        self._thresholds = youngest, middle, _ = gc.get_threshold()
        gc.set_threshold(youngest, middle, max(1, NEW_OBJECTS // max(1, youngest * middle)))
        self._set_all_aside()
        gc.callbacks.append(self._note)

    def stop(self) -> None:
        """Leave the collector to itself again; objects set aside stay so. Without a ``start`` nothing changes."""
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)
            gc.set_threshold(*self._thresholds)

    async def follow(self, quiet: Callable[[], bool]) -> None:
        """Tend it without end; ``quiet`` returns whether a pause of some tenths of a second delays no request."""
        while True:
            for _ in range(round(TEND_EVERY_S / COLLECT_EVERY_S)):
                await asyncio.sleep(COLLECT_EVERY_S)
                self.collect_new()
            self.tend(quiet())

    def collect_new(self) -> None:
        """Collect the objects not set aside, if the last pause is long enough ago for its length."""
        if (now := self._clock()) >= self._next:
            gc.collect()
            self._next = now + self._took_s / MAX_SHARE

    def tend(self, quiet: bool) -> None:
        """Collect everything where something was set aside and the moment is ``quiet``, or where it is very much."""
        if self._more and (quiet or gc.get_freeze_count() - self._stay > MAX_SET_ASIDE):
            self._collect_all()
            self.full_collections += 1

    def _collect_all(self) -> None:
        self._at_all = True
        gc.unfreeze()
        self._set_all_aside()

    def _set_all_aside(self) -> None:
        gc.collect()
        gc.freeze()
        gc.collect()  # CPython waits for a quarter more than its last collection left: that is nothing from now on
        self._at_all = self._more = False
        self._stay = gc.get_freeze_count()

    def _note(self, phase: str, facts: dict[str, int]) -> None:
        """Note a start or stop of the collector; runs in the thread that triggered it."""
        if phase == "start":
            self._begin = self._clock()
            return
        self._took_s = took_s = self._clock() - self._begin
        if facts["generation"] == _OLDEST and not self._at_all and took_s >= SET_ASIDE_FROM_S:
            gc.freeze()
            self._more = True
        what: Literal["new", "all"] = "all" if self._at_all else "new"
        self.longest_s[what] = max(self.longest_s[what], took_s)
        self.pauses_s += took_s
