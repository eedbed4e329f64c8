"""The slot's table of phases: how often a rank was in each, for how long, and how long at most."""

from __future__ import annotations

import math
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mmap import mmap

__all__ = ["MAX_PHASES", "OTHER", "PhaseEntry", "PhaseTable", "clip", "name_of", "read_phases"]

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

    def __init__(self, memory: mmap | bytearray) -> None:
        self._memory = memory
        self._entries: dict[bytes, PhaseEntry] = {}
        #: Label and entry of the names seen, for the phase's hot path. Bounded by MAX_NAMES.
        self.known: dict[str, tuple[bytes, PhaseEntry]] = {}
        self._pack_into = _NUMBERS.pack_into

    def find(self, name: str) -> tuple[bytes, PhaseEntry]:
        """Return the label and the entry of a phase that is not known yet; beyond the table's end that of OTHER."""
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
        """Write to other memory from now on: the slot's file belongs to somebody else, or is closed."""
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
