"""Files from which a restarted server takes a run up where it was killed: the fold's newest snapshot, and its points.

A folder a run, on the server's own disk. ``points-<id>`` holds the rows after the stream id ``<id>``, as they
were placed, one record for each time they were written down; only ever appended to. ``fold`` holds a snapshot of the
fold at exactly one frame, the name of that frame and a checksum; it is replaced whole, after the points. So
whatever a kill leaves behind, the fold names how far the points count.

Nothing here is the truth: the frames are. A reader of files that are damaged, of another version, or different from
Redis passes them over and folds the frames, which takes longer. Nothing is synced to the disk for that reason
too: writes of a killed process stay, and a loss by a machine without power is noticed by its checksum.
"""

from __future__ import annotations

import shutil
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from stabilitybackend.base.errors import SnapshotError
from stabilitybackend.base.saving import Unfit, pack, unpack
from stabilitybackend.base.streams import stream_order
from stabilitybackend.base.turns import Turns
from stabilitybackend.storage.points.memtable import RowRange
from stabilitybackend.storage.points.store import RunStore

__all__ = [
    "FoldHead", "Found", "RestartFiles", "RestartShare", "decoded", "frame_checksum", "packed_record", "records",
]  # fmt: skip

#: Raise it when the layout changes: files of another version are passed over.
VERSION = 3
_MAGIC = b"SBRS"
#: Magic, version, length of the rest, CRC-32 of the rest; little-endian.
_HEADER = struct.Struct("<4sHQI")
_FOLD = "fold"
_POINTS = "points-"
T = TypeVar("T")


@dataclass(slots=True)
class RestartShare:
    """Shared settings and counts of the runs of one process.

    Attributes:
        folder: of all runs' files; None writes none.
        in_redis: runs are written down in Redis instead, where other machines find them.
        folding_s: seconds that folding and judging took, by followed run: CPU time, where the machine has time for us.
        unwritten_s: the share in no file yet, all runs together: a restart has to do it again.
        counts: ``written`` and ``failed`` writes; runs ``taken_up`` from their files, and those whose files were
            ``passed_over``.
        turns: of runs whose points are loaded after they were taken over.
    """

    folder: Path | None = None
    in_redis: bool = False
    folding_s: dict[str, float] = field(default_factory=dict)
    unwritten_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    turns: Turns = field(default_factory=Turns)

    def run_ids(self) -> list[str]:
        """Return the runs of which files are here. Reads a folder: call it in a thread."""
        try:
            return [path.name for path in self.folder.iterdir()] if self.folder is not None else []
        except OSError:
            return []  # there is none yet, or it is none

    def forget(self, run_id: str) -> None:
        """Remove the files of an unfollowed run. Call it in a thread."""
        if self.folder is not None:
            RestartFiles(self.folder, run_id).forget()


class FoldHead(msgspec.Struct, frozen=True, array_like=True):
    """At which frame a fold was written down.

    Args:
        to_id: stream id of the newest frame in it.
        checksum: of that frame's message: a stream that was emptied may give an id twice.
        applied: stream id up to which Redis held the results of frames: one that has lost some since would
            never get it, if the frames up to here were not folded again.
    """

    run_id: str
    to_id: str
    checksum: int
    applied: str = "0-0"


class _Fold(msgspec.Struct, array_like=True):
    head: FoldHead
    frozen: bytes


@dataclass(frozen=True, slots=True)
class Found:
    """Contents of the files of a run.

    Attributes:
        head: the frame up to which they reach. frozen: the fold at that frame (``snapshot.thaw``).
        stretches: the rows up to it, in their order.
        begins_at, length: the points' file that ends there: the stream id in its name, and its bytes up to there.
    """

    head: FoldHead
    frozen: bytes
    stretches: list[RowRange]
    begins_at: str
    length: int

    def put_into(self, store: RunStore) -> None:
        """Put the rows into a store that holds the points before them."""
        for stretch in self.stretches:
            store.put_back(stretch)


