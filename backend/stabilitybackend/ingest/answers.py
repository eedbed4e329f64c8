"""The answers to an agent's frames, in the frames' order: what is stored by now is confirmed in one message."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING

from stabilitybackend.base.errors import Unavailable
from stabilitybackend.ingest.ingest import Apart, Duplicate, Gap, Outcome, StoredFrames
from stabilityclient.node_frames import apart
from stabilityclient.wire import NODE_FRAMES, Ack, Acks, Error, Frame, Message, Nack, NodeFrame, encode_message

if TYPE_CHECKING:
    from stabilitybackend.ingest.gateway import Gateway

__all__ = ["Answers"]

#: Answers that may wait for Redis or for a slow agent on one connection; then nothing more is read from it.
MAX_PENDING_ANSWERS = 16
_LOG = logging.getLogger(__name__)

#: A frame, its bytes, and what becomes of it; or a message that is an answer already.
_Due = tuple[Frame | NodeFrame, bytes, asyncio.Future[Outcome]] | Message


class Answers:
    """What one connection still has to answer.

    Args:
        protocol: the newest version that the agent takes.
    """

    def __init__(self, gateway: Gateway, run_id: str, protocol: int) -> None:
        self._gateway = gateway
        self._run_id = run_id
        self._gathers = protocol >= NODE_FRAMES
        self._due: asyncio.Queue[_Due] = asyncio.Queue(MAX_PENDING_ANSWERS)
        #: The newest number confirmed of each source since it was taken from here.
        self.stored: dict[str, int] = {}

    async def put(self, due: _Due) -> None:
        """Take the next answer, or a frame to which it will be known; wait while too many are open."""
        await self._due.put(due)

    async def ready(self) -> AsyncIterator[Message]:
        """Yield the answers, without end. To an agent of version 2 the last one of several confirmations is enough."""
        due: _Due | None
        unknown: _Due | None = None
        while True:
            due, unknown = unknown or await self._due.get(), None
            stored: dict[str, int] = {}
            while due is not None:
                for answer in await self._answers(due):
                    if isinstance(answer, Ack):
                        stored[answer.source] = max(answer.last_seq, stored.get(answer.source, 0))
                        continue
                    for confirmed in self._confirmed(stored):
                        yield confirmed
                    stored = {}
                    yield answer
                due = self._due.get_nowait() if self._gathers and not self._due.empty() else None
                if isinstance(due, tuple) and not due[2].done():  # it must not hold up what is confirmed
                    due, unknown = None, due
            for confirmed in self._confirmed(stored):
                yield confirmed

    def settled(self, last_seq: Mapping[str, int]) -> None:
        """Take from ``stored`` what is durable, unless more has been stored since."""
        for source, last in last_seq.items():
            if self.stored.get(source) == last:
                del self.stored[source]

    def lost(self, sources: Iterable[str]) -> None:
        """Take from ``stored`` what is not there any more: it is confirmed anew when it has come again."""
        for source in sources:
            self.stored.pop(source, None)

    def _confirmed(self, stored: dict[str, int]) -> list[Message]:
        self.stored |= stored
        if self._gathers and len(stored) > 1:
            return [Acks(stored)]
        return [Ack(source, last_seq) for source, last_seq in stored.items()]

    async def _answers(self, due: _Due) -> list[Message]:
        if not isinstance(due, tuple):
            return [due]
        frame, data, storing = due
        outcome = await self._outcome(storing, frame)
        if isinstance(outcome, Error):
            return [outcome]
        if isinstance(outcome, StoredFrames):
            with contextlib.suppress(Unavailable):  # only a hint: the frame is stored, whatever becomes of it
                await self._gateway.services.frame_stored(self._run_id, outcome.stream_id, len(data))
        if isinstance(outcome, Apart):
            assert isinstance(frame, NodeFrame)
            return [answer for one in apart(frame) for answer in await self._alone(one)]
        if isinstance(frame, NodeFrame):  # stored, now or before
            return [Ack(part.source.source, part.last_seq) for part in frame.parts]
        source = frame.source.source
        if isinstance(outcome, Gap):
            text = f"frame {frame.first_seq}..{frame.last_seq} of {source} came, expected {outcome.expected_seq} next"
            return [Nack(source, outcome.expected_seq, text)]
        return [Ack(source, outcome.last_seq if isinstance(outcome, Duplicate) else frame.last_seq)]

    async def _alone(self, frame: Frame) -> list[Message]:
        """Store a frame that came with those of other sources, which could not be stored together."""
        data = encode_message(frame)
        return await self._answers((frame, data, await self._gateway.ingest.enqueue(self._run_id, [frame], data)))

    async def _outcome(self, storing: asyncio.Future[Outcome], frame: Frame | NodeFrame) -> Outcome | Error:
        try:
            return await storing
        except Unavailable as error:
            self._gateway.counts.busy += 1
            return Error("busy", error.message)
        except Exception:
            self._gateway.counts.busy += 1
            source = (frame if isinstance(frame, Frame) else frame.parts[0]).source.source
            _LOG.exception("run %s: a frame of %s could not be stored", self._run_id, source)
            return Error("busy", "the server failed to store the frame; see its log")
