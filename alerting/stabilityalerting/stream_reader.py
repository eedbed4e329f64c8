"""The reader of many streams for one receiver: every event until it is acknowledged, over crashes and lost answers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import RedisError, ResponseError

#: One name for every holder of the lease, under which the next one finds the pending events of the last.
CONSUMER = "alerting"
#: Longest wait for events in one read, milliseconds; also the delay of the stream of a new run.
BLOCK_MS = 250
#: Events of each stream in one read.
READ_COUNT = 64
#: On a cluster no read can wait on streams of several slots: they are polled, for this share of the time at most.
POLL_SHARE = 0.1
#: Streams in one read.
STREAMS_PER_READ = 512
#: Delivered events without acknowledgement are read again so often, seconds: a lost answer of Redis takes its events
#: with it.
PENDING_EVERY_S = 15.0
#: At the first start older events are skipped, seconds by Redis' clock, which numbers them.
LOOKBACK_S = 600.0

__all__ = ["BLOCK_MS", "StreamReader"]


class StreamReader:
    """Reads one consumer group on many streams: pending events first, then new ones.

    On one server one read waits on all of them. On a cluster each is read by itself, those of a node in one round trip.
    """

    def __init__(self, redis: Redis, group: str) -> None:
        self._redis = redis
        self._group = group
        self._recovered_at = time.monotonic()
        self._grouped: set[str] = set()
        self._recovered: set[str] = set()
        #: Reads so far: each begins with another chunk, so that a busy stream does not hold up the others.
        self._reads = 0

    def forget(self) -> None:
        """Read the pending events again before new ones."""
        self._recovered.clear()
        self._grouped.clear()

    async def read(self, streams: list[str]) -> list[tuple[str, bytes, dict[bytes, bytes] | None]]:
        """Return the next events, oldest first in each stream; waits a second at most for new ones."""
        for stream in streams:
            if stream not in self._grouped:
                await self._make_group(stream)
        if time.monotonic() - self._recovered_at >= PENDING_EVERY_S:
            self._recovered_at = time.monotonic()
            self._recovered.clear()
        ready = [stream for stream in streams if stream in self._grouped]
        for chunk in _chunks([stream for stream in ready if stream not in self._recovered]):
            entries = await self._read(dict.fromkeys(chunk, "0"), None)
            if entries:
                return entries
            self._recovered.update(chunk)
        chunks = _chunks(ready)
        self._reads += 1
        first = self._reads % max(1, len(chunks))
        chunks = chunks[first:] + chunks[:first]
        for chunk in chunks[:-1]:
            entries = await self._read(dict.fromkeys(chunk, ">"), None)
            if entries:
                return entries
        if not chunks:
            await asyncio.sleep(BLOCK_MS / 1000)
            return []
        return await self._read(dict.fromkeys(chunks[-1], ">"), BLOCK_MS)

    async def done(self, stream: str, entry_id: bytes) -> None:
        """Acknowledge one event."""
        await self._redis.xack(stream, self._group, entry_id)

    async def _make_group(self, stream: str) -> None:
        seconds: Any = await self._redis.time()
        start = max(0, int((seconds[0] - LOOKBACK_S) * 1000))
        try:
            await self._redis.xgroup_create(stream, self._group, id=f"{start}-0")
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                return  # no such stream yet: the run has had no incident
        self._grouped.add(stream)

    async def _read(
        self, streams: dict[str, str], block_ms: int | None
    ) -> list[tuple[str, bytes, dict[bytes, bytes] | None]]:
        try:
            if isinstance(self._redis, RedisCluster):
                return await self._poll(streams, block_ms)
            answer: Any = await self._redis.xreadgroup(
                self._group,
                CONSUMER,
                streams,  # type: ignore[arg-type]
                count=READ_COUNT,
                block=block_ms,
            )
        except ResponseError:
            self.forget()  # a stream or group is gone: created again at the next read
            raise
        return _events(answer)

    async def _poll(
        self, streams: dict[str, str], block_ms: int | None
    ) -> list[tuple[str, bytes, dict[bytes, bytes] | None]]:
        """Read each stream by itself; pause for ``block_ms`` where none has an event."""
        began = time.monotonic()
        pipe = self._redis.pipeline(transaction=False)
        for stream, after in streams.items():
            pipe.xreadgroup(self._group, CONSUMER, {stream: after}, count=READ_COUNT)
        answers = await pipe.execute(raise_on_error=False)
        found = [event for answer in answers if not isinstance(answer, Exception) for event in _events(answer)]
        if found:  # also while the streams of another node can't be read
            return found
        for answer in answers:
            if isinstance(answer, RedisError | OSError):
                raise answer
        if block_ms is not None:
            await asyncio.sleep(max(block_ms / 1000, (time.monotonic() - began) / POLL_SHARE))
        return []


def _events(answer: Any) -> list[tuple[str, bytes, dict[bytes, bytes] | None]]:
    return [(name.decode(), entry_id, fields) for name, entries in answer or [] for entry_id, fields in entries]


def _chunks(streams: list[str]) -> list[list[str]]:
    return [streams[at : at + STREAMS_PER_READ] for at in range(0, len(streams), STREAMS_PER_READ)]
