"""The slot: a 4,096-byte memory-mapped file with the state of a rank, readable after its death.

The layout is in ``docs/wire.md``; ``tests/client/golden/slot.bin`` pins the bytes. The writer packs all moving fields
with one C call (atomic among the threads of the process); a counter before and after shows another process a torn
read. A reader gets a :class:`SlotView`, or a text with the reason of a failure.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from _thread import get_ident, get_native_id

from stabilityclient.arguments import MAX_STEP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stabilityclient.rank_state.phase import Phase

__all__ = [
    "CLAIM_FIRST",
    "CLAIM_INIT",
    "CLAIM_STEPS",
    "FLAG_FATAL",
    "FLAG_PENDING",
    "FLAG_RECORDER",
    "MAX_EXPECT_S",
    "MAX_PHASES",
    "MAX_TIME_S",
    "OTHER",
    "SLOT_BYTES",
    "STATE_EXCEPTION",
    "STATE_FINISHED",
    "STATE_LEFT",
    "STATE_NAMES",
    "STATE_RUNNING",
    "PhaseEntry",
    "PhaseTable",
    "Slot",
    "SlotView",
    "clip",
    "name_of",
    "read_phases",
    "read_slot",
]

#: Phases with an entry of their own, less one: the last entry is OTHER, in which all further names are counted.
MAX_PHASES = 24
OTHER = "other"
#: Names whose entry is remembered. A script that makes up names (``f"step {n}"``) must not fill the memory.
MAX_NAMES = 64
#: Longest name of a phase in the slot's moving part, bytes of UTF-8, and in the table.
LABEL_BYTES = 64
NAME_BYTES = 32

_TABLE_AT = 1024
_ENTRY_BYTES = 64
# count, total seconds, longest seconds, count again: written last, so that a half-written entry is recognised
_NUMBERS = struct.Struct("<QddQ")


def clip(text: str, size: int) -> bytes:
    """Return at most ``size`` bytes of UTF-8, cut between characters."""
    data = text.encode("utf-8", "replace")
    return data if len(data) <= size else data[:size].decode("utf-8", "ignore").encode()


def name_of(data: bytes) -> str:
    """Return the text of a zero-filled field."""
    return data.split(b"\0", 1)[0].decode("utf-8", "replace")


class PhaseEntry:
    """Own time of one phase. ``at`` is where its numbers lie in the slot; times are seconds."""

    __slots__ = ("at", "count", "longest", "total")

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0
        self.total = 0.0
        self.longest = 0.0


class PhaseTable:
    """Writer of the table in the ``memory`` of a mapped slot."""

    def __init__(self, memory: mmap.mmap | bytearray) -> None:
        self._memory = memory
        self._entries: dict[bytes, PhaseEntry] = {}
        #: Label and entry of the names seen, for the phase's hot path. Bounded by MAX_NAMES.
        self.known: dict[str, tuple[bytes, PhaseEntry]] = {}
        self._pack_into = _NUMBERS.pack_into

    def find(self, name: str) -> tuple[bytes, PhaseEntry]:
        """Return the label and the entry of a phase that is still unknown; beyond the table's end that of OTHER."""
        key = clip(name, NAME_BYTES)
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= MAX_PHASES - 1:
                key = OTHER.encode()
                entry = self._entries.get(key)
            if entry is None:
                at = _TABLE_AT + _ENTRY_BYTES * len(self._entries)
                self._memory[at : at + NAME_BYTES] = key.ljust(NAME_BYTES, b"\0")
                entry = self._entries[key] = PhaseEntry(at + NAME_BYTES)
        found = (clip(name, LABEL_BYTES), entry)
        if len(self.known) < MAX_NAMES:
            self.known[name] = found
        return found

    def add(self, entry: PhaseEntry, own_s: float) -> None:
        """Count one stay of ``own_s`` seconds."""
        entry.count = count = entry.count + 1
        entry.total = total = entry.total + own_s
        if own_s > entry.longest:
            entry.longest = own_s
        self._pack_into(self._memory, entry.at, count, total, entry.longest, count)

    def move_to(self, memory: bytearray) -> None:
        """Write to other memory from now on: the slot's file belongs to the parent, or is closed."""
        self._memory = memory


def read_phases(slot: bytes) -> dict[str, tuple[int, float, float]]:
    """Return name -> (count, total own seconds, longest own seconds) of a slot; half-written entries are left out."""
    phases = {}
    for at in range(_TABLE_AT, _TABLE_AT + MAX_PHASES * _ENTRY_BYTES, _ENTRY_BYTES):
        count, total, longest, again = _NUMBERS.unpack_from(slot, at + NAME_BYTES)
        if not slot[at] and not count:
            break  # entries are filled in order
        name = name_of(slot[at : at + NAME_BYTES])
        if name and count == again and 0 <= longest <= total < math.inf:
            phases[name] = (count, total, longest)
    return phases


