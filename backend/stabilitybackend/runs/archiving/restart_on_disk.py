"""Where the only server writes its runs down: files on its own disk, of the fold and of the new rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from stabilitybackend.base.tasks import in_thread
from stabilitybackend.runs.archiving.restart_files import FoldHead, Found, RestartFiles
from stabilitybackend.storage.points.memtable import Generation, RowPlace, RowRange
from stabilitybackend.storage.points.store import RunStore

__all__ = ["OnDisk"]


class OnDisk:
    """The files of one run, written on and on.

    Args:
        folder: of all runs.
        cpu: CPU seconds of the calling thread; the wait for the disk delays nothing.
    """

    def __init__(self, run_id: str, folder: Path, cpu: Callable[[], float] = time.thread_time) -> None:
        self._files = RestartFiles(folder, run_id)
        self._cpu = cpu
        self.reset()

    def reset(self) -> None:
        """Begin with whole files."""
        #: The newest generation of which something is written, its file's name, and up to where.
        self._at: tuple[Generation, str, RowPlace] | None = None
        self._archived_to = ""

    async def find(self, after: str) -> Found | None:
        """Return the record beyond the stream id ``after``. Raises SnapshotError."""
        return await asyncio.to_thread(self._files.load, after)

    async def go_on(self, store: RunStore, found: Found) -> None:
        """Write from now on the rows after ``found``, which is in ``store``. Raises OSError."""
        self.reset()
        self._at = (store.open, found.begins_at, store.open.place)
        await asyncio.to_thread(self._files.trim, found)

    async def forget(self) -> None:
        """Remove the files."""
        await in_thread(self._files.forget)

    def copied(
        self, store: RunStore, last: Generation, head: FoldHead, frozen: bytes
    ) -> Callable[[], Awaitable[float]]:
        """Return the writer of the rows up to the generation ``last``, and the fold there; it returns CPU seconds.

        It raises OSError.
        """
        stretches, self._at = self._since(store, last)
        archived_to = store.generations[0].from_id

        def write() -> float:
            begin = self._cpu()
            self._files.write(stretches, head, frozen)
            if archived_to != self._archived_to:
                self._files.remove_before(archived_to)
            return self._cpu() - begin

        async def written() -> float:
            spent_s = await in_thread(write)
            self._archived_to = archived_to
            return spent_s

        return written

    def _since(
        self, store: RunStore, last: Generation
    ) -> tuple[list[tuple[str, RowRange]], tuple[Generation, str, RowPlace]]:
        """Return the rows up to ``last`` that are not written yet, each with its file, and where they end."""
        generations = store.generations
        at = self._at if self._at is not None and self._at[0] in generations else None
        first = generations.index(at[0]) if at is not None else 0
        found: list[tuple[str, RowRange]] = []
        reached = at
        for generation in generations[first : generations.index(last) + 1]:
            known = at is not None and generation is at[0]
            file, place = (at[1], at[2]) if at is not None and known else (generation.from_id, generation.start)
            if generation.frames > place.frames:
                found.append((file, generation.stretch(place)))
            reached = (generation, file, generation.place)
        assert reached is not None
        return found, reached
