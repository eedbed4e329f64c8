"""Where one process of several writes its runs down: in Redis, so that the next owner of a run continues immediately.

``sb:{run}:snapshot`` holds the fold at one frame and the outline of the points before it that are in the stream: not
the points, which would take as much of Redis' memory again. The next owner judges on, and loads them afterwards
(points_loading.py).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from stabilitybackend.base.keys import RunKeys
from stabilitybackend.base.streams import stream_order
from stabilitybackend.base.tasks import in_thread
from stabilitybackend.runs.archiving import snapshot
from stabilitybackend.runs.archiving.restart_files import FoldHead, decoded, packed_record, records
from stabilitybackend.runs.ownership.fence import Fence, NotOwner
from stabilitybackend.storage.points.memtable import Generation
from stabilitybackend.storage.points.store import RunStore
from stabilitybackend.storage.points.unloaded import Outline, merged, outline

__all__ = ["InRedis", "TakenOver"]


class _Stored(msgspec.Struct, array_like=True):
    """``outlines``: of each generation; the archive may take over the first ones before this is read."""

    head: FoldHead
    outlines: list[Outline]
    sealed: bytes


@dataclass(frozen=True, slots=True)
class TakenOver:
    """Record of a run in Redis.

    Attributes:
        head: the frame up to which it reaches. frozen: the fold at that frame.
        outline: of the points between the archived ones and that frame.
        points: they themselves, where they have been loaded already.
    """

    head: FoldHead
    frozen: bytes
    outline: Outline
    points: Generation | None = None

    def put_into(self, store: RunStore) -> None:
        """Let a store that holds the archived points expect the rest, or have them."""
        store.expect(self.outline, self.frozen)
        if self.points is not None:
            store.load(self.points)


class InRedis:
    """The snapshot of one run in Redis.

    Args:
        cpu: CPU seconds of the calling thread.
    """

    def __init__(self, run_id: str, fence: Fence, cpu: Callable[[], float] = time.thread_time) -> None:
        self._run_id = run_id
        self._key = RunKeys(run_id).snapshot
        self._fence = fence
        self._cpu = cpu

    def reset(self) -> None:
        """Earlier records are not kept."""

    async def newest(self) -> bytes | None:
        """Return the fold that was written down last, frozen; None where none is. Raises SnapshotError."""
        stored = await self._stored()
        return None if stored is None else await in_thread(lambda: snapshot.opened(stored.sealed))

    async def _stored(self) -> _Stored | None:
        data: Any = await self._fence.redis.get(self._key)
        return None if data is None else decoded(next(records(data, self._key))[0], _Stored)

    async def find(self, after: str) -> TakenOver | None:
        """Return the record beyond the stream id ``after``. Raises SnapshotError."""
        stored = await self._stored()
        if stored is None:
            return None
        left = [one for one in stored.outlines if stream_order(one.end) > stream_order(after)]
        if not left or left[0].begin != after:
            return None  # the newest part has a snapshot that is as new
        frozen = await in_thread(lambda: snapshot.opened(stored.sealed))
        return TakenOver(stored.head, frozen, merged(left))

    async def go_on(self, store: RunStore, found: TakenOver) -> None:
        """Nothing is to be prepared: each write is a whole one."""

    async def forget(self) -> None:
        """Remove it, where the run is owned."""
        with contextlib.suppress(NotOwner):
            await self._fence.write(("DEL", self._key))

    def copied(
        self, store: RunStore, last: Generation, head: FoldHead, frozen: bytes
    ) -> Callable[[], Awaitable[float]]:
        """Return the writer of the outline up to the generation ``last``, and the fold there; it returns CPU seconds.

        It raises NotOwner, or RedisError and OSError where Redis is away.
        """
        known = [outline(one) for one in store.generations[: store.generations.index(last) + 1]]

        def sealed() -> tuple[bytes, float]:
            begin = self._cpu()
            return packed_record(_Stored(head, known, snapshot.seal(frozen))), self._cpu() - begin

        async def written() -> float:
            data, spent_s = await in_thread(sealed)
            await self._fence.write(("SET", self._key, data))
            return spent_s

        return written
