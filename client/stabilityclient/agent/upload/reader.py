"""Reads one source's chunks, live or afterwards, and never trusts a record whose checksum is wrong.

An unreadable part is skipped, counted, and takes its numbers with it as ``Lost``, so that the numbers of all later
records stay true.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from zlib import adler32

from stabilityclient.agent.upload.records import Lost, Record, SpooledEvent, SpooledRow
from stabilityclient.spool import (
    CHUNK_BYTES,
    CHUNK_HEADER,
    CHUNK_HEADER_BYTES,
    END_OF_CHUNK,
    RECORD_EVENT,
    RECORD_ROW,
    RECORD_SCHEMA,
    SPOOL_MAGIC,
    SPOOL_VERSION,
    chunk_name,
)

__all__ = ["SpoolReader", "chunk_numbers", "first_seq"]

#: How long a record may look wrong before it counts as damaged, seconds. On machines that reorder writes a reader can
#: see a length before the bytes; a writer is done with both within microseconds.
GAP_WAIT_S = 0.2
#: Seconds between two searches for a whole record behind a damaged one: a search reads each eighth byte of the
#: chunk.
SCAN_S = 2.0
#: Seconds between two questions to the disk whether a chunk follows one that ends without its end mark: rare, and with
#: 8 ranks four hundred empty reads a second end there.
NEXT_CHUNK_S = 0.2

_HEAD = struct.Struct("<II")
_U32 = struct.Struct("<I")
#: Length, checksum, type with its padding, and set id: how a row lies in its chunk.
_ROW_HEAD = struct.Struct("<IIII")
#: Step and time of a row begin here, behind type, padding and set id.
_ROW_AT = 8

#: A set of metrics: names, bytes of a row's payload, checksum of the start of each payload, bytes of the record.
_Set = tuple[tuple[str, ...], int, int, int]


class SpoolReader:
    """Reads records in order, from any number on.

    Args:
        folder: the source's folder.
        gap_wait_s: see GAP_WAIT_S; 0 for a source without a writer.

    Attributes:
        next_seq: number of the record that comes next.
        bad_records: records that were skipped because they were damaged, since the start.
        in_doubt: the last read stopped, but not surely at the end: at a record that looks wrong and may still be in
            the making, or where the next chunk was not searched.
    """

    def __init__(self, folder: str, *, gap_wait_s: float = GAP_WAIT_S) -> None:
        self._folder = folder
        self._gap_wait_s = gap_wait_s
        self._map: mmap.mmap | None = None
        self._chunk = 0
        self._pos = 0
        self._sets: dict[int, _Set] = {}
        self._chunk_first = 1
        self._pushed: Lost | None = None
        self._doubt: tuple[int, int, float] | None = None
        self._scanned: tuple[int, int, float] | None = None
        self._counted: set[tuple[int, int]] = set()
        self._next_chunk_at = float("-inf")
        self.next_seq = 1
        self.bad_records = 0
        self.in_doubt = False

    def seek(self, seq: int) -> None:
        """Go to record ``seq``: ``read`` then begins with it, a Lost that covers it, or [] when it is not there."""
        numbers = chunk_numbers(self._folder)
        self.close()
        self._chunk = 0
        self.next_seq = seq
        chosen = None
        for number in numbers:
            first = first_seq(self._folder, number)
            if first is None:
                continue
            if chosen is None or first <= seq:
                chosen = number
            if first > seq:
                break
        first = None if chosen is None else self._open(chosen)
        if first is None:
            return
        self.next_seq = first
        if first > seq:
            self._pushed = Lost(seq, first - 1, "removed here before the server lost it")
            return
        while self.next_seq < seq:
            record = self._next()
            if record is None:
                break
            if isinstance(record, Lost) and record.last_seq >= seq:
                # Part of a gap was reported before: the rest is still to be reported.
                self._pushed = Lost(seq, record.last_seq, record.reason)
                break

    def read(self, max_records: int, max_bytes: int) -> list[Record]:
        """Return the next records, [] when there are none now.

        Args:
            max_records: at most so many. max_bytes: stop after about so many bytes of payload.
        """
        found: list[Record] = []
        size = 0
        self.in_doubt = False
        if self._pushed is not None:
            found.append(self._pushed)
            self._pushed = None
        while len(found) < max_records and size < max_bytes:
            taken = self._take_rows(found, max_records, max_bytes - size)
            if taken:
                size += taken
                continue
            chunk, before = self._chunk, self._pos
            record = self._next()
            if record is None:
                break
            size += self._pos - (before if self._chunk == chunk else CHUNK_HEADER_BYTES)
            last = found[-1] if found else None
            if isinstance(record, Lost) and isinstance(last, Lost):
                found[-1] = Lost(last.seq, record.last_seq, last.reason)
            else:
                found.append(record)
        return found

    @property
    def at_rest(self) -> bool:
        """Whether a read now would surely give nothing; one read of mapped memory."""
        return (
            self._map is not None
            and self._pushed is None
            and self._pos + 8 <= CHUNK_BYTES
            and _HEAD.unpack_from(self._map, self._pos) == (0, 0)
            and time.monotonic() < self._next_chunk_at
        )

    def close(self) -> None:
        """Unmap."""
        if self._map is not None:
            self._map.close()
        self._map = self._pushed = None
        self._sets.clear()

    def _take_rows(self, found: list[Record], max_records: int, max_bytes: int) -> int:
        """Append rows to ``found`` as long as they are whole and of sets in use; return their bytes in the chunk.

        Nearly all records are such. All others are left to ``_next``.
        """
        chunk, sets, seq = self._map, self._sets, self.next_seq
        if chunk is None or not sets:
            return 0
        begin = pos = self._pos
        until, head, row = min(begin + max_bytes, CHUNK_BYTES - _ROW_HEAD.size), _ROW_HEAD.unpack_from, tuple.__new__
        for number in range(seq, seq + max_records - len(found)):
            if pos >= until:
                break
            length, check, kind, set_id = head(chunk, pos)
            if kind != RECORD_ROW or set_id not in sets:
                break
            names, payload_bytes, prefix, record_bytes = sets[set_id]
            if length != payload_bytes:
                break
            data = chunk[pos + _ROW_HEAD.size : pos + 8 + length]
            if adler32(data, prefix) != check:
                break
            found.append(row(SpooledRow, (number, names, data)))
            pos += record_bytes
            seq = number + 1
        self._pos, self.next_seq = pos, seq
        return pos - begin

    # --- one record ----------------------------------------------------------------------------------------------

    def _next(self) -> Record | None:
        """Return the next numbered record, None when there is none now."""
        while True:
            chunk = self._map
            pos = self._pos
            length, check = self._head()
            if chunk is None or length == END_OF_CHUNK:
                if not self._enter_chunk(self._chunk + 1):
                    return None
                gap = self._gap()
                if gap is not None:
                    return gap
                continue
            if length == 0 and check == 0 and not self._has_next_now():
                return None
            payload = chunk[pos + 8 : pos + 8 + length] if pos + 8 + length <= CHUNK_BYTES else b""
            if not payload or adler32(payload) != check:
                lost = self._repair(length)
                if lost is False:
                    return None
                if isinstance(lost, Lost):
                    return lost
                continue
            self._pos = pos + ((length + 15) & ~7)
            record = self._decoded(payload)
            if record is not None:
                return record

    def _head(self) -> tuple[int, int]:
        """Return length and checksum of the record at the position, END_OF_CHUNK at the end of the chunk."""
        if self._map is None or self._pos + 8 > CHUNK_BYTES:
            return END_OF_CHUNK, 0
        length, check = _HEAD.unpack_from(self._map, self._pos)
        return length, check

    def _decoded(self, payload: bytes) -> Record | None:
        """Return a numbered record; None for a schema, which is taken, and for a record of another kind."""
        kind = payload[0]
        if kind == RECORD_ROW:
            return self._row(payload)
        if kind == RECORD_EVENT:
            return self._event(payload)
        if kind == RECORD_SCHEMA:
            self._schema(payload)
        # Another kind may be numbered or not; the header of the next chunk decides.
        return None

    def _schema(self, payload: bytes) -> None:
        try:
            names = tuple(str(name) for name in json.loads(payload[8:]))
            set_id = _U32.unpack_from(payload, 4)[0]
            length = _ROW_AT + 16 + 8 * len(names)
            prefix = adler32(struct.pack("<II", RECORD_ROW, set_id))
            self._sets[set_id] = names, length, prefix, (length + 15) & ~7
        except (ValueError, TypeError, RecursionError, struct.error):
            return  # a foreign writer's: its rows become Lost one by one

    def _row(self, payload: bytes) -> Record:
        seq = self._take()
        known = self._sets.get(_U32.unpack_from(payload, 4)[0]) if len(payload) >= _ROW_AT else None
        if known is None or len(payload) != known[1]:
            return Lost(seq, seq, "its metric names could not be read")
        return SpooledRow(seq, known[0], payload[_ROW_AT:])

    def _event(self, payload: bytes) -> Record:
        seq = self._take()
        try:
            event = json.loads(payload[4:])
            step = event.get("step")
            return SpooledEvent(
                seq, str(event["type"]), float(event["time"]), None if step is None else int(step), dict(event["data"])
            )
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError, AttributeError) as error:
            return Lost(seq, seq, f"not an event: {error}")

    def _take(self) -> int:
        seq = self.next_seq
        self.next_seq = seq + 1
        return seq

    def _gap(self) -> Lost | None:
        """Return the gap between the last record and the chunk that was just entered."""
        first = self._chunk_first
        if first <= self.next_seq:
            # Never above: an unreadable stretch counts as nothing until a header gives its size.
            return None
        lost = Lost(self.next_seq, first - 1, "damaged or no longer on disk")
        self.next_seq = first
        return lost

    # --- damage --------------------------------------------------------------------------------------------------

    def _repair(self, length: int) -> Lost | bool:
        """Step over a damaged record. Lost: its numbers; True: continued; False: wait, it may still be written."""
        assert self._map is not None
        place = (self._chunk, self._pos)
        now = time.monotonic()
        if self._doubt is None or self._doubt[:2] != place:
            self._doubt = (*place, now)
        if now - self._doubt[2] < self._gap_wait_s:
            self.in_doubt = True
            return False
        following = self._pos + ((length + 15) & ~7)
        fits = length > 0 and following + 8 <= CHUNK_BYTES
        if not (fits and (_U32.unpack_from(self._map, following)[0] == END_OF_CHUNK or self._valid(following))):
            scanned = self._scanned
            if scanned is not None and scanned[:2] == place and now - scanned[2] < SCAN_S and not self._has_next():
                return False
            self._scanned = (*place, now)
            # Records are 8-byte aligned.
            found = next((at for at in range(self._pos + 8, CHUNK_BYTES - 16, 8) if self._valid(at)), None)
            if found is None and not self._has_next():
                if fits and self._map[following : following + 8] == bytes(8):
                    return self._step_over(following)
                return False  # the cut record of a killed process
            if found != following:
                # How many records the stretch held is unknown. It is counted as none until a header gives a number.
                self._count_bad(place)
                self._pos = CHUNK_BYTES if found is None else found
                return True
        return self._step_over(following)

    def _step_over(self, following: int) -> Lost | bool:
        """Skip one damaged record whose length holds."""
        assert self._map is not None
        self._count_bad((self._chunk, self._pos))
        record = self._map[self._pos + 8 : following].rstrip(b"\0")
        # A flipped bit may be in any of the three signs of a schema, not in two of them.
        signs = (record[:1] == bytes([RECORD_SCHEMA]), record[8:10] == b'["', record[-2:] == b'"]')
        self._pos = following
        if sum(signs) >= 2:
            return True  # not numbered; the rows of this set become Lost one by one
        seq = self._take()
        return Lost(seq, seq, "checksum is wrong")

    def _count_bad(self, place: tuple[int, int]) -> None:
        if place not in self._counted:  # a rewind meets the same damage again
            self._counted.add(place)
            self.bad_records += 1

    def _valid(self, pos: int) -> bool:
        assert self._map is not None
        length, check = _HEAD.unpack_from(self._map, pos)
        if not 8 <= length <= CHUNK_BYTES - pos - 8 or self._map[pos + 8] not in (1, 2, 3):
            return False
        return bool(adler32(self._map[pos + 8 : pos + 8 + length]) == check)

    # --- chunks --------------------------------------------------------------------------------------------------

    def _has_next_now(self) -> bool:
        """Like ``_has_next``, but asks the disk at most each NEXT_CHUNK_S; False in doubt is no end of the source."""
        now = time.monotonic()
        if now < self._next_chunk_at:
            self.in_doubt = True
            return False
        self._next_chunk_at = now + min(NEXT_CHUNK_S, self._gap_wait_s)
        return self._has_next()

    def _has_next(self) -> bool:
        return os.path.exists(os.path.join(self._folder, chunk_name(self._chunk + 1)))

    def _enter_chunk(self, number: int) -> bool:
        """Go to chunk ``number``, or to the oldest one after it where older ones were removed."""
        if self._open(number) is not None:
            return True
        later = [other for other in chunk_numbers(self._folder) if other > number]
        return bool(later) and self._open(later[0]) is not None

    def _open(self, number: int) -> int | None:
        """Map a chunk and return the number of its first record; None where it is not there or is no chunk."""
        first = first_seq(self._folder, number)
        if first is None:
            return None
        with open(os.path.join(self._folder, chunk_name(number)), "rb") as file:
            fresh = mmap.mmap(file.fileno(), CHUNK_BYTES, prot=mmap.PROT_READ)
        self.close()
        self._map = fresh
        self._next_chunk_at = float("-inf")
        self._chunk = number
        self._chunk_first = first
        self._pos = CHUNK_HEADER_BYTES
        return first


def chunk_numbers(folder: str) -> list[int]:
    """Return the numbers of the chunks in a source's folder, in order; none where it can't be read."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(name[:-6]) for name in names if name.endswith(".spool") and name[:-6].isdigit())


def first_seq(folder: str, number: int) -> int | None:
    """Return the number of a chunk's first record, None where it is not there or is no chunk."""
    try:
        with open(os.path.join(folder, chunk_name(number)), "rb") as file:
            head = file.read(CHUNK_HEADER.size)
            size = os.fstat(file.fileno()).st_size
    except OSError:  # gone, not readable, or something else lies there
        return None
    if len(head) < CHUNK_HEADER.size or size < CHUNK_BYTES:
        return None
    magic, version, _, first = CHUNK_HEADER.unpack(head)
    return first if magic == SPOOL_MAGIC and version == SPOOL_VERSION else None
