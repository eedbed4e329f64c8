"""Reads the streams of several runs in one call, where their workers want to read in the same moment.

A call to Redis costs a process some 0.2 ms of CPU, whatever it brings. Doors name the runs in which something is new in
crowds, so a worker's process with many small runs reads them together. On a cluster it is a call for each node.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from stabilitybackend.base.tasks import end
from stabilitybackend.storage.redis_link import ClusterClient, as_unavailable

__all__ = ["MAX_MEAN_BYTES", "SHARED_COUNT", "SharedReads"]

#: Entries of one run in a call that is shared; a run that has as many reads on alone.
SHARED_COUNT = 8
#: Runs in one call.
MAX_RUNS = 64
#: Runs whose messages are larger on average read alone: a shared answer is to stay within 2 MiB, about.
MAX_MEAN_BYTES = 4 * 1024

#: Stream entries as Redis gives them.
_Entries = list[Any]


@dataclass(slots=True)
class _Want:
    key: str
    cursor: str
    found: asyncio.Future[_Entries]


class SharedReads:
    """The reads of one process; ``redis`` is that of its workers."""

    def __init__(self, redis: Redis | ClusterClient) -> None:
        self._redis = redis
        self._wants: list[_Want] = []
        self._reading = set[asyncio.Task[None]]()
        #: Calls so far, and reads in them.
        self.calls = self.reads = 0

    async def read(self, key: str, cursor: str) -> _Entries:
        """Return at most SHARED_COUNT entries of a stream after ``cursor``.

        Raises:
            RedisError: Redis is away, or this stream can't be read.
        """
        loop = asyncio.get_running_loop()
        want = _Want(key, cursor, loop.create_future())
        self._wants.append(want)
        if len(self._wants) == 1:
            loop.call_soon(self._begin)  # callers woken in the same moment are included
        return await want.found

    async def stop(self) -> None:
        """Give up the read under way."""
        await end(*self._reading)

    def _begin(self) -> None:
        wants, self._wants = self._wants, []
        while wants:
            some: dict[str, _Want] = {}  # one stream can't be in a call twice
            later = []
            for want in wants:
                if len(some) < MAX_RUNS and want.key not in some:
                    some[want.key] = want
                else:
                    later.append(want)
            wants = later
            task = asyncio.create_task(self._read_all([*some.values()]), name="shared-read")
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)

    async def _read_all(self, wants: list[_Want]) -> None:
        wants = [want for want in wants if not want.found.done()]
        try:
            found = await self._ask(wants)
        except asyncio.CancelledError:
            for want in wants:
                want.found.cancel()
            raise
        except Exception as error:
            if len(wants) > 1 and isinstance(error, RedisError) and as_unavailable(error) is None:
                for want in wants:  # one of them can't be read: the others must not be the worse for it
                    await self._read_all([want])
                return
            for want in wants:
                if not want.found.done():
                    want.found.set_exception(error)
            return
        for want, entries in zip(wants, found, strict=True):
            if want.found.done():
                continue
            if isinstance(entries, Exception):
                want.found.set_exception(entries)
            else:
                want.found.set_result(entries)

    async def _ask(self, wants: list[_Want]) -> list[Any]:
        self.calls, self.reads = self.calls + bool(wants), self.reads + len(wants)
        if not wants:
            return []
        if isinstance(self._redis, ClusterClient):
            pipe = self._redis.pipeline(transaction=False)
            for want in wants:
                pipe.xread({want.key: want.cursor}, count=SHARED_COUNT)
            answers = await pipe.execute(raise_on_error=False)
            return [one if isinstance(one, Exception) else (one[0][1] if one else []) for one in answers]
        streams: Any = {want.key: want.cursor for want in wants}
        grown: Any = dict(await self._redis.xread(streams, count=SHARED_COUNT))
        return [grown.get(want.key.encode(), []) for want in wants]
