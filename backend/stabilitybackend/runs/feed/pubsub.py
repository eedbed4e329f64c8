"""Fans the events of a run out to browsers: encoded once, the same bytes to all, slow ones have to fetch again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import orjson

from stabilitybackend.base.streams import stream_order

__all__ = ["Channel", "Subscriber"]

#: Messages a browser may lag behind before it has to fetch again; at 20 a second about 25 s.
MAX_QUEUED = 512
#: Messages kept for browsers that reconnect.
MAX_RECENT = 1_024
#: Bytes kept for browsers that reconnect.
MAX_RECENT_BYTES = 8 * 1024 * 1024


class Subscriber:
    """One browser's bounded queue of encoded messages."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(MAX_QUEUED)
        #: Times the queue overflowed; each time the browser gets one ``reset``.
        self.resets = 0

    def put(self, message: bytes) -> None:
        """Queue a message; when the browser is too slow, drop the waiting ones and make it fetch again."""
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            self.resets += 1
            while not self._queue.empty():
                self._queue.get_nowait()
            self._queue.put_nowait(orjson.dumps({"type": "reset", "reason": "this browser was too slow; fetch again"}))

    async def get(self) -> bytes:
        """Return the next message, waiting for it."""
        return await self._queue.get()


class _Kept:
    """A message for browsers that come back: encoded when the first one asks for it."""

    __slots__ = ("_message", "cursor", "size")

    def __init__(self, cursor: str, message: bytes | Callable[[], dict[str, Any]], size: int) -> None:
        self.cursor, self._message, self.size = cursor, message, size

    def encoded(self) -> bytes:
        if not isinstance(self._message, bytes):
            self._message = _encoded(self._message())
        return self._message


class Channel:
    """The subscribers of one run (or of the list of runs), and the recent messages."""

    def __init__(self) -> None:
        self._subscribers: set[Subscriber] = set()
        self._recent: deque[_Kept] = deque()
        self._recent_bytes = 0
        self._dropped_any = False
        #: Stream id from which on nothing is missing; None: unknown.
        self._whole_from: str | None = None
        #: Number of subscriptions so far.
        self.joined = 0

    def __len__(self) -> int:
        return len(self._subscribers)

    def publish(self, message: dict[str, Any], cursor: str = "") -> None:
        """Send ``message`` to every subscriber; with a cursor it can be caught up with later."""
        if cursor or self._subscribers:
            self.pass_on(_encoded(message), cursor)

    def begin(self, cursor: str) -> None:
        """Note that the next messages follow the stream id ``cursor``, and forget the earlier ones."""
        self._recent.clear()
        self._recent_bytes, self._dropped_any, self._whole_from = 0, False, cursor

    def pass_on(self, data: bytes, cursor: str = "") -> None:
        """Send an encoded message, as ``publish``."""
        if cursor:
            self._keep(_Kept(cursor, data, len(data)))
        for subscriber in self._subscribers:
            subscriber.put(data)

    def publish_later(self, make: Callable[[], dict[str, Any]], cursor: str, size: int) -> None:
        """Do the same with the message that ``make`` returns, which is not made without a subscriber.

        Args:
            make: gives the same at any time. size: bytes that it keeps in memory until then, about.
        """
        kept = _Kept(cursor, make, size)
        self._keep(kept)
        for subscriber in self._subscribers:
            subscriber.put(kept.encoded())

    def _keep(self, message: _Kept) -> None:
        self._recent.append(message)
        self._recent_bytes += message.size
        while len(self._recent) > MAX_RECENT or self._recent_bytes > MAX_RECENT_BYTES:
            self._recent_bytes -= self._recent.popleft().size
            self._dropped_any = True

    def join(self, subscriber: Subscriber) -> None:
        """Send the next messages to ``subscriber``."""
        self._subscribers.add(subscriber)
        self.joined += 1

    def leave(self, subscriber: Subscriber) -> None:
        """Send it no more."""
        self._subscribers.discard(subscriber)

    def since(self, cursor: str, newest: str) -> list[bytes] | None:
        """Return the messages after ``cursor`` (a stream id), None when they are no longer all here.

        Args:
            newest: stream id up to which the run is read; a later cursor is of a stream that was emptied since.
        """
        after = stream_order(cursor)
        if not (0, 0) <= after <= stream_order(newest):
            return None
        if self._whole_from is not None and after < stream_order(self._whole_from):
            return None
        if not self._recent and self._whole_from is None:
            return None
        if self._dropped_any and stream_order(self._recent[0].cursor) > after:
            return None
        return [message.encoded() for message in self._recent if stream_order(message.cursor) > after]


def _encoded(message: dict[str, Any]) -> bytes:
    return orjson.dumps(message, msgspec.to_builtins)
