"""Looks at checkpoints on disk and in object stores, in threads: a look takes as long as the disk or store does.

A file system that hangs (a file server that is gone) keeps its thread until it answers. Its other checkpoints are not
looked at meanwhile, those elsewhere are.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from stabilityclient.agent.watch.checkpoint_kinds.found import Inspection
from stabilityclient.agent.watch.checkpoint_kinds.inspection import inspect
from stabilityclient.agent.watch.checkpoint_kinds.remote import (
    Mark,
    NotChecked,
    in_store,
    inspect_objects,
    list_objects,
    local,
)
from stabilityclient.agent.watch.visibility_gaps import Gap

__all__ = ["HANGS_S", "Glance", "Saw", "Survey", "mount_points", "survey"]

#: A file system counts as one that hangs when one look at a checkpoint takes so long, seconds: of the largest ones some
#: ten thousand small reads, which a file server that is busy answers within.
HANGS_S = 60.0
_MOUNTS = "/proc/self/mountinfo"


class Glance(NamedTuple):
    """A path to look at: its content only where ``look``, or where ``mark`` has changed."""

    path: str
    step: int
    world_size: int | None
    mark: Mark | None
    look: bool
    routine: bool = False


class Saw(NamedTuple):
    """Result of a glance; ``mark`` None: the path is absent. ``trouble``: why that is unknown."""

    glance: Glance
    mark: Mark | None
    look: Inspection | None
    took_s: float
    trouble: str = ""


class Survey:
    """Looks at one list of checkpoints after another.

    Args:
        hangs_s: see ``HANGS_S``. mounts: returns the mount points of this machine.
    """

    def __init__(self, hangs_s: float = HANGS_S, mounts: Callable[[], list[str]] | None = None) -> None:
        self._hangs_s = hangs_s
        self._mounts = mounts or mount_points
        #: Mount point or store -> the looks of which one hangs there.
        self._hung: dict[str, _Inspections] = {}

    def gaps(self) -> list[Gap]:
        """Return the places hidden by a look that hangs."""
        do = "see whether it is mounted, and its file server up, on this node"
        return [Gap("checkpoints", _trouble(place), do) for place in self._hung]

    async def of(self, glances: Iterable[Glance]) -> list[Saw]:
        """Return the results, of looks that hung before, too. Those of a place that hangs are not waited for."""
        saw: list[Saw] = []
        for place, pending in list(self._hung.items()):
            if pending.over:
                saw += pending.taken()
                del self._hung[place]
        left = list(glances)
        while left:
            mounts = self._mounts() if self._hung else []
            blocked = [each for each in left if _place(each.path, mounts) in self._hung]
            saw += [Saw(each, None, None, 0.0, _trouble(_place(each.path, mounts))) for each in blocked]
            pending = _Inspections([each for each in left if each not in blocked])
            left = []
            while not await pending.end(self._hangs_s):
                if pending.moves():
                    continue
                hanging, left = pending.leave()
                saw += pending.taken()
                self._hung[_place(hanging.path, self._mounts())] = pending
                left = [hanging, *left]
                break
            saw += pending.taken()
        return saw


class _Inspections:
    """A thread that looks at one checkpoint after another; the end of the process does not wait for it."""

    def __init__(self, glances: list[Glance]) -> None:
        self._glances = glances
        self._saw: list[Saw] = []
        self._done = 0
        self._done_before = 0
        self._left = False
        self._taken = 0
        self.over = False
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        threading.Thread(target=self._work, name="checkpoints", daemon=True).start()

    def _work(self) -> None:
        away: dict[str, str] = {}
        for glance in self._glances:
            self._saw.append(_inspected(glance, away))
            self._done += 1
            if self._left:
                break
        self.over = True
        with suppress(RuntimeError):  # the agent has ended
            self._loop.call_soon_threadsafe(self._ended.set)

    async def end(self, timeout_s: float) -> bool:
        """Wait until all are looked at; return whether they are."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout_s)
        return self._ended.is_set()

    def moves(self) -> bool:
        """Whether another one was looked at since the last call."""
        before, self._done_before = self._done_before, self._done
        return before != self._done

    def leave(self) -> tuple[Glance, list[Glance]]:
        """Let the thread end after the look that hangs; return that one and those after it."""
        self._left = True
        at = min(self._done, len(self._glances) - 1)
        return self._glances[at], self._glances[at + 1 :]

    def taken(self) -> list[Saw]:
        """Return the results since the last call."""
        new = self._saw[self._taken :]
        self._taken += len(new)
        return new


def survey(glances: Iterable[Glance]) -> list[Saw]:
    """Look at paths or URLs, here and now."""
    away: dict[str, str] = {}
    return [_inspected(each, away) for each in glances]


def _inspected(glance: Glance, away: dict[str, str]) -> Saw:
    return _glance_at_objects(glance, away) if in_store(glance.path) else _glance(glance)


def _store_of(url: str) -> str:
    return "/".join(url.split("/", 3)[:3])


def _place(path: str, mounts: Iterable[str]) -> str:
    """Return the store of a URL, or the mount point of a path; no look at the disk, which may hang."""
    if in_store(path):
        return _store_of(path)
    name = os.path.normpath(local(path))
    above = (mount for mount in mounts if mount == "/" or name == mount or name.startswith(f"{mount}/"))
    return max(above, key=len, default="/")


def _trouble(place: str) -> str:
    return f"{'the store' if '://' in place else 'the file system at'} {place} does not answer"


def mount_points() -> list[str]:
    """Return the mount points of this machine; empty where the kernel does not list them."""
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            names = [line.split(" ")[4] for line in file if line.count(" ") > 4]
    except OSError:
        return []
    escapes = {r"\040": " ", r"\011": "\t", r"\012": "\n", r"\134": "\\"}
    for escape, char in escapes.items():
        names = [name.replace(escape, char) for name in names]
    return names


def _glance_at_objects(glance: Glance, away: dict[str, str]) -> Saw:
    """Look at a URL; ``away``: of stores that could not be asked a moment ago, each with the reason."""
    store = _store_of(glance.path)
    if store in away:
        return Saw(glance, None, None, 0.0, away[store])
    try:
        objects = list_objects(glance.path)
        if objects is None:
            return Saw(glance, None, None, 0.0)
        if not glance.look and objects.mark == glance.mark:
            return Saw(glance, objects.mark, None, 0.0)
        return Saw(glance, objects.mark, inspect_objects(objects, glance.world_size), 0.0)
    except NotChecked as reason:
        away |= {store: str(reason)} if reason.away else {}
        return Saw(glance, None, None, 0.0, str(reason))


def _glance(glance: Glance) -> Saw:
    path = local(glance.path)
    try:
        state = os.stat(path)
    except (OSError, ValueError):
        return Saw(glance, None, None, 0.0)
    mark = (state.st_mtime_ns, state.st_size)
    if not glance.look and mark == glance.mark:
        return Saw(glance, mark, None, 0.0)
    began = time.monotonic()
    look = inspect(path, glance.world_size)
    return Saw(glance, mark, look, time.monotonic() - began)
