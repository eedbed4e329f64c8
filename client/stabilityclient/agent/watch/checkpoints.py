"""Watches logged checkpoints on disk and says when one is gone: nobody should be offered a rollback to it."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from stabilityclient.agent.statefile import read_as
from stabilityclient.agent.upload.records import SpooledEvent

__all__ = ["MAX_WATCHED", "CheckpointWatch"]

#: Checkpoints watched at once; the oldest is forgotten first. Two checks a second of 2,000 paths cost under 1 % of a
#: core.
MAX_WATCHED = 2000


class _Watched(msgspec.Struct):
    """A checkpoint. ``seen``: it was on disk."""

    path: str
    step: int
    seen: bool


class CheckpointWatch:
    """The checkpoints of this node's ranks.

    Args:
        known: what ``state()`` gave in an earlier life.
        exists: whether a path is on disk.
    """

    def __init__(self, known: object, exists: Callable[[str], bool] = os.path.exists) -> None:
        self._exists = exists
        self._watched = {each.path: each for each in read_as(known, list[_Watched])[-MAX_WATCHED:]}

    def take(self, event: SpooledEvent) -> bool:
        """Watch the path of a ``checkpoint`` event; True when that is news."""
        path = event.data.get("path")
        if event.type != "checkpoint" or not isinstance(path, str) or event.step is None or "://" in path:
            return False
        known = self._watched.get(path)
        if known is not None and known.step == event.step:
            return False  # another rank reported it before
        self._watched.pop(path, None)
        self._watched[path] = _Watched(path, event.step, self._exists(path))
        while len(self._watched) > MAX_WATCHED:
            del self._watched[next(iter(self._watched))]
        return True

    def gone(self) -> list[tuple[int, str]]:
        """Return (step, path) of those that were on disk and are not any more, once each.

        A path that was never seen is not gone: it may still be written, or lie on another node's disk.
        """
        missing = []
        for each in list(self._watched.values()):
            there = self._exists(each.path)
            if each.seen and not there:
                del self._watched[each.path]
                missing.append((each.step, each.path))
            each.seen = there
        return missing

    def state(self) -> object:
        """Return what a later agent needs to go on, as builtins."""
        return msgspec.to_builtins(list(self._watched.values()))