SLOT_BYTES = 4096
SLOT_VERSION = 2
MAGIC = b"SBSLOT01"
STATE_RUNNING = 0
STATE_FINISHED = 1
STATE_LEFT = 2
STATE_EXCEPTION = 3
#: Names of the states in Health messages, by number.
STATE_NAMES = ("running", "finished", "left", "exception")
#: Flags: fatal errors leave their trace in ``stacks``; PyTorch's Flight Recorder was seen; pending calls are asked for.
FLAG_FATAL = 1
FLAG_RECORDER = 2
FLAG_PENDING = 4
#: Claims to be the thread of the training loop, weakest first: a thread that enters a phase, the thread of ``init()``
#: when it enters one, the thread that iterates over ``steps()``.
CLAIM_FIRST = 1
CLAIM_INIT = 2
CLAIM_STEPS = 3
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
_PROBES_AT = 768
# pending calls run, dump signal, flags, probe answered, native id of the loop's thread
_PROBES = struct.Struct("<QiIQI")
_PAUSED_AT = 800
_PAUSED = struct.Struct("<d")
_LOSSES_AT = 808
# things refused, errno of the last record that found no room; behind them, of a child's own hand: whether one logged
_LOSSES = struct.Struct("<QI")
_FORKED_AT = _LOSSES_AT + _LOSSES.size
_WAITS_AT = 824
# steps looked at, sum of their shares of waiting, sum of the squares of these
_WAITS = struct.Struct("<Qdd")
_U32 = struct.Struct("<I")
_NAME_BYTES = 64
#: Reads of a slot that is being written before the last copy is given up on.
_READ_ATTEMPTS = 8
#: Unix seconds beyond which a time is no time (year 5138).
MAX_TIME_S = 1e11
#: Longest declared phase that can be meant, seconds (3,000 years).
MAX_EXPECT_S = 1e11


