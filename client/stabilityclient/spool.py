"""The spool: where a training thread leaves its records without waiting, in any state of network and disk.

Chunks of 1 MiB, memory-mapped and reserved on disk first; the format is in ``docs/wire.md``, the bytes in
``tests/client/golden/``.
A chunk is whole: the schema of a set is written again in each chunk with one of its rows, so old chunks can
go.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import sys
import time
from zlib import adler32

from stabilityclient.metrics.schemas import Schemas

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "CHUNK_BYTES",
    "CHUNK_HEADER",
    "CHUNK_HEADER_BYTES",
    "END_OF_CHUNK",
    "MAX_EVENT_BYTES",
    "RECORD_EVENT",
    "RECORD_ROW",
    "RECORD_SCHEMA",
    "SPOOL_MAGIC",
    "SPOOL_VERSION",
    "SpoolWriter",
    "chunk_name",
]

SPOOL_MAGIC = b"SBSPOOL1"
SPOOL_VERSION = 1
CHUNK_BYTES = 1024 * 1024
CHUNK_HEADER = struct.Struct("<8sIIQ")  # magic, version, chunk number, number of its first record
CHUNK_HEADER_BYTES = 64
RECORD_SCHEMA = 1
RECORD_ROW = 2
RECORD_EVENT = 3
END_OF_CHUNK = 0xFFFFFFFF
#: Longest event, bytes of JSON. Longer ones are refused; the callers cut their texts before.
MAX_EVENT_BYTES = 256 * 1024
#: Sets whose packing is remembered. A job that makes up new names at each step must not grow without bound.
MAX_CACHED_SETS = 1024
#: Seconds after which a disk or a quota that was full is tried again. Until then records are dropped and counted.
RETRY_S = 1.0

#: Longest wait for another thread's append, seconds; then the token counts as lost and is taken: a job pays this once.
TOKEN_WAIT_S = 1.0

_U32 = struct.Struct("<I")
# Native, because that is one aligned store of 8 bytes: length (low) and checksum (high) appear together or not at all.
_HEAD = struct.Struct("@Q")
_PREFIX = struct.Struct("<B3xI")
_PAGE = 4096
_NEW_CHUNK = "next.tmp"
_SPARE_CHUNK = "spare.tmp"


def chunk_name(number: int) -> str:
    """Return the file name of a chunk."""
    return f"{number:08d}.spool"


class _NoRoom(Exception):
    """Disk or quota is full, or the spool is closed: the record is dropped."""


class SpoolWriter:
    """Appends numbered records to one source's chunks.

    Safe among threads; the call of a signal handler that interrupted an append is dropped and counted.

    Args:
        folder: the source's folder, there already.
        limit_bytes: bytes of chunks in all sources of the run beyond which records are dropped.
        problem: called with a text when records begin to be dropped.
        now: monotonic seconds.

    Attributes:
        last_seq: number of the last record.
        dropped: records that were not stored: disk or quota full.
        no_room: errno of the last one that found no room, 0 for none; EDQUOT also where the spool itself is full.

    Raises:
        OSError: the first chunk can't be made.
    """

    def __init__(
        self,
        folder: str,
        limit_bytes: int,
        problem: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.last_seq = 0
        self.dropped = 0
        self.no_room = 0
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._problem = problem
        self._now = now
        # The lock: the thread with the token may write. Taking it is atomic in CPython and, with cold caches, a third
        # of the cost of a lock object, which would be the dearest single part of an append.
        self._token = [True]
        self._closed = False
        self._sets: dict[tuple[str, ...], tuple[Callable[..., bytes], int, int]] = {}
        self._set_id = 0
        #: Which sets can be stored, and how.
        self.schemas = Schemas(CHUNK_BYTES - CHUNK_HEADER_BYTES - 24)
        self._number = 0
        self._pos = 0
        self._map: mmap.mmap | None = None
        self._spare: mmap.mmap | None = None
        self._retry_at = float("-inf")
        self._on_spare_taken: Callable[[], object] | None = None
        self._open_chunk()
        assert self._map is not None
        for page in range(1, CHUNK_BYTES // _PAGE):
            self._map[page * _PAGE] = 0  # the first chunk's page faults are paid here, not in the first steps

    def append_row(self, names: tuple[str, ...], step: int, when: float, values: Iterable[object]) -> bool:
        """Append one row; True when it is stored.

        Args:
            names: 1 or more metric names. step: 0 to 2**53 - 1. when: unix seconds.
            values: one number for each name; anything with ``__float__``.

        Raises:
            struct.error, OverflowError: a value is not a number; nothing was written.
            ValueError: there are too many names, or one of them is no name; nothing was written.
                ``schemas.fitting`` returns those that can be stored.
        """
        try:
            self._token.pop()
        except IndexError:
            if not self._wait_token(2):
                self.dropped += 1
                return False
        try:
            pack, set_id, row_bytes = self._sets.get(names) or self._enter(names)
            pos = self._pos
            if pos + row_bytes > CHUNK_BYTES:
                pack, set_id, row_bytes = self._enter(names)
                pos = self._pos
            payload = pack(RECORD_ROW, set_id, step, when, *values)
            size = len(payload)
            end = pos + 8 + size
            chunk = self._map
            chunk[pos + 8 : end] = payload  # type: ignore[index]
            # Last, and in one store: a process killed before this line leaves a zero, and no reader goes further.
            _HEAD.pack_into(chunk, pos, adler32(payload) << 32 | size)  # type: ignore[arg-type]
            self._pos = (end + 7) & -8
            self.last_seq += 1
            return True
        except _NoRoom:
            self.dropped += 1
            return False
        finally:
            self._token.append(True)

    def append_event(self, kind: str, step: int | None, when: float, data: dict[str, object]) -> bool:
        """Append one event; True when it is stored.

        Args:
            kind: its type (docs/wire.md). step: the step to which it belongs, if any. when: unix seconds.
            data: JSON values; others are stored as their text.

        Raises:
            ValueError: the event is longer than MAX_EVENT_BYTES.
        """
        import json

        text = json.dumps({"type": kind, "time": when, "step": step, "data": data}, default=str).encode()
        if len(text) > MAX_EVENT_BYTES:
            raise ValueError(
                f"event {kind!r} has {len(text)} bytes, expected at most {MAX_EVENT_BYTES}: shorten its text"
            )
        if not self._take_token():
            self.dropped += 1
            return False
        try:
            payload = b"\3\0\0\0" + text
            self._make_room(_record_bytes(len(payload)))
            self._put(payload)
            self.last_seq += 1
            return True
        except _NoRoom:
            self.dropped += 1
            return False
        finally:
            self._token.append(True)

    def drop(self) -> None:
        """Count a record that was dropped elsewhere."""
        self.dropped += 1

    def notify_spare_taken(self, notify: Callable[[], object]) -> None:
        """Call ``notify`` when the spare chunk was taken, so that a thread makes another one."""
        self._on_spare_taken = notify

    def prepare_spare(self, pause: Callable[[], None]) -> None:
        """Make the next chunk ready, from a thread that has time: the training thread then only renames it.

        Args:
            pause: called after each 16 touched pages; lets the training thread have the interpreter.
        """
        if self._spare is not None or self._closed or self._over_limit():
            return
        try:
            spare = self._reserve(_SPARE_CHUNK)
        except OSError:
            return  # the training thread meets the same error when it needs the chunk, and counts it there
        for page in range(CHUNK_BYTES // _PAGE):
            spare[page * _PAGE] = 0  # the page fault is paid here
            if page % 16 == 15:
                pause()
        self._spare = spare

    def close(self) -> None:
        """Unmap. Later records are dropped and counted; the files stay."""
        if self._closed or not self._take_token():
            return
        self._closed = True
        self._sets.clear()
        self._pos = CHUNK_BYTES  # later records find no room
        for chunk in (self._map, self._spare):
            if chunk is not None:
                chunk.close()
        try:
            os.unlink(os.path.join(self._folder, _SPARE_CHUNK))
        except OSError:
            pass  # there was none
        self._token.append(True)

    def _take_token(self) -> bool:
        try:
            return self._token.pop()
        except IndexError:
            return self._wait_token(3)

    def _wait_token(self, depth: int) -> bool:
        """Get the token from its holder; False in a signal handler that interrupted this thread's own append."""
        # Looking through the stack here, where it is rare, keeps the question of its holder out of the hot path.
        frame = sys._getframe(depth)  # from the caller of the method that wants it
        while frame is not None:
            if frame.f_code in _HOLDERS and frame.f_locals.get("self") is self:
                return False
            frame = frame.f_back  # type: ignore[assignment]
        deadline = time.monotonic() + TOKEN_WAIT_S
        while True:
            time.sleep(0)  # lets the other thread run
            try:
                return self._token.pop()
            except IndexError:
                if time.monotonic() >= deadline:
                    # A holder needs microseconds: this one was ended between two instructions (Ctrl-C), so the
                    # token never comes back.
                    return True

    def _put(self, payload: bytes) -> None:
        """Write one record at the end; the caller made sure of the room."""
        chunk = self._map
        assert chunk is not None
        pos = self._pos
        end = pos + 8 + len(payload)
        chunk[pos + 8 : end] = payload
        _HEAD.pack_into(chunk, pos, adler32(payload) << 32 | len(payload))
        self._pos = (end + 7) & -8

    def _enter(self, names: tuple[str, ...]) -> tuple[Callable[..., bytes], int, int]:
        """Return the packing of a set whose schema is in the current chunk, with room for one row.

        Raises:
            _NoRoom: the disk or the quota is full.
        """
        packer, text = self.schemas.of(names)
        row_bytes = _record_bytes(packer.size)
        self._make_room(_record_bytes(_PREFIX.size + len(text)) + row_bytes)
        if len(self._sets) >= MAX_CACHED_SETS:
            self._sets.clear()
        self._set_id += 1
        self._put(_PREFIX.pack(RECORD_SCHEMA, self._set_id) + text)
        # The third number is the room needed for a row: itself and the end mark.
        entry = (packer.pack, self._set_id, row_bytes + 8)
        self._sets[names] = entry
        return entry

    def _make_room(self, size: int) -> None:
        """Make sure that ``size`` bytes and an end mark fit, with a new chunk if need be.

        Raises:
            _NoRoom: they don't; reported at most once in RETRY_S.
        """
        if self._closed:
            raise _NoRoom
        if self._pos + size + 8 <= CHUNK_BYTES:
            return
        if self._now() < self._retry_at:
            raise _NoRoom
        try:
            if self._over_limit():
                full = f"the spool holds {self._limit_bytes >> 20} MiB (STABILITY_SPOOL_MIB)"
                raise OSError(errno.EDQUOT, full)
            self._open_chunk()
        except OSError as error:
            self._retry_at = self._now() + RETRY_S
            self.no_room = error.errno or errno.EIO
            self._problem(f"no room for new records, they are dropped and counted: {error.strerror or error}")
            raise _NoRoom from error
        if CHUNK_HEADER_BYTES + size + 8 > CHUNK_BYTES:
            raise _NoRoom

    def _open_chunk(self) -> None:
        """Begin the next chunk; the old one gets its end mark only when the new one is whole on disk."""
        number = self._number + 1
        spare, self._spare = self._spare, None
        made = _SPARE_CHUNK
        if spare is None:
            made = _NEW_CHUNK
            spare = self._reserve(made)
        spare[0 : CHUNK_HEADER.size] = CHUNK_HEADER.pack(SPOOL_MAGIC, SPOOL_VERSION, number, self.last_seq + 1)
        os.rename(os.path.join(self._folder, made), os.path.join(self._folder, chunk_name(number)))
        if self._map is not None:
            _U32.pack_into(self._map, self._pos, END_OF_CHUNK)
            self._map.close()
        self._map = spare
        self._number = number
        self._pos = CHUNK_HEADER_BYTES
        self._sets.clear()
        if self._on_spare_taken is not None:
            self._on_spare_taken()

    def _reserve(self, name: str) -> mmap.mmap:
        path = os.path.join(self._folder, name)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, CHUNK_BYTES)
            return mmap.mmap(fd, CHUNK_BYTES)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(fd)

    def _over_limit(self) -> bool:
        """Whether the chunks of all sources of the run leave no room for one more."""
        total = 0
        try:
            for source in os.scandir(os.path.dirname(self._folder)):
                with os.scandir(source.path) as files:
                    total += sum(CHUNK_BYTES for file in files if file.name.endswith(".spool"))
        except OSError:
            return False  # a folder vanished meanwhile: the agent tidies up, so there is room
        return total + CHUNK_BYTES > self._limit_bytes


def _record_bytes(payload_bytes: int) -> int:
    """Return the bytes of a record in a chunk: length, checksum, payload, padding to 8."""
    return (payload_bytes + 15) & ~7


#: Code that holds the token; see _wait_token.
_HOLDERS = frozenset(
    method.__code__ for method in (SpoolWriter.append_row, SpoolWriter.append_event, SpoolWriter.close)
)
