"""Writes down the fold of a run's frames, so that a restart folds only the frames after it.

A snapshot is never the truth: the frames are. On ``SnapshotError`` a reader folds the frames again and
comes to the same state. It holds all of ``RunState`` but the points, the incidents and the commands, which are stored
elsewhere, and the reports of agents and slots, which are not in frames.

Bytes: magic ``SBST``, version (u16), length of the content (u64), CRC-32 of the rest (u32), all little-endian, then
the content compressed with zlib. (zlib's own checksum is of the content: some flips unpack to it too.) The content is a
list of parts (``saving.Part``), each with a version of its own: a detector that changed judges the stored points again
and the others go on; where another part changed all frames are folded. An archive may lie on a disk or in a bucket that
others can write. So a part is read as plain values of the types that it declares, and runs no code; a run's report on
itself is as true as its archive is.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Collection

from stabilitybackend.base.errors import SnapshotError
from stabilitybackend.base.saving import Unfit, pack, unpacked_list
from stabilitybackend.lineage.lineage import Given
from stabilitybackend.runs.state import RunState

__all__ = ["SnapshotError", "freeze", "load", "opened", "seal", "thaw"]

#: Version of the layout. Raise it when that changes; contents of a part have a version there.
VERSION = 6
#: Largest content that is read, bytes. 2,048 ranks that log 12 metrics take 2 MiB.
MAX_STATE_BYTES = 512 * 1024 * 1024
#: zlib's fastest level: the state is written once a part and read once a restart.
_LEVEL = 1
_MAGIC = b"SBST"
_HEADER = struct.Struct("<4sHQI")


def freeze(state: RunState) -> bytes:
    """Return the input of ``seal``: a copy of the current state, made in one go while nothing else touches it."""
    return pack(state.saved())


def seal(frozen: bytes) -> bytes:
    """Return the snapshot for ``freeze``'s answer. Pure and the longer part of the work: may run in a thread."""
    body = zlib.compress(frozen, _LEVEL)
    return _HEADER.pack(_MAGIC, VERSION, len(frozen), zlib.crc32(body)) + body


def load(
    data: bytes, run_id: str, clock: Callable[[], float], undone: Collection[str] = (), given: Given | None = None
) -> RunState:
    """Return the state that ``seal`` wrote, as ``thaw`` does. Raises SnapshotError where it is damaged, too."""
    return thaw(opened(data), run_id, clock, undone, given)


def thaw(
    frozen: bytes, run_id: str, clock: Callable[[], float], undone: Collection[str] = (), given: Given | None = None
) -> RunState:
    """Return the state that ``freeze`` wrote: ready for the next frame, its store, incidents and commands empty.

    Where ``judge.unfit`` names detectors, call ``judge.judge_again`` when the points are in its store.

    Args:
        clock: returns unix seconds.
        undone: keys of the inferred segments that were undone, as they are stored now.
        given: as for ``RunState``.

    Raises:
        SnapshotError: it was made by another version, holds an illegal value, or a segment in it has been undone
            since.
    """
    state = RunState(run_id, clock, undone, given)
    try:
        state.restore(unpacked_list(frozen))
    except Unfit as error:
        raise SnapshotError(
            f"the snapshot of run {run_id} is not used: {error}",
            hint="nothing is lost: the frames are folded again, which takes longer",
        ) from error
    except Exception as error:  # values of the right types that do not fit each other
        raise SnapshotError(
            f"the snapshot of run {run_id} is not one of a run's state: {error or type(error).__name__}",
            hint="the frames are folded again",
        ) from error
    return state


def opened(data: bytes) -> bytes:
    """Return the input of ``seal`` from its answer.

    Everything is checked that can be checked without reading it. Raises SnapshotError where it is damaged.
    """
    if len(data) < _HEADER.size:
        raise _damaged(f"has {len(data)} bytes, expected at least {_HEADER.size}")
    magic, version, size, checksum = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise _damaged(f"begins with {magic!r}, expected {_MAGIC!r}")
    if version != VERSION:
        raise SnapshotError(
            f"the snapshot has version {version}, this server writes {VERSION}",
            hint="nothing is lost: the frames are folded again, which takes longer",
        )
    if size > MAX_STATE_BYTES:
        raise _damaged(f"says that it holds {size} bytes, expected at most {MAX_STATE_BYTES}")
    body = memoryview(data)[_HEADER.size :]
    if zlib.crc32(body) != checksum:
        raise _damaged("does not have the checksum that it names")
    unpacker = zlib.decompressobj()
    try:
        frozen = unpacker.decompress(body, size + 1)
    except zlib.error as error:
        raise _damaged(f"can't be unpacked ({error})") from error
    if len(frozen) != size or not unpacker.eof or unpacker.unused_data:
        raise _damaged(f"does not hold the {size} bytes that it names")
    return frozen


def _damaged(what: str) -> SnapshotError:
    return SnapshotError(f"the snapshot {what}", hint="it is damaged: the frames are folded again")
