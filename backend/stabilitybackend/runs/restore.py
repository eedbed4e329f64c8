"""Brings a run's state back from its archive: the newest snapshot that holds, and the frames of the parts after it.

Usually that is the newest part's snapshot and no frame at all. When a segment was undone since, or the snapshot is of
another version or damaged, older ones are tried, and the frames of the parts behind are folded again and archived
anew: the frames are the truth, everything else follows from them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from stabilitybackend.archive.part import PartReader
from stabilitybackend.errors import ArchiveError, SnapshotError
from stabilitybackend.runs import snapshot
from stabilitybackend.runs.archiver import RunArchive
from stabilitybackend.runs.detector_settings import DetectorSettings
from stabilitybackend.runs.state import RunState
from stabilitybackend.runs.store import RunStore, series_of
from stabilitybackend.runs.taking import take

__all__ = ["restored"]

#: Pause after the archive could not be read, seconds.
PAUSE_S = 2.0
#: Codes of an ArchiveError that no later try will mend.
LOST = ("archive_damaged", "archive_missing")

_log = logging.getLogger(__name__)


async def restored(
    run_id: str,
    archive: RunArchive,
    clock: Callable[[], float],
    undone: Collection[str],
    settings: DetectorSettings,
    troubled: Callable[[ArchiveError | None], None],
    processes: Collection[Mapping[str, Any]] | None = None,
) -> tuple[RunState, str]:
    """Return the state at the end of the archive and the stream id that it reaches, "0-0" for an empty archive.

    Args:
        run_id: the run. archive: its parts. clock: unix seconds now. undone: keys of segments that are none.
        settings: of its detectors, for the frames that are folded again.
        troubled: called with what is wrong while the archive's place can't be reached or written, which is tried again
            for ever, then with None.
        processes: where incidents are judged anew, those of processes, which frames do not tell. Then no snapshot is
            used: none holds incidents.

    Raises:
        RedisError: Redis is away; try again.
    """
    while True:
        try:
            found = await _restored(run_id, archive, clock, undone, settings, processes)
        except ArchiveError as error:
            troubled(error)
            await asyncio.sleep(PAUSE_S)
        else:
            troubled(None)
            return found


async def _restored(
    run_id: str,
    archive: RunArchive,
    clock: Callable[[], float],
    undone: Collection[str],
    settings: DetectorSettings,
    processes: Collection[Mapping[str, Any]] | None,
) -> tuple[RunState, str]:
    parts = await archive.load()
    await archive.check_place()
    good = len(parts) if processes is None else 0
    state: RunState | None = None
    while good and state is None:
        state = await asyncio.to_thread(_loaded, parts[good - 1], run_id, clock, undone)
        good -= state is None
    if state is None:
        state = RunState(run_id, clock, undone)
    if processes is not None:
        state.retelling = True
        state.incidents.load(processes)
    kept, stale = parts[:good], parts[good:]
    state.store = await asyncio.to_thread(RunStore, kept, kept[-1].part.to_id if kept else "0-0")
    for trouble in state.store.unreadable.values():
        if trouble.code not in LOST:
            raise trouble
    if stale:
        _log.warning("run %s: %d of %d archived parts are folded again", run_id, len(stale), len(parts))
        fresh = [await _again(state, archive, part, settings) for part in stale]
        await archive.replace(stale, fresh)
    return state, parts[-1].part.to_id if parts else "0-0"


def _loaded(reader: PartReader, run_id: str, clock: Callable[[], float], undone: Collection[str]) -> RunState | None:
    try:
        return snapshot.load(reader.state(), run_id, clock, undone)
    except (SnapshotError, ArchiveError) as error:
        if isinstance(error, ArchiveError) and error.code not in LOST:
            raise
        _log.warning("run %s: the snapshot of %s is not used: %s", run_id, reader.part.stem, error.message)
        return None


async def _again(state: RunState, archive: RunArchive, reader: PartReader, settings: DetectorSettings) -> PartReader:
    """Fold the frames of one part and archive them anew; return the new part.

    A part whose frames are damaged stays as it is: its points are served, what its frames said beside them is lost.
    """
    try:
        frames = await asyncio.to_thread(lambda: list(reader.frames()))
    except ArchiveError as error:
        if error.code not in LOST:
            raise
        _log.error(
            "run %s: the lineage may lack what happened in %s: %s", state.run_id, reader.part.stem, error.message
        )
        state.store.skipped(reader, await asyncio.to_thread(series_of, reader))
        return reader
    for frame_id, raw in frames:
        state.store.begin(frame_id, len(raw))
        take(state, frame_id, raw, settings, replayed=True)
        await asyncio.sleep(0)  # the live requests of other runs go on meanwhile
    state.store.open.to_id = reader.part.to_id
    generation = state.store.cut(snapshot.freeze(state))
    fresh = await archive.again(reader.part, generation, frames)
    state.store.archived(1, fresh, await asyncio.to_thread(series_of, fresh))
    return fresh