class Slot:
    """Writer of one slot file.

    Args:
        path: file to make; must not be there yet.
        pid: of this process. rank, world_size: its place in the job.
        started: unix seconds, the start of the first phase.

    Attributes:
        phases: the table of own times. top: innermost phase of the loop's thread, None outside of any.
        owner: ident of the thread that runs the loop, 0 before a claim.
        pending, dump_signal, flags, probe: see docs/wire.md; ``write_probes`` publishes them.

    Raises:
        OSError: the file can't be made (full disk, no permission).
    """

    def __init__(self, path: str, *, pid: int, rank: int, world_size: int, started: float) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, SLOT_BYTES)  # so that a full disk is an error here, never a SIGBUS later
            self._map: mmap.mmap | bytearray = mmap.mmap(fd, SLOT_BYTES)
        finally:
            os.close(fd)
        self.beat = 0
        self.step = -1
        self.step_start = 0.0
        self.phase_start = started
        self.expect_s = 0.0
        self.last_seq = 0
        self.dropped = 0
        self.pending = 0
        self.dump_signal = 0
        self.flags = 0
        self.probe = 0
        self.waits = (0, 0.0, 0.0)
        self.top: Phase | None = None
        self.owner = 0
        self._path = path
        self._claim = 0
        self._made_by = get_ident()
        self._thread = get_native_id()
        self._phase = b""
        self._segment = b""
        self._lock = 0
        self._pack_into = _BODY.pack_into
        self._pack_step = _STEP.pack_into
        self._pack_lock = _U32.pack_into
        _HEAD.pack_into(self._map, 0, MAGIC, SLOT_VERSION, pid, rank, world_size, STATE_RUNNING)
        self.phases = PhaseTable(self._map)
        self.write_probes()
        self.write()

    def logged(self, step: int, when: float) -> None:
        """Take the newest step of log(), and its unix seconds, for the next :meth:`write`."""
        self.step = step
        self.step_start = when

    def count_beat(self) -> None:
        """Count a beat of the heartbeat thread, for the next :meth:`write`."""
        self.beat += 1

    def publish(self, last_seq: int, dropped: int) -> None:
        """Publish all moving fields with the newest numbers of the spool."""
        self.last_seq = last_seq
        self.dropped = dropped
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
        """Publish that step ``step`` began at ``now`` (unix seconds)."""
        self.step = step
        self.step_start = now
        self._lock = lock = (self._lock + 1) & 0xFFFFFFFF
        # The hottest write: only the fields that moved. Another thread may come in between (a beat) and leave a counter
        # of its own before and after: the newest one is the one to close with.
        self._pack_step(self._map, _BODY_AT, lock, self.beat, step, now)
        self._pack_lock(self._map, _LOCK_AFTER_AT, self._lock)

    def show(self, label: bytes, now: float, expect_s: float) -> None:
        """Publish that the phase with this label (UTF-8, 64 bytes at most) began at ``now``.

        Args:
            expect_s: how long it may take from ``now`` on, seconds (0: not declared).
        """
        self._phase = label
        self.phase_start = now
        self.expect_s = expect_s
        # The same as write(), whose call would be a tenth of the phase's cost.
        self._lock = lock = (self._lock + 1) & 0xFFFFFFFF
        self._pack_into(
            self._map,
            _BODY_AT,
            lock,
            self.beat,
            self.step,
            self.step_start,
            now,
            expect_s,
            self.last_seq,
            self.dropped,
            label,
            self._segment,
            lock,
        )

    def claim(self, strength: int) -> bool:
        """Note that this thread runs the training loop; a stronger claim (CLAIM_) wins, among equals the first.

        Returns:
            Whether the loop's thread is this one. Only its phases are shown as the rank's: a loader's or a
            checkpoint's own thread would hide those of training.
        """
        me = get_ident()
        if strength == CLAIM_FIRST and me == self._made_by:
            strength = CLAIM_INIT
        if strength > self._claim or (strength == CLAIM_STEPS and me != self.owner):
            self._claim = strength
            if me != self.owner:
                self.owner = me
                self.top = None
                self._thread = get_native_id()
                self.write_probes()
        return me == self.owner

    def flag(self, flags: int) -> None:
        """Add ``FLAG_`` bits; published with the next :meth:`write_probes`."""
        self.flags |= flags

    def set_dump_signal(self, number: int) -> None:
        """Set the number of the signal that asks for stacks, 0 for none; published as flags are."""
        self.dump_signal = number

    def answered(self, pending: int) -> None:
        """Publish how many pending calls the main thread has run."""
        self.pending = pending
        self.write_probes()

    def probed(self, number: int) -> None:
        """Publish the number of the newest probe that was answered."""
        self.probe = number
        self.write_probes()

    def write_probes(self) -> None:
        """Publish pending calls, dump signal, flags and probe."""
        _PROBES.pack_into(self._map, _PROBES_AT, self.pending, self.dump_signal, self.flags, self.probe, self._thread)

    def write_losses(self, refused: int, no_room: int) -> None:
        """Publish how many things were refused, and the errno of the last record that found no room (0: none)."""
        _LOSSES.pack_into(self._map, _LOSSES_AT, refused, no_room)

    def add_waits(self, share: float) -> None:
        """Count a step in which this share of the looks found the loop waiting for other ranks."""
        steps, waited, squares = self.waits
        self.waits = (steps + 1, waited + share, squares + share * share)
        _WAITS.pack_into(self._map, _WAITS_AT, *self.waits)

    def mark_forked(self) -> None:
        """Note, from a forked child, that it logs: the file itself is written, for it has no map of its own.

        Raises:
            OSError: the file is gone.
        """
        fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(fd, _U32.pack(1), _FORKED_AT)
        finally:
            os.close(fd)

    def pause(self, now: float) -> None:
        """Note that this rank rolls back on command since ``now`` (unix seconds): lasts until its next step."""
        _PAUSED.pack_into(self._map, _PAUSED_AT, now)

    def set_segment(self, key: str) -> None:
        """Set the segment of the points from here on."""
        self._segment = clip(key, _NAME_BYTES)
        self.write()

    def set_state(self, state: int, exception: str = "") -> None:
        """Note how the process leaves; ``exception`` is kept for the agent, which reads it after the death."""
        if exception:
            text = clip(exception, EXCEPTION_BYTES)
            self._map[_EXCEPTION_AT : _EXCEPTION_AT + len(text)] = text
        self.write()
        _U32.pack_into(self._map, _STATE_AT, state)

    def close(self) -> None:
        """Unmap the file, which stays. Later writes go nowhere (a forked child, a phase that ends late)."""
        if isinstance(self._map, mmap.mmap):
            self._map.close()
            self._map = bytearray(SLOT_BYTES)
            self.phases.move_to(self._map)


