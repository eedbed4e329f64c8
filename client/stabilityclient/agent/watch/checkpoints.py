"""Watches logged checkpoints on disk and says when one is gone: nobody should be offered a rollback to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from stabilityclient.agent.upload.records import SpooledEvent

__all__ = ["MAX_WATCHED", "CheckpointWatch"]

#: Checkpoints watched at once; the oldest is forgotten first. Two looks a second at 2,000 paths cost under 1 % of a
#: core.
MAX_WATCHED = 2000


class CheckpointWatch:
    """The checkpoints of this node's ranks.

    Args:
        known: what ``state()`` gave in an earlier life.
        exists: whether a path is on disk.
    """

    def __init__(self, known: object, exists: Callable[[str], bool] = os.path.exists) -> None:
        self._exists = exists
        self._watched: dict[str, tuple[int, bool]] = {}
        for entry in known[-MAX_WATCHED:] if isinstance(known, list) else ():
            try:
                self._watched[str(entry["path"])] = (int(entry["step"]), bool(entry["seen"]))
            except (LookupError, TypeError, ValueError, OverflowError):
                continue  # a file that was damaged must not keep the agent from its work

    def take(self, event: SpooledEvent) -> bool:
        """Watch the path of a ``checkpoint`` event; True when that is news."""
        path = event.data.get("path")
        if event.type != "checkpoint" or not isinstance(path, str) or event.step is None or "://" in path:
            return False
        known = self._watched.get(path)
        if known is not None and known[0] == event.step:
            return False  # another rank reported it before
        self._watched.pop(path, None)
        self._watched[path] = (event.step, self._exists(path))
        while len(self._watched) > MAX_WATCHED:
            del self._watched[next(iter(self._watched))]
        return True

    def gone(self) -> list[tuple[int, str]]:
        """Return (step, path) of those that were on disk and are not any more, once each.

        A path that was never seen is not gone: it may still be written, or lie on another node's disk.
        """
        missing = []
        for path, (step, seen) in list(self._watched.items()):
            there = self._exists(path)
            if there and not seen:
                self._watched[path] = (step, True)
            elif seen and not there:
                del self._watched[path]
                missing.append((step, path))
        return missing

    def state(self) -> list[dict[str, Any]]:
        """Return what a later agent needs to go on."""
        return [{"path": path, "step": step, "seen": seen} for path, (step, seen) in self._watched.items()]
