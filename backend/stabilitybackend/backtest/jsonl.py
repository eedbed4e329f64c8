"""Reads a log of JSON lines fast: whole columns at once, single lines only where something is odd.

The format is the one of docs/backtest.md: ``{"step": int, "<metric>": float, ...}`` a line, in the log's own order. It
differs from the importer's reader in speed, in reading ``.gz``, and in its clock: a log without times gets times that
follow from its steps alone, so that a backtest gives the same on every machine and day.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from stabilitybackend.backtest.columns import FINGERPRINT, LogRows, columns_of
from stabilitybackend.importers.jsonl import MAX_LINE_BYTES, STEP_KEYS
from stabilitybackend.importers.troubles import Reading, shown

__all__ = ["Lines", "read_rows"]

#: Bytes read at once: some thousand rows, enough that a call costs nothing beside them, and small in memory.
CHUNK_BYTES = 2 * 1024 * 1024
#: How Python's json writes the numbers that JSON does not have. Replaced as bytes, which is ten times as fast as a
#: pattern; if such a text is in a string the piece is no JSON any more, and is read line by line.
_BARE = tuple((colon + word, colon + b'"' + word + b'"') for colon in (b":", b": ")
              for word in (b"NaN", b"Infinity", b"-Infinity"))  # fmt: skip
_BOM = b"\xef\xbb\xbf"

#: A decoded line and its number in the file, from 1.
Line = tuple[int, dict[str, Any]]


class Lines:
    """The objects of one file, in pieces, with the numbers of their lines; what is no object is noted.

    Args:
        path: the file; gzip by its first bytes, whatever its name.
        reading: gets what can't be read.

    Attributes:
        count: lines seen so far.
    """

    def __init__(self, path: Path, reading: Reading) -> None:
        self.path = path
        self.reading = reading
        self.count = 0
        self._first_seen = False
        self._decode = msgspec.json.Decoder(dict[str, Any]).decode_lines
        self._decode_numbers = msgspec.json.Decoder(dict[str, float]).decode_lines
        #: Whether everything so far was a number, and in the newest piece: such rows become columns in one go.
        self.plain = True

    def is_export(self) -> bool:
        """Return whether the first line is that of our own export, which has its segments in keys of its own."""
        try:
            with _open(self.path) as file:
                first = msgspec.json.decode(file.readline(MAX_LINE_BYTES))
        except (OSError, EOFError, zlib.error, msgspec.MsgspecError, UnicodeDecodeError):
            return False  # what is wrong with it is reported when it is read
        return isinstance(first, dict) and isinstance(first.get("export"), dict)

    def pieces(self) -> Iterator[tuple[int, list[dict[str, Any]]] | list[Line]]:
        """Yield (number of the first line, objects without a gap), or single lines where not all of them are good.

        Raises:
            OSError, EOFError: the file can't be read on; gzip says so of a file that is cut.
        """
        with _open(self.path) as file:
            rest, broken = b"", None
            while True:
                new, broken = _read(file)
                self.reading.bytes_read += len(new)
                if not self._first_seen and new:
                    new, self._first_seen = new.removeprefix(_BOM), True
                data = rest + new
                if not new or broken:
                    break
                end = data.rfind(b"\n") + 1
                rest = data[end:]
                if len(rest) > MAX_LINE_BYTES:
                    rest = self._too_long(file)
                if end:
                    yield from self._decoded(data[:end])
            if broken:
                data = data[: data.rfind(b"\n") + 1]
            if data:
                yield from self._decoded(data)
            if broken:
                raise broken

    def _too_long(self, file: BinaryIO) -> bytes:
        """Pass over the rest of a line that is no row of metrics; return what is in its place, and what follows."""
        while True:
            new, broken = _read(file)
            end = new.find(b"\n") + 1
            if end or broken or not new:
                return b'"(a line of more than %d MiB)"\n' % (MAX_LINE_BYTES >> 20) + new[end:]

    def _decoded(self, chunk: bytes) -> Iterator[tuple[int, list[dict[str, Any]]] | list[Line]]:
        first, count = self.count + 1, chunk.count(b"\n") + (not chunk.endswith(b"\n"))
        rows = self._at_once(chunk)
        if rows is None and (b"NaN" in chunk or b"Infinity" in chunk):
            quoted = chunk
            for bare, text in _BARE:
                quoted = quoted.replace(bare, text)
            rows = self._at_once(quoted)
        self.count += count
        if rows is not None and len(rows) == count:
            yield first, rows
        else:  # a bad or an empty line, or two objects on one
            single = list(self._single(first, chunk))
            if single:
                yield single

    def _at_once(self, chunk: bytes) -> list[dict[str, Any]] | None:
        if self.plain:
            self.plain = FINGERPRINT.encode() not in chunk  # a whole number there may be too long for a float
        try:
            return self._decode_numbers(chunk) if self.plain else self._decode(chunk)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            again, self.plain = self.plain, False
        return self._at_once(chunk) if again else None

    def _single(self, first: int, chunk: bytes) -> Iterator[Line]:
        for number, line in enumerate(chunk.splitlines() if b"\r" in chunk else chunk.split(b"\n"), first):
            if not line.strip():
                continue
            try:
                row = self._one(line)
            except (ValueError, RecursionError):
                why = f"no JSON: {shown(line[:80].decode(errors='replace'))}"
                self.reading.trouble(self.path, f"line {number}", why)
                continue
            if isinstance(row, dict):
                yield number, row
            else:
                self.reading.trouble(self.path, f"line {number}", f"{shown(row)} is no JSON object")

    def _one(self, line: bytes) -> Any:
        """Return the content of one line. Raises ValueError or RecursionError where it is no JSON of Python."""
        try:
            return msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            row = json.loads(line)
            json.dumps(row, ensure_ascii=False).encode()  # half of a character pair is no text
            return row


def read_rows(lines: Lines, step_key: str | None = None) -> Iterator[LogRows]:
    """Yield the rows of a file as columns, consecutive rows with the same keys together.

    Args:
        step_key: name of the step's column; None: the first of STEP_KEYS that a row has, and then that one.
    """
    for piece in lines.pieces():
        if isinstance(piece, tuple):
            first, rows = piece
            plain = lines.plain
            numbered: Sequence[int] = range(first, first + len(rows))
        else:
            numbered, rows, plain = [number for number, _ in piece], [row for _, row in piece], False
        if step_key is None:
            step_key = next((key for row in rows[:100] for key in STEP_KEYS if key in row), None)
        at = 0
        for keys, group in groupby(map(tuple, rows)):
            count = sum(1 for _ in group)
            part = slice(at, at + count)
            yield from columns_of(lines, keys, numbered[part], rows[part], step_key or STEP_KEYS[0], plain=plain)
            at += count


def _open(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else path.open("rb")  # type: ignore[return-value]


def _read(file: BinaryIO) -> tuple[bytes, Exception | None]:
    """Return about CHUNK_BYTES, and why there is no more: a cut or damaged ``.gz`` still gives what is before."""
    parts: list[bytes] = []
    size = 0
    try:
        while size < CHUNK_BYTES and (part := file.read1(CHUNK_BYTES)):  # type: ignore[attr-defined]
            parts.append(part)
            size += len(part)
    except (OSError, EOFError, zlib.error) as error:
        return b"".join(parts), error
    return b"".join(parts), None
