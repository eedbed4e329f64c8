"""Reads the records of a TensorBoard event file with their places, and checks their checksums.

The format (TFRecord): length u64, masked CRC-32C of the length u32, data, masked CRC-32C of the data u32,
little-endian. TensorBoard's own
loader ends silently at the first damage; this one names the place and continues at the next record that is whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stabilityplugins.importers.problems import Reading
from stabilityplugins.importers.rows.opened import open_bytes

__all__ = ["EventRecord", "crc32c", "is_event_file", "read_records"]

_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4
#: Bytes read at a time.
_CHUNK_BYTES = 4 << 20
#: Longest record, bytes; a greater length is damage.
MAX_RECORD_BYTES = 256 << 20
#: Longer data is not checked: it is a picture or a histogram, which is left out anyway.
MAX_CHECKED_BYTES = 1_024
_MASK = 0xA282EAD8


def _table() -> list[int]:
    """Return the CRC-32C (Castagnoli, reflected polynomial 0x82F63B78) of every byte."""
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _table()
_TABLE_ARRAY = np.array(_TABLE, np.uint32)


class EventRecord(NamedTuple):
    """One record. number: from 1 in its file, also counting damaged ones. offset: of its first byte."""

    number: int
    offset: int
    data: bytes


def crc32c(data: bytes) -> int:
    """Return the masked CRC-32C that the format uses."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def is_event_file(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` (12 bytes or more) holds such records."""
    return len(head) >= _HEADER.size and crc32c(head[:8]) == _HEADER.unpack_from(head)[1]


def read_records(path: Path, reading: Reading) -> Iterator[EventRecord | None]:
    """Yield the records that are whole; the others are noted. A record cut at the end of the file is not counted.

    None: of a file that is followed there is nothing more for now.
    """
    before, number, base = reading.bytes_read, 0, 0
    with open_bytes(path) as file:
        data, at = b"", 0
        while True:
            more = file.read(_CHUNK_BYTES)
            data, base, at = data[at:] + more, base + at, 0
            whole: list[tuple[int, int, bytes]] = []
            while (length := _length(data, at)) is not None:
                if length < 0:
                    found = _next_header(data, at + 1)
                    if found is None and (more or reading.following):
                        break
                    skipped = (found if found is not None else len(data)) - at
                    number += 1
                    reading.problem(
                        path, f"byte {base + at}", f"damaged; {skipped} bytes are skipped to the next whole record"
                    )
                    at += skipped
                    continue
                end = at + _HEADER.size + length + _FOOTER_BYTES
                if end > len(data):
                    break
                number += 1
                whole.append((number, base + at, data[at + _HEADER.size : end]))
                at = end
            reading.bytes_read = before + base + at
            yield from _checked(path, whole, reading)
            if not more and reading.following:
                yield None
            elif not more:
                break
        if at < len(data):
            reading.problem(
                path, f"byte {base + at}", f"the last record is cut: {len(data) - at} bytes of it are there"
            )
    reading.bytes_read = before + base + len(data)


# A file has few lengths: most of its records are scalars of a few tags.
_length_check = lru_cache(maxsize=4_096)(crc32c)


def _length(data: bytes, at: int) -> int | None:
    """Return the length of the data of the record at ``at``, -1 where its header is damaged, None for too few bytes."""
    if len(data) - at < _HEADER.size:
        return None
    length, check = _HEADER.unpack_from(data, at)
    if length > MAX_RECORD_BYTES or _length_check(data[at : at + 8]) != check:
        return -1
    return int(length)


def _next_header(data: bytes, start: int) -> int | None:
    """Return where the next header with a right checksum is: of random bytes, one in 4 billion passes."""
    count = len(data) - start - _HEADER.size + 1
    if count <= 0:
        return None
    cells = np.frombuffer(data, np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(cells[start:], _HEADER.size)[:count]
    right = np.flatnonzero(_masked(windows[:, :8]) == _words(windows[:, 8:]))
    return start + int(right[0]) if len(right) else None


def _checked(path: Path, records: list[tuple[int, int, bytes]], reading: Reading) -> Iterator[EventRecord]:
    """Yield the records whose data has the right checksum; records of one length are checked together."""
    by_length: dict[int, list[int]] = {}
    for at, record in enumerate(records):
        if len(record[2]) - _FOOTER_BYTES <= MAX_CHECKED_BYTES:
            by_length.setdefault(len(record[2]), []).append(at)
    bad: set[int] = set()
    for length, places in by_length.items():
        joined = np.frombuffer(b"".join([records[at][2] for at in places]), np.uint8).reshape(-1, length)
        wrong = _masked(joined[:, :-_FOOTER_BYTES]) != _words(joined[:, -_FOOTER_BYTES:])
        bad.update(places[i] for i in np.flatnonzero(wrong).tolist())
    for at, (number, offset, data) in enumerate(records):
        if at in bad:
            reading.problem(path, f"byte {offset}", f"record {number} has a wrong checksum")
        else:
            yield EventRecord(number, offset, data[:-_FOOTER_BYTES])


def _masked(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return the masked CRC-32C of each row."""
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in range(rows.shape[1]):
        crc = _TABLE_ARRAY[(crc ^ rows[:, column]) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    crc ^= np.uint32(0xFFFFFFFF)
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(_MASK)


def _words(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return four bytes a row as one number."""
    return np.ascontiguousarray(rows).view("<u4").reshape(-1)
