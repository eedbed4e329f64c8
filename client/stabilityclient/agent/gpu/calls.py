"""Calls of NVML that are watched: which one runs now, for which GPU, and since when.

A faulty GPU can hold a call for minutes or without end (its system processor does not answer). pynvml calls through
ctypes, which gives the GIL away, so only the calling thread waits; others ask here for its open call.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

__all__ = ["Call", "CallWatch", "HangGuard", "Hanging"]

#: Seconds that one sample of the guard adds at most to the age of a call: an agent that was stopped for a minute
#: (SIGSTOP, a frozen VM) must not blame the call that was under way for it.
MAX_COUNTED_S = 1.0


class Call(NamedTuple):
    """A call that runs: its name, the key of its GPU (empty: of none), the start in monotonic seconds, a number."""

    name: str
    gpu: str
    started: float
    number: int


class Hanging(NamedTuple):
    """A call that is older than allowed, or was: ``seconds`` is its age; ``over``: it has returned."""

    name: str
    gpu: str
    seconds: float
    over: bool


class CallWatch:
    """Makes the calls of one thread to ``module``, pynvml.

    Attributes:
        current: the call that runs, None between two. Read by other threads.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.current: Call | None = None
        self._count = 0

    def call(self, name: str, gpu: str, *arguments: Any) -> Any:
        """Return the result of ``pynvml.<name>(*arguments)``; its exceptions pass through."""
        self._count += 1
        self.current = Call(name, gpu, time.monotonic(), self._count)
        try:
            return getattr(self.module, name)(*arguments)
        finally:
            self.current = None


class HangGuard:
    """Reports when a call begins to hang and when it returns; checked several times a second.

    Args:
        limit_s: age from which a call hangs, seconds.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._call: Call | None = None
        self._age_s = 0.0
        self._seen = 0.0
        self._reported = False

    @property
    def hanging(self) -> Hanging | None:
        """Return the call that hangs now."""
        return Hanging(self._call.name, self._call.gpu, self._age_s, False) if self._call and self._reported else None

    def check(self, current: Call | None, now: float, allowed_s: float = 0.0) -> list[Hanging]:
        """Return the changes: a call that hangs from now on, one that has returned.

        Args:
            current: the call that runs. now: monotonic seconds. allowed_s: seconds allowed beyond the limit.
        """
        changes = []
        before = self._call
        if before is not None and current is not None and current.number == before.number:
            self._age_s += min(max(0.0, now - self._seen), MAX_COUNTED_S)
            if not self._reported and self._age_s >= self._limit_s + allowed_s:
                self._reported = True
                changes.append(Hanging(before.name, before.gpu, self._age_s, False))
        else:
            if before is not None and self._reported:
                changes.append(Hanging(before.name, before.gpu, self._age_s, True))
            self._call, self._reported = current, False
            self._age_s = min(max(0.0, now - current.started), MAX_COUNTED_S) if current is not None else 0.0
        self._seen = now
        return changes
