"""One answer for equal requests: thirty-two tabs with one chart cost as much as one tab."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

__all__ = ["MAX_BYTES", "Read", "SharedAnswers"]

#: Of all answers that are kept, bytes: some hundred charts; the oldest ones go first.
MAX_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Read:
    """The result of a read.

    Attributes:
        content: the answer.
        whole: nothing was unreadable; another answer is not given to anybody else.
    """

    content: bytes
    whole: bool


@dataclass(slots=True)
class _Kept:
    state: weakref.ref[object]
    lineage: Hashable
    cursor: str
    made: float
    task: asyncio.Future[Read]


class SharedAnswers:
    """The answers of the last moment, of one application.

    Args:
        clock: monotonic seconds.

    Attributes:
        made: answers that were made.
        shared: answers that were given without making them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.made = self.shared = 0
        self._clock = clock
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._bytes = 0

    async def get(
        self,
        asked: Hashable,
        state: object,
        lineage: Hashable,
        cursor: str,
        max_age_s: float,
        make: Callable[[], Awaitable[Read]],
    ) -> bytes:
        """Return an answer that was made for the same question, or make it.

        A cancelled request stops no other; all get the error of a failed read, and the next request repeats it.

        Args:
            asked: the run and all that the answer depends on, but for the next three.
            state: of the run. After a restart or an undo it is another one, and nothing that was made holds any more.
            lineage: of the effective timeline; an answer from before a fork is not reused after it.
            cursor: the newest frame of the run. An answer that was made at it is given to everybody.
            max_age_s: how old one from before it may be, seconds; such an answer names its own cursor, from which
                a page follows the feed and misses nothing.
            make: called at most once for all who ask at the same time.
        """
        kept = self._kept.get(asked)
        if kept is not None and self._holds(kept, state, lineage, cursor, max_age_s):
            self._kept.move_to_end(asked)
            self.shared += 1
            return (await asyncio.shield(kept.task)).content
        self._drop(asked)
        self.made += 1
        task = asyncio.ensure_future(make())
        self._kept[asked] = _Kept(weakref.ref(state), lineage, cursor, self._clock(), task)
        task.add_done_callback(lambda done: self._finished(asked, done))
        return (await asyncio.shield(task)).content

    def _holds(self, kept: _Kept, state: object, lineage: Hashable, cursor: str, max_age_s: float) -> bool:
        same = kept.state() is state and kept.lineage == lineage
        return same and (kept.cursor == cursor or self._clock() - kept.made < max_age_s)

    def _finished(self, asked: Hashable, task: asyncio.Future[Read]) -> None:
        failed = task.cancelled() or task.exception() is not None
        kept = self._kept.get(asked)
        if kept is None or kept.task is not task:
            return
        if failed or not task.result().whole:
            del self._kept[asked]
            return
        self._bytes += len(task.result().content)
        while self._bytes > MAX_BYTES:
            self._drop(next(iter(self._kept)))

    def _drop(self, asked: Hashable) -> None:
        kept = self._kept.pop(asked, None)
        if kept is not None and kept.task.done() and not kept.task.cancelled() and kept.task.exception() is None:
            self._bytes -= len(kept.task.result().content)
