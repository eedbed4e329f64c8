"""Brings a run's state back: the newest snapshot that holds, and the frames of the archived parts after it.

Usually that is this machine's recent record of the run (``restart_points.py``), else the newest
part's snapshot, and no frame at all. When a segment was undone since, or the snapshot is of
another version or damaged, older ones are tried, and the frames of the parts behind are folded again and archived
again: the frames are the truth, everything else follows from them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from stabilitybackend.base.errors import ArchiveError, SnapshotError
from stabilitybackend.lineage.lineage import Given
from stabilitybackend.runs.archiving import snapshot
from stabilitybackend.runs.archiving.archiver import RunArchive
from stabilitybackend.runs.archiving.restart_files import Found
from stabilitybackend.runs.archiving.restart_in_redis import TakenOver
from stabilitybackend.runs.archiving.restart_points import RestartPoints
from stabilitybackend.runs.detector_settings import DetectorSettings
from stabilitybackend.runs.pending_frames import PendingFrames
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.storage.archive.part import PartReader
from stabilitybackend.storage.points.memtable import Generation
from stabilitybackend.storage.points.store import RunStore, series_of
from stabilitybackend.storage.points.unloaded import PointsMissing

__all__ = ["Recovery"]

#: Pause after the archive could not be read, seconds.
PAUSE_S = 2.0
#: Codes of an ArchiveError that no later try will mend.
LOST = ("archive_damaged", "archive_missing")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovery:
    """Sources from which one run is brought back.

    Args:
        archive: its parts. given: to its state. undone: keys of segments that are none.
        settings: of its detectors, for the frames that are folded again.
        processes: where incidents are judged again, those of processes: frames lack them. Then no snapshot is
            used: none holds incidents.
        points: this machine's record of the run; removed where it is useless.
        message: returns the message of the run's stream at an id.
        applied: stream id up to which Redis holds the results of frames.
    """

    run_id: str
    archive: RunArchive
    given: Given
    undone: Collection[str]
    settings: DetectorSettings
    processes: Collection[Incident] | None
    points: RestartPoints
    message: Callable[[str], Awaitable[bytes | None]]
    applied: str

    async def restored(self, troubled: Callable[[ArchiveError | None], None]) -> tuple[RunState, str]:
        """Return the newest state that is stored and the stream id that it reaches, "0-0" where nothing is.

        Args:
            troubled: called with the error while the archive's place can't be reached or written, which is tried
                again without end, then with None.

        Raises:
            RedisError: Redis is away; try again.
        """
        while True:
            try:
                found = await self._restored()
            except ArchiveError as error:
                troubled(error)
                await asyncio.sleep(PAUSE_S)
            else:
                troubled(None)
                return found

    async def _restored(self) -> tuple[RunState, str]:
        parts = await self.archive.load()
        await self.archive.check_place()
        reached = parts[-1].part.to_id if parts else "0-0"
        found = None if self.processes is not None else await self.points.find(reached, self.applied, self.message)
        if found is not None:
            newest = await asyncio.to_thread(self._newest, found, parts)
            if newest is not None:
                await self.points.go_on(newest.store, found)
                return newest, found.head.to_id
        await self.points.forget()
        good = len(parts) if self.processes is None else 0
        state: RunState | None = None
        while good and state is None:
            state = await asyncio.to_thread(self._loaded, parts[good - 1])
            good -= state is None
        if state is None:
            state = RunState(self.run_id, self.given.clock, self.undone, self.given)
        if self.processes is not None:
            state.reconciling = True
            state.incidents.load(self.processes)
        stale = parts[good:]
        state.points.store = await asyncio.to_thread(_store, parts[:good])
        await asyncio.to_thread(_judge_again, state)
        if stale and self.archive.reads_only:
            for part in stale:
                await self._folded(state, part)
        elif stale:
            _log.warning("run %s: %d of %d archived parts are folded again", self.run_id, len(stale), len(parts))
            await self.archive.replace(stale, [await self._again(state, part) for part in stale])
        return state, reached

    def _newest(self, found: Found | TakenOver, parts: list[PartReader]) -> RunState | None:
        """Return the state that was written down last, with all of its points; None where that is of no use."""
        try:
            state = snapshot.thaw(found.frozen, self.run_id, self.given.clock, self.undone, self.given)
        except SnapshotError as error:
            _log.warning("run %s: what was written down of it is not used: %s", self.run_id, error.message)
            return None
        state.points.store = _store(parts)
        found.put_into(state.store)
        try:
            with state.store.strictly():
                _judge_again(state)
        except PointsMissing:
            return None
        return state

    def _loaded(self, reader: PartReader) -> RunState | None:
        try:
            return snapshot.load(reader.state(), self.run_id, self.given.clock, self.undone, self.given)
        except (SnapshotError, ArchiveError) as error:
            if isinstance(error, ArchiveError) and error.code not in LOST:
                raise
            _log.warning("run %s: the snapshot of %s is not used: %s", self.run_id, reader.part.stem, error.message)
            return None

    async def _again(self, state: RunState, reader: PartReader) -> PartReader:
        """Fold the frames of one part and archive them again; return the new part, or a damaged one unchanged."""
        folded = await self._folded(state, reader)
        if folded is None:
            return reader
        generation, frames = folded
        fresh = await self.archive.again(reader.part, generation, frames)
        state.store.archived(1, fresh, await asyncio.to_thread(series_of, fresh))
        return fresh

    async def _folded(self, state: RunState, reader: PartReader) -> tuple[Generation, list[tuple[str, bytes]]] | None:
        """Fold the frames of one part; return the result, sealed, and the frames.

        A part whose frames are damaged is unchanged (None): its points are served, the rest of its frames
        is lost.
        """
        try:
            frames = await asyncio.to_thread(lambda: list(reader.frames()))
        except ArchiveError as error:
            if error.code not in LOST:
                raise
            _log.error(
                "run %s: the lineage may lack what happened in %s: %s", self.run_id, reader.part.stem, error.message
            )
            state.store.skipped(reader, await asyncio.to_thread(series_of, reader))
            return None
        waiting = PendingFrames(frames)
        while waiting:
            waiting.fold(state, self.settings, state.store.begin, reader.part.to_id)
            await asyncio.sleep(0)  # the live requests of other runs go on meanwhile
        state.store.open.to_id = reader.part.to_id
        return state.store.cut(snapshot.freeze(state)), frames


def _store(parts: list[PartReader]) -> RunStore:
    store = RunStore(parts, parts[-1].part.to_id if parts else "0-0")
    for trouble in store.unreadable.values():
        if trouble.code not in LOST:
            raise trouble
    return store


def _judge_again(state: RunState) -> None:
    if state.judge.unfit:
        why = ", ".join(f"{name} ({why})" for name, why in state.judge.unfit.items())
        _log.warning("run %s: these detectors judge the stored points again: %s", state.run_id, why)
        state.judge.judge_again()