class SlotView:
    """One reading of a slot. Times are unix seconds, ``state`` is a STATE_ number.

    Attributes:
        torn: the process was killed or stopped in the middle of a write: fields of two writes are mixed.
        pending: pending calls that the main thread has run, None without ctypes.
        phases: own time of each phase: name -> (count, total seconds, longest seconds).
        thread: native id of the thread that runs the loop.
        paused: since when it rolls back on command, 0.0 where it does not.
        refused: things that the job gave and that could not be stored. no_room: errno of the last record that found no
            room, 0 for none. forked: a forked child logged, which records nothing.
        waits: steps looked at, the sum of the shares of each in which its loop waited for other ranks, and of their
            squares; zeros without samples.
    """

    def __init__(self, data: bytes, torn: bool = False) -> None:
        _, _, self.pid, self.rank, self.world_size, self.state = _HEAD.unpack_from(data)
        body = _BODY.unpack_from(data, _BODY_AT)
        _, self.beat, self.step, self.step_start, self.phase_start, self.expect_s = body[:6]
        self.last_seq, self.dropped = body[6:8]
        self.phase = name_of(body[8])
        self.segment_key = name_of(body[9])
        self.exception = name_of(data[_EXCEPTION_AT : _EXCEPTION_AT + EXCEPTION_BYTES])
        self.torn = torn
        pending, self.dump_signal, self.flags, self.probe, self.thread = _PROBES.unpack_from(data, _PROBES_AT)
        self.pending = pending if self.flags & FLAG_PENDING else None
        (paused,) = _PAUSED.unpack_from(data, _PAUSED_AT)
        self.paused = paused if self.step_start <= paused < MAX_TIME_S else 0.0
        self.refused, self.no_room = _LOSSES.unpack_from(data, _LOSSES_AT)
        self.forked = _U32.unpack_from(data, _FORKED_AT)[0] != 0
        steps, waited, squares = _WAITS.unpack_from(data, _WAITS_AT)
        self.waits = (steps, waited, squares) if 0 <= squares <= waited <= steps else (0, 0.0, 0.0)
        self.phases = read_phases(data)


def read_slot(path: str) -> SlotView | str:
    """Return the content of the slot, or why it can't be read.

    A slot of a process that was killed in the middle of a write is read as it lies, with ``torn`` set: better an old
    step than none. Reads at most :data:`_READ_ATTEMPTS` times and never waits.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO in its place would make us wait
    except FileNotFoundError:
        return "there is no slot file (yet)"
    except OSError as error:
        return f"the slot file can't be opened: {error.strerror or error}"
    try:
        data, torn = _read(fd)
    except OSError as error:
        return f"the slot file can't be read: {error.strerror or error}"
    finally:
        os.close(fd)
    if len(data) < SLOT_BYTES:
        return f"the slot file has {len(data)} bytes, expected {SLOT_BYTES}: it was cut"
    if not data.startswith(MAGIC):
        return "the slot file does not begin as one: something else wrote there"
    version = _U32.unpack_from(data, len(MAGIC))[0]
    if version != SLOT_VERSION:
        other = "agent and job use different stabilityclient versions"
        return f"the slot is of version {version}, expected {SLOT_VERSION}: {other}"
    view = SlotView(data, torn)
    wrong = _nonsense(view)
    return view if wrong is None else f"the slot says {wrong}: it is damaged"


def _read(fd: int) -> tuple[bytes, bool]:
    """Return one copy of the file and whether it is torn.

    The counter at the end is read before the copy and the one at the beginning after it: when they agree, no write
    began or ended in between.
    """
    data = b""
    for _ in range(_READ_ATTEMPTS):
        after = os.pread(fd, 4, _LOCK_AFTER_AT)
        data = os.pread(fd, SLOT_BYTES, 0)
        if after == os.pread(fd, 4, _BODY_AT):
            return data, False
    return data, data[_BODY_AT : _BODY_AT + 4] != data[_LOCK_AFTER_AT : _LOCK_AFTER_AT + 4]


def _nonsense(view: SlotView) -> str | None:
    if view.rank < 0 or view.world_size < 1:
        return f"rank {view.rank} of {view.world_size}"
    if view.state >= len(STATE_NAMES):
        return f"state {view.state}"
    if not -1 <= view.step <= MAX_STEP:
        return f"step {view.step}"
    if not (abs(view.step_start) < MAX_TIME_S and abs(view.phase_start) < MAX_TIME_S):
        return f"that a step began at {view.step_start} and a phase at {view.phase_start}"
    if not 0 <= view.expect_s < MAX_EXPECT_S:
        return f"that a phase may take {view.expect_s} s"
    return None
