"""Messages of a run's stream that wait to be folded: as many at once as one batch of rows may have."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable

from stabilitybackend.base.streams import stream_order
from stabilitybackend.lineage.consumer import Effects
from stabilitybackend.lineage.joining import MAX_ROWS
from stabilitybackend.runs.archiving.window import FRAME_OVERHEAD_BYTES
from stabilitybackend.runs.detector_settings import DetectorSettings
from stabilitybackend.runs.state import RunState
from stabilitybackend.storage.points.metric_names import MetricNames
from stabilityclient.node_frames import in_stream
from stabilityclient.wire import Frame, NodeFrame, PointsBlock

__all__ = ["PendingFrames"]


class PendingFrames:
    """Messages that wait.

    The gateway checks what it stores, so that a message that can't be read comes from a foreign client, a flipped bit
    or a mistake of this program. It stays stored, and ``RunState.unreadable`` names it. Folded again it gives the same.

    Args:
        entries: as (stream id, message), oldest first.
        read: returns the content of one of them, where it was decoded before, else its message; asked once for each.
    """

    def __init__(
        self,
        entries: Iterable[tuple[str, bytes]],
        read: Callable[[str, bytes], bytes | Frame | NodeFrame] = lambda stream_id, message: message,
    ) -> None:
        self._entries = deque(entries)
        self._known = read
        #: The first ones of them, decoded; an error where that failed.
        self._read: deque[Frame | NodeFrame | Exception] = deque()
        #: The newest one that was folded.
        self.newest: tuple[str, bytes] = "", b""

    def __len__(self) -> int:
        return len(self._entries)

    def first_met(self, names: MetricNames) -> list[str]:
        """Return the names that the first one brings, where they are many; ``names``: those of the run."""
        first = self._decoded(0)
        return [] if isinstance(first, Exception) else names.first_met(first)

    def is_replayed(self, applied: str) -> bool:
        """Return whether what follows from the first one is stored: it is up to the stream id ``applied``."""
        return stream_order(self._entries[0][0]) <= stream_order(applied)

    def fold(
        self,
        state: RunState,
        settings: DetectorSettings,
        begin: Callable[[str, int, int], None],
        applied: str,
        room: float = math.inf,
    ) -> Effects:
        """Fold the first ones; return their effects.

        Args:
            settings: of the run's detectors, which get those that held when a message came.
            begin: called with id and size of each message, and how many rows of its batch come before its own.
            applied: as for ``is_replayed``; all that are folded at once are, or none is.
            room: bytes of the stream after which the open generation is sealed, between two messages.
        """
        replayed = self.is_replayed(applied)
        settings.apply(state.judge, self._entries[0][0])
        count = self._count(settings.settled(state.judge), applied if replayed else "", room)
        some = [self._entries.popleft() for _ in range(count)]
        self.newest = some[-1]
        messages, ids = [], []
        for entry in some:
            read = self._read.popleft()
            if isinstance(read, Exception):
                ours = None if type(read).__name__ == "BadMessage" else read
                why = str(read) if ours is None else f"{type(read).__name__}: {read}"
                state.unreadable.whole("message", why, entry[0], ours)
            else:
                messages.append(read)
            ids.append((entry, isinstance(read, Exception)))
        begun = iter(ids)

        def start(number: int, ahead: int) -> None:
            for (frame_id, raw), unreadable in begun:
                begin(frame_id, len(raw), ahead)
                if not unreadable:
                    return

        effects = state.apply(*messages, replayed=replayed, begin=start)
        for (frame_id, raw), _ in begun:
            begin(frame_id, len(raw), 0)
        return effects

    def _count(self, settled: bool, upto: str, room: float) -> int:
        """Return how many are folded at once: all of them replayed up to ``upto``, where given, and of so much room."""
        rows, count = 0, 0
        for at, (frame_id, raw) in enumerate(self._entries):
            if at and (not settled or room <= 0 or (upto and stream_order(frame_id) > stream_order(upto))):
                break
            read = self._decoded(at)
            rows += 0 if isinstance(read, Exception) else _rows_of(read)
            if at and rows > MAX_ROWS:
                break
            count, room = at + 1, room - len(raw) - FRAME_OVERHEAD_BYTES
        return count

    def _decoded(self, at: int) -> Frame | NodeFrame | Exception:
        while len(self._read) <= at:
            known = self._known(*self._entries[len(self._read)])
            try:
                self._read.append(in_stream(known) if isinstance(known, bytes) else known)
            except Exception as error:
                self._read.append(error)
        return self._read[at]


def _rows_of(message: Frame | NodeFrame) -> int:
    blocks = message.tables if isinstance(message, NodeFrame) else message.blocks
    return sum(len(block.steps) // 8 for block in blocks if isinstance(block, PointsBlock))
