"""Watches announced checkpoints on disk: what each is, whether it is whole, and when it is gone.

Nobody should be offered a rollback to one of which a part is missing. A look is taken when a checkpoint is announced,
when its file or folder changed, and of each in turn: a shard inside may be cut off without a trace outside.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from stabilityclient.agent.statefile import read_as
from stabilityclient.agent.upload.records import SpooledEvent
from stabilityclient.agent.watch.checkpoint_kinds.found import Inspection
from stabilityclient.agent.watch.checkpoint_kinds.inspection import inspect

__all__ = ["MAX_WATCHED", "STILL_S", "CheckpointWatch", "Glance", "Notice", "survey", "surveyed"]

#: Checkpoints watched at once; the oldest is forgotten first. Two checks a second of 2,000 paths cost under 1 % of a
#: core.
MAX_WATCHED = 2000
#: One of which something is missing is still being written until nothing of it has changed for so long, seconds: an
#: asynchronous save announces it first, and writes its shards one after another.
STILL_S = 30.0
#: Share of the time that looks at one checkpoint after another may take, without a sign that anything changed: a
#: thousand agents that do so on one file system are as one that never stops.
LOOK_SHARE = 0.001


class _Watched(msgspec.Struct):
    """A checkpoint. ``seen``: it was on disk. ``world_size``: of the job. ``told``: of what was reported of it last."""

    path: str
    step: int
    seen: bool
    world_size: int | None = None
    told: str = ""


@dataclass
class _Sight:
    """What this agent saw of it: its file's or folder's time and size, all of its content, since when that is so."""

    mark: tuple[int, int] | None = None
    content: tuple[Any, ...] = ()
    since: float = 0.0
    whole: bool = False
    writing: bool = False
    again: bool = True


class Glance(NamedTuple):
    """A path to look at: what is inside only where ``look``, or where ``mark`` is no longer so."""

    path: str
    step: int
    world_size: int | None
    mark: tuple[int, int] | None
    look: bool
    routine: bool = False


class _Saw(NamedTuple):
    """What came of it; ``mark`` None: it is not there."""

    glance: Glance
    mark: tuple[int, int] | None
    look: Inspection | None
    took_s: float


class Notice(NamedTuple):
    """An event to send."""

    type: str
    step: int
    data: dict[str, Any]


class CheckpointWatch:
    """The checkpoints of this node's ranks. ``due``, ``survey`` (in a thread: a disk may hang) and ``settle`` in turn.

    Args:
        known: what ``state()`` gave in an earlier life.
        exists: whether a path is on disk. now: seconds of a clock that never steps.
    """

    def __init__(
        self,
        known: object,
        exists: Callable[[str], bool] = os.path.exists,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exists, self._now = exists, now
        self._watched = {each.path: each for each in read_as(known, list[_Watched])[-MAX_WATCHED:]}
        self._sights: dict[str, _Sight] = {}
        self._turn = 0
        self._next_turn = 0.0

    def take(self, event: SpooledEvent, world_size: int | None = None) -> bool:
        """Watch the path of a ``checkpoint`` event of a job of so many ranks; True when that is news."""
        path = event.data.get("path")
        if event.type != "checkpoint" or not isinstance(path, str) or event.step is None or "://" in path:
            return False
        known = self._watched.get(path)
        if known is not None and known.step == event.step:
            return False  # another rank reported it before
        self._forget(path)
        self._watched[path] = _Watched(path, event.step, self._exists(path), world_size)
        while len(self._watched) > MAX_WATCHED:
            self._forget(next(iter(self._watched)))
        return True

    def _forget(self, path: str) -> None:
        self._watched.pop(path, None)
        self._sights.pop(path, None)

    @property
    def waits(self) -> bool:
        """Whether one is there that was not looked at yet, or is still being written."""
        sights = ((each, self._sights.get(each.path)) for each in self._watched.values() if each.seen)
        return any(not each.told if sight is None else sight.writing for each, sight in sights)

    def due(self) -> list[Glance]:
        """Return what is to be looked at now: all of them, and into which."""
        glances = []
        for each in self._watched.values():
            sight = self._sights.get(each.path)
            mark, look = (None, True) if sight is None else (sight.mark, sight.again)
            glances.append(Glance(each.path, each.step, each.world_size, mark, look))
        if glances and self._now() >= self._next_turn:
            self._turn = (self._turn + 1) % len(glances)
            turn = glances[self._turn]
            glances[self._turn] = turn._replace(look=True, routine=not turn.look)
        return glances

    def settle(self, saw: Iterable[_Saw], *, over: bool = False) -> list[Notice]:
        """Take in what ``survey`` saw; return what is news, in events. ``over``: nobody is left who could write."""
        told = []
        for one in saw:
            each = self._watched.get(one.glance.path)
            if each is None or each.step != one.glance.step:
                continue  # another one came there meanwhile
            if one.mark is None:
                if each.seen:
                    # One that was never seen is not gone: it may still be written, or lie on another node's disk.
                    self._forget(each.path)
                    told.append(Notice("checkpoint_gone", each.step, {"path": each.path}))
                continue
            each.seen = True
            if one.glance.routine:
                self._next_turn = self._now() + one.took_s / LOOK_SHARE
            if one.look is not None:
                told += self._inspected(each, one.mark, one.look, over)
            elif one.glance.look or one.mark != one.glance.mark:  # it is not for us to read
                self._sights[each.path] = _Sight(one.mark, again=False)
        return told

    def _inspected(self, each: _Watched, mark: tuple[int, int], look: Inspection, over: bool) -> list[Notice]:
        sight = self._sights.setdefault(each.path, _Sight())
        content = (mark, look.files, look.size_bytes, look.bad)
        changed, first = content != sight.content, not sight.content
        if changed:
            sight.content, sight.since = content, self._now()
        sight.mark = mark
        still = over or self._now() - sight.since >= STILL_S
        sight.writing = look.complete is False and not sight.whole and not still
        sight.whole |= bool(look.complete)
        sight.again = sight.writing or changed
        if look.complete is None and changed and not first:
            return []  # its size when it is at rest
        data = {"path": each.path, "writing": sight.writing, **msgspec.to_builtins(look)}
        # Of one that is being written nothing else is news until it is whole or still.
        about = look.kind if sight.writing else f"{zlib.crc32(repr(data).encode()):08x}"
        if each.told == about:
            return []
        each.told = about
        return [Notice("checkpoint_seen", each.step, data)]

    def state(self) -> object:
        """Return what a later agent needs to go on, as builtins."""
        return msgspec.to_builtins(list(self._watched.values()))


def survey(glances: Iterable[Glance]) -> list[_Saw]:
    """Look at paths. It takes as long as the disk does."""
    return [_glance(each) for each in glances]


def _glance(glance: Glance) -> _Saw:
    try:
        state = os.stat(glance.path)
    except (OSError, ValueError):
        return _Saw(glance, None, None, 0.0)
    mark = (state.st_mtime_ns, state.st_size)
    if not glance.look and mark == glance.mark:
        return _Saw(glance, mark, None, 0.0)
    began = time.monotonic()
    look = inspect(glance.path, glance.world_size)
    return _Saw(glance, mark, look, time.monotonic() - began)


async def surveyed(glances: list[Glance]) -> list[_Saw]:
    """Return what ``survey`` saw, from a thread that nobody waits for at the end: of a dead file server it hangs."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[_Saw]] = loop.create_future()

    def settle(saw: list[_Saw]) -> None:
        if not answer.done():
            answer.set_result(saw)

    def work() -> None:
        saw = survey(glances)
        with suppress(RuntimeError):  # the agent has ended
            loop.call_soon_threadsafe(settle, saw)

    threading.Thread(target=work, name="checkpoints", daemon=True).start()
    return await answer
