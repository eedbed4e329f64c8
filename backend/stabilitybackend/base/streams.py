"""Redis streams: their ids as something that sorts, and a range of entries read a batch at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from redis.asyncio import Redis

from stabilityclient.wire import Frame, NodeFrame

__all__ = ["StoredEntry", "entries_between", "next_id", "stream_order"]

#: Stored entry: stream id, message, and its decoded content where there is one.
StoredEntry = tuple[str, bytes, Frame | NodeFrame | None]
#: Entries read in one round trip.
READ_COUNT = 64


def stream_order(cursor: str) -> tuple[int, int]:
    """Return a stream id ``ms-n`` as something that sorts; anything else sorts first."""
    left, _, right = cursor.partition("-")
    try:
        return int(left), int(right or 0)
    except ValueError:
        return -1, 0


def next_id(stream_id: str) -> str:
    """Return the smallest stream id after ``stream_id``."""
    ms, n = stream_order(stream_id)
    return f"{ms}-{n + 1}"


async def entries_between(redis: Redis, key: str, after: str, upto: str) -> AsyncIterator[tuple[str, bytes]]:
    """Yield the entries of a run's stream after one id and up to another, as (stream id, message)."""
    while True:
        found: Any = await redis.xrange(key, min=f"({after}", max=upto, count=READ_COUNT)
        for entry_id, fields in found:
            after = entry_id.decode()
            yield after, fields[b"b"]
        if len(found) < READ_COUNT:
            return
