"""The slot: a 4,096-byte memory-mapped file in which a rank says what it is doing, readable after its death.

The layout is in ``docs/wire.md``; ``tests/client/golden/slot.bin`` pins the bytes. The writer packs all moving fields
with one C call (atomic among the threads of the process); a counter before and after tells another process a torn
read.
"""

from __future__ import annotations

import mmap
import os
import struct

__all__ = [
    "SLOT_BYTES",
    "STATE_EXCEPTION",
    "STATE_FINISHED",
    "STATE_LEFT",
    "STATE_NAMES",
    "STATE_RUNNING",
    "Slot",
    "SlotView",
    "read_slot",
]

SLOT_BYTES = 4096
SLOT_VERSION = 1
MAGIC = b"SBSLOT01"
STATE_RUNNING = 0
STATE_FINISHED = 1
STATE_LEFT = 2
STATE_EXCEPTION = 3
#: Names of the states in Health messages, by number.
STATE_NAMES = ("running", "finished", "left", "exception")
#: Room for the text of the exception that ended the process, bytes of UTF-8.
EXCEPTION_BYTES = 512

_HEAD = struct.Struct("<8sIIiiI")  # magic, version, pid, rank, world size, state
_STATE_AT = 24
_BODY_AT = 28
# lock, beat, step, step start, phase start, expected phase seconds, last seq, dropped, phase, segment key, lock
_BODY = struct.Struct("<IQqdddQQ64s64sI")
_STEP = struct.Struct("<IQqd")  # its first four fields
_LOCK_AFTER_AT = _BODY_AT + _BODY.size - 4
_EXCEPTION_AT = 256
_U32 = struct.Struct("<I")
_NAME_BYTES = 64
#: Reads of a slot that is being written before the last copy is given up on.
_READ_ATTEMPTS = 8


def _clip(text: str, size: int) -> bytes:
    """Return at most ``size`` bytes of UTF-8, cut between characters."""
    data = text.encode("utf-8", "replace")
    return data if len(data) <= size else data[:size].decode("utf-8", "ignore").encode()


class Slot:
    """Writer of one slot file.

    Args:
        path: file to make; must not be there yet.
        pid: of this process. rank, world_size: its place in the job.
        started: unix seconds, the start of the first phase.

    Raises:
        OSError: the file can't be made (full disk, no permission).
    """

    def __init__(self, path: str, *, pid: int, rank: int, world_size: int, started: float) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(fd, 0, SLOT_BYTES)  # so that a full disk is an error here, never a SIGBUS later
            self._map: mmap.mmap | bytearray = mmap.mmap(fd, SLOT_BYTES)
        finally:
            os.close(fd)
        self.beat = 0
        self.step = -1
        self.step_start = 0.0
        self.phase = ""
        self.phase_start = started
        self.expect_s = 0.0
        self.last_seq = 0
        self.dropped = 0
        self._phase = b""
        self._segment = b""
        self._lock = 0
        self._pack_into = _BODY.pack_into
        self._pack_step = _STEP.pack_into
        self._pack_lock = _U32.pack_into
        _HEAD.pack_into(self._map, 0, MAGIC, SLOT_VERSION, pid, rank, world_size, STATE_RUNNING)
        self.write()

    def write(self) -> None:
        """Publish all moving fields."""
        self._lock = lock = (self._lock + 1) & 0xFFFFFFFF
        self._pack_into(
            self._map,
            _BODY_AT,
            lock,
            self.beat,
            self.step,
            self.step_start,
            self.phase_start,
            self.expect_s,
            self.last_seq,
            self.dropped,
            self._phase,
            self._segment,
            lock,
        )

    def set_step(self, step: int, now: float) -> None:
        """Say that step ``step`` began at ``now`` (unix seconds)."""
        self.step = step
        self.step_start = now
        self._lock = lock = (self._lock + 1) & 0xFFFFFFFF
        # The hottest write: only the fields that moved. Both pack calls belong together; another thread that comes in
        # between (a beat) leaves equal counters of its own, and the fields are whole either way.
        self._pack_step(self._map, _BODY_AT, lock, self.beat, step, now)
        self._pack_lock(self._map, _LOCK_AFTER_AT, lock)

    def set_phase(self, name: str, now: float, expect_s: float) -> None:
        """Say that phase ``name`` began at ``now``; ``expect_s`` is how long it may take (0: not declared)."""
        self.phase = name
        self._phase = _clip(name, _NAME_BYTES)
        self.phase_start = now
        self.expect_s = expect_s
        self.write()

    def set_segment(self, key: str) -> None:
        """Say to which segment the points from here on belong."""
        self._segment = _clip(key, _NAME_BYTES)
        self.write()

    def set_state(self, state: int, exception: str = "") -> None:
        """Say how the process leaves; ``exception`` is kept for the agent, who reads it after the death."""
        if exception:
            text = _clip(exception, EXCEPTION_BYTES)
            self._map[_EXCEPTION_AT : _EXCEPTION_AT + len(text)] = text
        self.write()
        _U32.pack_into(self._map, _STATE_AT, state)

    def close(self) -> None:
        """Unmap the file, which stays. Later writes go nowhere (a forked child, a phase that ends late)."""
        if isinstance(self._map, mmap.mmap):
            self._map.close()
            self._map = bytearray(SLOT_BYTES)


class SlotView:
    """One consistent reading of a slot. Times are unix seconds, ``state`` is a STATE_ number."""

    __slots__ = (
        "beat",
        "dropped",
        "exception",
        "expect_s",
        "last_seq",
        "phase",
        "phase_start",
        "pid",
        "rank",
        "segment_key",
        "state",
        "step",
        "step_start",
        "world_size",
    )

    def __init__(self, data: bytes) -> None:
        _, _, self.pid, self.rank, self.world_size, self.state = _HEAD.unpack_from(data)
        body = _BODY.unpack_from(data, _BODY_AT)
        _, self.beat, self.step, self.step_start, self.phase_start, self.expect_s = body[:6]
        self.last_seq, self.dropped = body[6:8]
        self.phase = _name(body[8])
        self.segment_key = _name(body[9])
        self.exception = _name(data[_EXCEPTION_AT : _EXCEPTION_AT + EXCEPTION_BYTES])


def read_slot(path: str) -> SlotView | None:
    """Return what the slot says, or None where there is no whole slot (not made yet, or not a slot).

    A slot of a process that was killed in the middle of a write is read as it lies: better an old step than none.
    """
    data = b""
    for _ in range(_READ_ATTEMPTS):
        try:
            with open(path, "rb") as file:
                data = file.read(SLOT_BYTES)
        except OSError:
            return None
        if len(data) < SLOT_BYTES or not data.startswith(MAGIC):
            return None
        if data[_BODY_AT : _BODY_AT + 4] == data[_LOCK_AFTER_AT : _LOCK_AFTER_AT + 4]:
            break
    return SlotView(data)


def _name(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode("utf-8", "replace")
