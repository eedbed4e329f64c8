"""Removes chunks that the server can't lose, and keeps some of them to refill one that lost its tail nevertheless."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from stabilityclient.agent.sources import Source, Sources
from stabilityclient.agent.upload.reader import chunk_numbers, first_seq
from stabilityclient.spool import CHUNK_BYTES, chunk_name

__all__ = ["RETAIN_BYTES", "SpoolCleaner"]

#: Durable chunks kept per source while the job runs, bytes: about half a million rows of 12 metrics.
RETAIN_BYTES = 64 * 1024 * 1024
#: Seconds between two sweeps.
SWEEP_S = 5.0


class SpoolCleaner:
    """Tidies the sources of one run.

    Args:
        limit_bytes: of all spools of the run here; durable chunks take at most half.
    """

    def __init__(self, limit_bytes: int, now: Callable[[], float] = time.monotonic) -> None:
        self._limit_bytes = limit_bytes
        self._now = now
        self._at = 0.0

    def sweep(self, sources: Sources, *, tight: bool = False) -> None:
        """Remove durable chunks beyond the share kept; at most once in SWEEP_S.

        Args:
            tight: records find no room: immediately, nothing durable is kept, and of an ended process nothing at all.
        """
        now = self._now()
        if now < self._at and not tight:
            return
        self._at = now + SWEEP_S
        every = list(sources)
        keep = min(RETAIN_BYTES, self._limit_bytes // 2 // max(1, len(every)))
        for source in every:
            if tight and source.final and source.safe and source.is_rank:
                _remove_all(source)
            else:
                _remove_durable(source, 0 if tight else max(1, keep // CHUNK_BYTES))

    def sweep_all(self, sources: Sources) -> None:
        """The run has ended and everything is durable: remove all chunks; the files that name the processes stay."""
        for source in sources:
            _remove_all(source)


def _remove_all(source: Source) -> None:
    source.reader.close()
    chunks = [chunk_name(number) for number in chunk_numbers(str(source.folder))]
    for name in (*chunks, "spare.tmp", "next.tmp"):
        try:
            os.unlink(source.folder / name)
        except OSError:
            continue  # gone already, or the disk is read-only by now: it stays, without harm


def _remove_durable(source: Source, keep_chunks: int) -> None:
    numbers = chunk_numbers(str(source.folder))
    # A chunk is durable when a later one begins at or below the first number that is not.
    durable = 0
    for at, number in enumerate(numbers):
        first = first_seq(str(source.folder), number)
        if first is not None and first > source.durable + 1:
            break
        durable = durable if first is None else at
    for number in numbers[: max(0, durable - keep_chunks)]:
        try:
            os.unlink(source.folder / chunk_name(number))
        except OSError:
            return  # another user's, or gone already: the next sweep tries again