class RestartFiles:
    """The files of one run. Every method but ``path`` reads or writes: call it in a thread.

    Args:
        folder: of all runs; made when the first file is written.
        run_id: must have passed ``check_run_id``: it names a folder.
    """

    def __init__(self, folder: Path, run_id: str) -> None:
        self.path = folder / run_id
        self._run_id = run_id

    def write(self, stretches: Sequence[tuple[str, RowRange]], head: FoldHead, frozen: bytes) -> int:
        """Append rows, each to the points' file that begins after the given stream id, then replace the fold.

        Returns:
            Bytes written.

        Raises:
            OSError: a file can't be written. The fold that was there still counts, but no rows may follow it.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = 0
        for begins_at, stretch in stretches:
            begun = "ab" if stretch.begin.frames else "wb"  # bytes of a failed try are overwritten
            with open(self.path / f"{_POINTS}{begins_at}", begun) as file:
                written += file.write(packed_record(stretch))
        new = self.path / f"{_FOLD}.new"
        written += new.write_bytes(packed_record(_Fold(head, frozen)))
        new.replace(self.path / _FOLD)
        return written

    def load(self, after: str) -> Found | None:
        """Return the fold and the rows between the stream id ``after`` and it; None where none lies after it.

        Args:
            after: where the archived parts end, "0-0" without any.

        Raises:
            SnapshotError: the files are damaged or of another version.
        """
        try:
            data = (self.path / _FOLD).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(f"{self.path / _FOLD} can't be read ({error.strerror})") from error
        fold = decoded(next(records(data, _FOLD))[0], _Fold)
        if fold.head.run_id != self._run_id:
            raise _unusable(f"{self.path / _FOLD} is of run {fold.head.run_id}")
        if stream_order(fold.head.to_id) <= stream_order(after):
            return None
        at = begins_at = after
        length = 0
        stretches: list[RowRange] = []
        while stream_order(at) < stream_order(fold.head.to_id):
            file, begins_at = f"{_POINTS}{at}", at
            for body, ends in records(self._read(file), file):
                stretch = decoded(body, RowRange)
                if stretch.begin.to_id != at:
                    raise _unusable(f"{file} goes on at {stretch.begin.to_id}, expected {at}")
                stretches.append(stretch)
                at, length = stretch.end.to_id, ends
                if at == fold.head.to_id:
                    break
            if at == begins_at:
                raise _unusable(f"{file} holds nothing")
        if at != fold.head.to_id:
            raise _unusable(f"the points reach {at}, expected {fold.head.to_id}")
        return Found(fold.head, fold.frozen, stretches, begins_at, length)

    def trim(self, found: Found) -> None:
        """Remove the rows after ``found``, which no fold names. Raises OSError when that is not possible."""
        end = stream_order(found.head.to_id)
        for name in self._points():
            if name == f"{_POINTS}{found.begins_at}":
                with open(self.path / name, "ab") as file:
                    file.truncate(found.length)
            elif stream_order(name.removeprefix(_POINTS)) >= end:
                (self.path / name).unlink()

    def remove_before(self, to_id: str) -> None:
        """Remove the points up to ``to_id``, the end of a part: the archive has them now."""
        for name in self._points():
            if stream_order(name.removeprefix(_POINTS)) < stream_order(to_id):
                (self.path / name).unlink(missing_ok=True)

    def forget(self) -> None:
        """Remove every file of the run."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _points(self) -> list[str]:
        try:
            return [path.name for path in self.path.iterdir() if path.name.startswith(_POINTS)]
        except FileNotFoundError:
            return []

    def _read(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise _unusable(f"{self.path / name} can't be read ({error.strerror})") from error


def frame_checksum(message: bytes) -> int:
    """Return the identity of one stored message."""
    return zlib.crc32(message)


def packed_record(content: Any) -> bytes:
    """Return a record that ``records`` reads."""
    body = pack(content)
    return _HEADER.pack(_MAGIC, VERSION, len(body), zlib.crc32(body)) + body


def records(data: bytes, name: str) -> Iterator[tuple[memoryview, int]]:
    """Yield the bodies of the records in ``data`` and where each ends.

    Raises:
        SnapshotError: one is not whole, has another checksum than it names, or was written by another version.
    """
    at, view = 0, memoryview(data)
    while True:
        if len(data) - at < _HEADER.size:
            raise _unusable(f"{name} ends within a record")
        magic, version, length, checksum = _HEADER.unpack_from(data, at)
        if (magic, version) != (_MAGIC, VERSION):
            raise _unusable(f"{name} has version {magic!r}/{version}, expected {_MAGIC!r}/{VERSION}")
        body = view[at + _HEADER.size : at + _HEADER.size + length]
        if len(body) != length or zlib.crc32(body) != checksum:
            raise _unusable(f"{name} does not have the checksum that it names")
        at += _HEADER.size + length
        yield body, at
        if at == len(data):
            return


def decoded(body: memoryview, kind: type[T]) -> T:
    """Return the contents of a record. Raises SnapshotError where it is none of ``kind``."""
    try:
        return unpack(kind, body, "a record")
    except Unfit as error:
        raise _unusable(str(error)) from error


def _unusable(what: str) -> SnapshotError:
    return SnapshotError(
        f"the restart files can't be used: {what}", hint="nothing is lost: the frames are folded again"
    )
