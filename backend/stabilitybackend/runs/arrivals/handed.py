"""Frames that this process stored itself, for the worker of their run: without reading them from the stream again.

A worker must fold exactly the entries of the stream. So Redis reports, in the step that appends, whether
the frames follow the entry that the worker has directly (``ingest.lua``). Where they do not, because another process
wrote in between, or the stream lost its newest entries, and where memory is short, the worker reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stabilitybackend.base.streams import StoredEntry, stream_order
from stabilityclient.wire import Frame, NodeFrame

if TYPE_CHECKING:
    from stabilitybackend.runs.worker import RunWorker

__all__ = ["MAX_BYTES", "MAX_MESSAGE_BYTES", "Handed", "HandedBytes", "HandedFrames"]

#: Bytes that wait to be folded, all runs of the process together; the rest is read from the streams.
MAX_BYTES = 8 * 1024 * 1024
#: Larger messages are read: for them a read costs little compared with folding, and Redis copies the message
#: before a frame when it looks whether that follows.
MAX_MESSAGE_BYTES = 64 * 1024
#: Memory of a message read, in bytes of the message: 3.5 of one with a row of each of eight ranks.
READ_BYTES = 4


@dataclass
class HandedBytes:
    """Bytes that wait in this process."""

    waiting: int = 0


class Handed:
    """The frames of one run that wait for its worker.

    Args:
        share: of the process.
        notify: called when something was handed over.
        read: called when the stream has to be read instead.
    """

    def __init__(self, share: HandedBytes, notify: Callable[[], None], read: Callable[[], None]) -> None:
        self.share = share
        self._notify, self._read = notify, read
        self._entries: deque[StoredEntry] = deque()
        #: By stream id, contents of the newest entries taken, where available.
        self._said: dict[str, Frame | NodeFrame] = {}
        #: Entry before the first of them.
        self._after = ""
        #: The newest entry that the worker has or that waits here, and the size of its message; "": unknown.
        self._newest, self._newest_bytes = "", 0

    @property
    def newest(self) -> str:
        """The stream id that frames have to follow to be handed over, "" where they are to be read."""
        return self._newest if self._newest_bytes <= MAX_MESSAGE_BYTES else ""

    def covers(self, stream_id: str) -> bool:
        """Return whether an entry is here or was folded: no read is needed."""
        return stream_order(stream_id) <= stream_order(self._newest)

    def put(self, after: str, entries: Sequence[StoredEntry]) -> None:
        """Take entries that follow ``after`` in the stream with nothing between."""
        size = sum(map(_bytes_of, entries))
        largest = max(len(message) for _, message, _ in entries)
        if after != self.newest or largest > MAX_MESSAGE_BYTES or self.share.waiting + size > MAX_BYTES:
            return  # the process that stored them lets the worker read
        if not self._entries:
            self._after = after
        self._entries.extend(entries)
        self.share.waiting += size
        self._newest, self._newest_bytes = entries[-1][0], len(entries[-1][1])
        self._notify()

    def take(self, cursor: str) -> list[tuple[str, bytes]]:
        """Return the entries after ``cursor``, up to the worker's place; nothing where they are not here."""
        at = stream_order(cursor)
        while self._entries and stream_order(self._entries[0][0]) <= at:  # it was read meanwhile
            self.share.waiting -= _bytes_of(self._entries[0])
            self._after, *_ = self._entries.popleft()
        if not self._entries:
            return []
        if self._after != cursor:
            self.clear()
            self._read()
            return []
        entries = [(stream_id, message) for stream_id, message, _ in self._entries]
        self._said = {stream_id: read for stream_id, _, read in self._entries if read is not None}
        self._let_go()
        return entries

    def read(self, stream_id: str, message: bytes) -> bytes | Frame | NodeFrame:
        """Return the contents of an entry that ``take`` has just returned, once; where unknown, its message."""
        return self._said.pop(stream_id, message)

    def folded(self, cursor: str, message: bytes) -> None:
        """Note the entry that the worker took last, from any source."""
        if not self.covers(cursor):
            self._newest, self._newest_bytes = cursor, len(message)

    def clear(self) -> None:
        """Forget everything: the worker begins again, or ends."""
        self._let_go()
        self._newest, self._newest_bytes = "", 0

    def _let_go(self) -> None:
        self.share.waiting -= sum(map(_bytes_of, self._entries))
        self._entries.clear()


def _bytes_of(entry: StoredEntry) -> int:
    _, message, read = entry
    return len(message) if read is None else (1 + READ_BYTES) * len(message)


class HandedFrames:
    """Takes the frames that this process stores for its workers; parameter ``beside`` of ``Ingest``.

    Args:
        workers: those that follow a run now, by run.
    """

    def __init__(self, workers: Mapping[str, RunWorker]) -> None:
        self.share = HandedBytes()
        self._workers = workers

    def followed_to(self, run_id: str) -> str:
        """Return the stream id that frames have to follow to be handed over, "" where they are to be read."""
        worker = self._workers.get(run_id)
        return "" if worker is None else worker.followed_to

    def hand_over(self, run_id: str, after: str, entries: Sequence[StoredEntry]) -> None:
        """Take frames that were stored directly behind ``after``."""
        if (worker := self._workers.get(run_id)) is not None and worker.followed_to == after:
            worker.handed.put(after, entries)
