"""Messages of a run's stream that wait to be folded: taken one by one, or several at once where that is the same."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable

from stabilitybackend.base.streams import stream_order
from stabilitybackend.runs.apply_frame import apply_frame, apply_read
from stabilitybackend.runs.archiving.window import FRAME_OVERHEAD_BYTES
from stabilitybackend.runs.changes import Changes
from stabilitybackend.runs.detector_settings import DetectorSettings
from stabilitybackend.runs.rows.together import Together
from stabilitybackend.runs.state import RunState
from stabilitybackend.storage.points.metric_names import MetricNames
from stabilityclient.node_frames import in_stream
from stabilityclient.wire import Frame, NodeFrame

__all__ = ["Waiting"]

#: Fewer messages are folded one by one: to look at what they have in common costs more.
FEW = 3


class Waiting:
    """Messages that wait.

    Args:
        entries: as (stream id, message), oldest first.
        read: returns what one of them says, where that is known, else its message; asked once for each.
    """

    def __init__(
        self,
        entries: Iterable[tuple[str, bytes]],
        read: Callable[[str, bytes], bytes | Frame | NodeFrame] = lambda stream_id, message: message,
    ) -> None:
        self._entries = deque(entries)
        self._known = read
        #: The first ones of them, read.
        self._read: deque[Frame | NodeFrame] = deque()
        #: The newest one that was folded.
        self.newest: tuple[str, bytes] = "", b""

    def __len__(self) -> int:
        return len(self._entries)

    def first_met(self, names: MetricNames) -> list[str]:
        """Return the names that the first one brings, where they are many; ``names``: those of the run."""
        if not self._read:
            known = self._known(*self._entries[0])
            try:
                self._read.append(in_stream(known) if isinstance(known, bytes) else known)
            except Exception:
                return []  # whoever folds it says what is wrong
        return names.first_met(self._read[0])

    def is_replayed(self, applied: str) -> bool:
        """Return whether what follows from the first one is stored: it is up to the stream id ``applied``."""
        return stream_order(self._entries[0][0]) <= stream_order(applied)

    def fold(
        self,
        state: RunState,
        settings: DetectorSettings,
        begin: Callable[[str, int], None],
        applied: str,
        room: float = math.inf,
    ) -> Changes:
        """Fold the first one, and those after it with which that gives the same; return what they changed.

        Args:
            settings: of the run's detectors.
            begin: called with id and size of each message, before its rows come.
            applied: as for ``is_replayed``; all that are folded at once are, or none is.
            room: bytes of the stream after which the open generation is sealed, between two messages.
        """
        replayed = self.is_replayed(applied)
        together = self._together(state, applied if replayed else "", room) if settings.settled(state.judge) else None
        if together is None:
            self.newest = frame_id, raw = self._entries.popleft()
            begin(frame_id, len(raw))
            message = self._read.popleft() if self._read else self._known(frame_id, raw)
            return apply_frame(state, frame_id, message, settings, replayed=replayed)
        count, changes = len(together.messages), Changes()
        some = [self._entries.popleft() for _ in range(count)]
        read = [self._read.popleft() for _ in range(count)]
        self.newest = some[-1]
        together.fold(
            changes,
            lambda at: begin(some[at][0], len(some[at][1])),
            lambda at: apply_read(state, some[at][0], read[at], changes, replayed=replayed),
            reports=not replayed or state.reconciling,
        )
        return changes

    def _together(self, state: RunState, upto: str, room: float) -> Together | None:
        """Return the first ones, up to the stream id ``upto`` where given, as far as they are folded at once."""
        if len(self._entries) < FEW:
            return None
        found = Together(state)
        for at, (frame_id, raw) in enumerate(self._entries):
            if room <= 0 or (upto and stream_order(frame_id) > stream_order(upto)):
                break
            if at == len(self._read):
                known = self._known(frame_id, raw)
                try:
                    self._read.append(in_stream(known) if isinstance(known, bytes) else known)
                except Exception:
                    break  # whoever folds it alone says what is wrong
            if not found.take(self._read[at]):
                break
            room -= len(raw) + FRAME_OVERHEAD_BYTES
        return found if len(found.messages) >= FEW else None
