"""Frames on their way to the gateway: those of several ranks that are not full leave as one message."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from stabilityclient.agent.sources import Source, Sources
from stabilityclient.node_frames import together
from stabilityclient.wire import FRAME_TARGET_BYTES, MAX_PARTS, Frame, encode_message

__all__ = ["Outbox"]


class Outbox:
    """What one agent has sent and what it gathers.

    Attributes:
        gathers: the server takes frames of several sources in one message.
        sent: messages with frames since the start.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._send: Callable[[bytes], Awaitable[None]] | None = None
        self._gathered: list[tuple[Frame, bytes]] = []
        self.gathers = False
        self.sent = 0

    def begin(self, send: Callable[[bytes], Awaitable[None]], *, gathers: bool) -> None:
        """Use a new connection. What was gathered for the one before is read from the spools again."""
        self._send, self.gathers, self._gathered = send, gathers, []

    @property
    def in_flight(self) -> int:
        """How many messages have frames without an answer."""
        return len({number for source in self._sources for _, _, _, number in source.in_flight})

    async def put(self, source: Source, frame: Frame, data: bytes, *, full: bool) -> None:
        """Send a frame at once where it is full or has to leave alone, else with those of the other sources.

        Args:
            data: the bytes of ``frame``.
        """
        if full or not self.gathers:
            self._note(source, frame)
            await self._out(data)
            return
        size = sum(len(one) for _, one in self._gathered) + len(data)
        # A source that had waited for the connection has more by now: a message has one part of each.
        again = any(one.source == frame.source for one, _ in self._gathered)
        if self._gathered and (again or size > FRAME_TARGET_BYTES or len(self._gathered) == MAX_PARTS):
            await self.flush()
        self._note(source, frame, with_others=bool(self._gathered))
        self._gathered.append((frame, data))

    async def flush(self) -> None:
        """Send what was gathered."""
        gathered, self._gathered = self._gathered, []
        if gathered:
            alone = len(gathered) == 1
            await self._out(gathered[0][1] if alone else encode_message(together([frame for frame, _ in gathered])))

    async def _out(self, data: bytes) -> None:
        assert self._send is not None, "begin comes first"
        await self._send(data)

    def _note(self, source: Source, frame: Frame, *, with_others: bool = False) -> None:
        self.sent += not with_others
        source.in_flight.append((frame.first_seq, frame.last_seq, time.monotonic(), self.sent))
