"""Watches announced checkpoints: their kind, whether they are whole, and when they are gone.

A checkpoint with a missing part is no target of a rollback. A look is taken when a checkpoint is announced,
when its file or folder changed, and of each in turn: a shard inside may be cut off without a trace outside. Those with
a URL are looked at by themselves: a store that is away does not hold up the disk, nor the other way round.
"""

from __future__ import annotations

import asyncio
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
from stabilityclient.agent.watch.checkpoint_kinds.remote import Mark, in_store
from stabilityclient.agent.watch.checkpoint_survey import Glance, Saw, Survey
from stabilityclient.agent.watch.visibility_gaps import Gap

__all__ = ["MAX_WATCHED", "STILL_S", "CheckpointPoll", "CheckpointWatch", "Notice"]

#: Checkpoints watched at a time; the oldest is forgotten first. Two checks a second of 2,000 paths cost under 1 % of a
#: core.
MAX_WATCHED = 2000
#: Seconds without a change after which an incomplete checkpoint no longer counts as in progress: an
#: asynchronous save announces it first, and writes its shards one after another.
STILL_S = 30.0
#: Share of the time that looks at one checkpoint after another may take, without a sign that anything changed: a
#: thousand agents that do so on one file system are as one that never stops.
LOOK_SHARE = 0.001
#: Seconds between two rounds of looks at URLs that are being written, and of one of the others: a store wants money for
#: each (S3: $0.005 for 1,000 listings, so some 4 cents a day and agent).
URL_ROUND_S = 10.0
#: Mark of an announced URL with nothing there: unlike a path, a URL means the same on every node.
_NO_MARK = (0, 0)


class _Watched(msgspec.Struct):
    """A checkpoint. ``seen``: it was on disk. ``world_size``: of the job. ``told``: its last report."""

    path: str
    step: int
    seen: bool
    world_size: int | None = None
    told: str = ""


@dataclass
class _Sight:
    """Observation of this agent: time and size of the file or folder, all of the content, since when."""

    mark: Mark | None = None
    content: tuple[Any, ...] = ()
    since: float = 0.0
    whole: bool = False
    writing: bool = False
    again: bool = True


@dataclass
class _Turns:
    """Whose turn it was, and when the next one is, of paths or of URLs."""

    at: int = 0
    next_at: float = 0.0


class Notice(NamedTuple):
    """An event to send."""

    type: str
    step: int
    data: dict[str, Any]


