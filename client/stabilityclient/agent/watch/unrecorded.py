"""Tells the server what the ranks of this node gave and nobody stored: the run keeps the counts for ever.

The counts are read in the slots, which hold them also where the disk is full; the agent's own events wait for room.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from stabilityclient.agent.sources import Source

__all__ = ["UnrecordedReporter"]

#: Seconds between two reports of one rank while its counts grow.
REPORT_S = 10.0

_WHY = {
    errno.ENOSPC: "the disk of the spool was full",
    errno.EDQUOT: "the spool had no room: its quota, STABILITY_SPOOL_MIB or that of the disk, was used up",
    errno.EROFS: "the disk of the spool was read-only",
}


class UnrecordedReporter:
    """Follows the counts of all ranks.

    Args:
        event: appends an event of the agent.
    """

    def __init__(self, event: Callable[[str, int | None, dict[str, Any]], None]) -> None:
        self._event = event
        self._told: dict[str, tuple[tuple[int, int, bool], float]] = {}
        self._dropped = 0

    def poll(self, ranks: Iterable[Source]) -> bool:
        """Report what is new: at once where nothing was reported before and at the end of a rank, else now and then.

        Returns:
            Whether records were dropped since the last call: there is no room.
        """
        found = list(ranks)
        dropped = sum(source.slot.dropped for source in found if source.slot is not None)
        short = bool(dropped > self._dropped)
        self._dropped = dropped
        for source in found:
            slot = source.slot
            if slot is None or not (slot.dropped or slot.refused or slot.forked):
                continue
            counts = (slot.dropped, slot.refused, slot.forked)
            before, when = self._told.get(source.info.source, ((0, 0, False), float("-inf")))
            now = time.monotonic()
            if counts == before or not (source.final or now - when >= REPORT_S):
                continue
            self._told[source.info.source] = counts, now
            data = {
                "source": source.info.source,
                "rank": source.info.rank,
                "dropped": slot.dropped,
                "refused": slot.refused,
                "stored": slot.last_seq,
                "forked": slot.forked,
                "why": _WHY.get(slot.no_room) or (os.strerror(slot.no_room) if slot.no_room else ""),
            }
            self._event("unrecorded", slot.step, data)
        return short