class CheckpointWatch:
    """The checkpoints of this node's ranks. ``due``, ``Survey.of`` and ``settle`` in turn.

    Args:
        known: result of ``state()`` in an earlier life.
        now: seconds of a clock that never steps.
    """

    def __init__(self, known: object, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._watched = {each.path: each for each in read_as(known, list[_Watched])[-MAX_WATCHED:]}
        self._sights: dict[str, _Sight] = {}
        self._turns = {False: _Turns(), True: _Turns()}

    def take(self, event: SpooledEvent, world_size: int | None = None) -> bool:
        """Watch the path of a ``checkpoint`` event of a job of so many ranks; True when that is news.

        It never touches the disk: this is called where nothing may wait.
        """
        path = event.data.get("path")
        if event.type != "checkpoint" or not isinstance(path, str) or event.step is None:
            return False
        known = self._watched.get(path)
        if known is not None and known.step == event.step:
            return False  # another rank reported it before
        self._forget(path)
        self._watched[path] = _Watched(path, event.step, False, world_size)
        while len(self._watched) > MAX_WATCHED:
            self._forget(next(iter(self._watched)))
        return True

    def _forget(self, path: str) -> None:
        self._watched.pop(path, None)
        self._sights.pop(path, None)

    @property
    def waits(self) -> bool:
        """Whether one is there that was not looked at yet, or is still being written."""
        sights = ((each, self._sights.get(each.path)) for each in self._watched.values())
        return any(not each.told if sight is None else sight.writing for each, sight in sights)

    def due(self, *, urls: bool = False) -> list[Glance]:
        """Return the glances due now, and which look inside: all paths, or the new URLs and those whose turn it is."""
        glances: list[Glance] = []
        new: set[int] = set()
        for each in self._watched.values():
            if in_store(each.path) is not urls:
                continue
            sight = self._sights.get(each.path)
            mark, look = (None, True) if sight is None else (sight.mark, sight.again)
            new |= set() if sight is not None else {len(glances)}
            glances.append(Glance(each.path, each.step, each.world_size, mark, look))
        turns = self._turns[urls]
        their_turn = bool(glances) and self._now() >= turns.next_at
        if their_turn:
            turns.at = (turns.at + 1) % len(glances)
        if urls:
            if their_turn:
                turns.next_at = self._now() + URL_ROUND_S
            # An object is another one when anything in it is: whose mark is as it was is not read again.
            return [
                each for at, each in enumerate(glances) if at in new or (their_turn and (each.look or at == turns.at))
            ]
        if their_turn:
            turn = glances[turns.at]
            glances[turns.at] = turn._replace(look=True, routine=not turn.look)
        return glances

    def settle(self, saw: Iterable[Saw], *, over: bool = False) -> list[Notice]:
        """Take in the results of ``survey``; return the news as events. ``over``: all writers have ended."""
        told = []
        for one in saw:
            each = self._watched.get(one.glance.path)
            if each is None or each.step != one.glance.step:
                continue  # replaced meanwhile
            if one.trouble:
                told += self._unchecked(each, one.trouble)
                continue
            if one.mark is None:
                if each.seen:
                    # One that was never seen is not gone: it may still be written, or lie on another node's disk.
                    self._forget(each.path)
                    told.append(Notice("checkpoint_gone", each.step, {"path": each.path}))
                elif in_store(each.path):
                    told += self._inspected(each, _NO_MARK, _nothing_at(each.path), over)
                else:
                    self._sights[each.path] = _Sight()
                continue
            each.seen = True
            if one.glance.routine:
                self._turns[False].next_at = self._now() + one.took_s / LOOK_SHARE
            if one.look is not None:
                told += self._inspected(each, one.mark, one.look, over)
            elif one.glance.look or one.mark != one.glance.mark:  # it is not for us to read
                self._sights[each.path] = _Sight(one.mark, again=False)
        return told

    def _unchecked(self, each: _Watched, trouble: str) -> list[Notice]:
        """Report once why a checkpoint can't be inspected; earlier findings about it stay."""
        sight = self._sights.setdefault(each.path, _Sight())
        sight.writing = False
        if sight.content or each.told == trouble:
            return []
        each.told = trouble
        data = {"path": each.path, "kind": "unknown", "complete": None, "problem": f"not checked: {trouble}"}
        return [Notice("checkpoint_seen", each.step, data)]

    def _inspected(self, each: _Watched, mark: Mark, look: Inspection, over: bool) -> list[Notice]:
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
        """Return the state for a later agent, as builtins."""
        return msgspec.to_builtins(list(self._watched.values()))


def _nothing_at(url: str) -> Inspection:
    name = url.rstrip("/").rpartition("/")[2]
    return Inspection("unknown", False, f"{name} is missing", (name,))


#: Seconds between two checks of the checkpoints on disk.
POLL_S = 2.0


class CheckpointPoll:
    """Joins a watch and its survey.

    Args:
        watch: of the checkpoints. report: takes the news. over: returns whether all writers have ended.
    """

    def __init__(self, watch: CheckpointWatch, report: Callable[[Notice], None], over: Callable[[], bool]) -> None:
        self._watch = watch
        self._report = report
        self._over = over
        #: Of paths, of URLs.
        self._surveys = (Survey(), Survey())
        self._announced = (asyncio.Event(), asyncio.Event())

    def announce(self) -> None:
        """Let all that is new be looked at immediately."""
        for announced in self._announced:
            announced.set()

    def gaps(self) -> list[Gap]:
        """Return the paths hidden by a disk or store that hangs."""
        return [gap for each in self._surveys for gap in each.gaps()]

    async def run(self) -> None:
        """Look, and report, until it is cancelled."""
        await asyncio.gather(self._poll(urls=False), self._poll(urls=True))

    async def _poll(self, *, urls: bool) -> None:
        survey, announced = self._surveys[urls], self._announced[urls]
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(announced.wait(), POLL_S)
            announced.clear()
            saw = await survey.of(self._watch.due(urls=urls))
            for notice in self._watch.settle(saw, over=self._over()):
                self._report(notice)
