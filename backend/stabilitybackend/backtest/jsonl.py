"""Reads a log of JSON lines fast: whole columns at once, single lines only where something is odd.

The format is the one of docs/backtest.md: ``{"step": int, "<metric>": float, ...}`` a line, in the log's own order. It
differs from the importer's reader in speed, in reading ``.gz``, and in its clock: a log without times gets times that
follow from its steps alone, so that a backtest gives the same on every machine and day.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from stabilitybackend.backtest.columns import Rows, columns_of
from stabilitybackend.importers.troubles import Reading, shown

__all__ = ["MAX_LINE_BYTES", "STEP_KEYS", "Lines", "read_rows"]

#: Bytes read at once: some thousand rows, enough that a call costs nothing beside them, and small in memory.
CHUNK_BYTES = 2 * 1024 * 1024
#: Longest line, bytes: more is no row of metrics, and must not fill the memory.
MAX_LINE_BYTES = 16 * 1024 * 1024
#: Keys that hold the step, where the user names none: the first one of them that the file has in a row.
STEP_KEYS = ("step", "_step", "global_step", "iteration")
#: What json writes for numbers that JSON does not have, where a value stands.
_BARE = re.compile(rb"(?<=[:,\[ \t])(-?Infinity|NaN)(?=[,}\] \t\r\n])")
_BOM = b"\xef\xbb\xbf"

#: A decoded line and its number in the file, from 1.
Line = tuple[int, dict[str, Any]]


class Lines:
    """The objects of one file, in pieces, with the numbers of their lines; what is no object is noted.

    Args:
        path: the file; gzip by its first bytes, whatever its name.
        reading: gets what can't be read.

    Attributes:
        count: lines seen so far. objects: those of them that were read.
    """

    def __init__(self, path: Path, reading: Reading) -> None:
        self.path = path
        self.reading = reading
        self.count = 0
        self.objects = 0
        self._decode = msgspec.json.Decoder(dict[str, Any]).decode_lines

    def pieces(self) -> Iterator[tuple[int, list[dict[str, Any]]] | list[Line]]:
        """Yield (number of the first line, objects without a gap), or single lines where not all of them are good.

        Raises:
            OSError, EOFError: the file can't be read on; gzip says so of a file that is cut.
        """
        with _open(self.path) as file:
            first = True
            while chunk := self._chunk(file):
                if first:
                    chunk, first = chunk.removeprefix(_BOM), False
                yield from self._decoded(chunk)

    def _chunk(self, file: BinaryIO) -> bytes:
        """Return about CHUNK_BYTES of whole lines; the last one of the file may have no end."""
        chunk = file.read(CHUNK_BYTES)
        if chunk and not chunk.endswith(b"\n"):
            chunk += file.readline(MAX_LINE_BYTES)
            if not chunk.endswith(b"\n") and len(chunk) >= MAX_LINE_BYTES:
                begin = chunk.rfind(b"\n") + 1
                while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                    pass
                chunk = chunk[:begin] + b'"(a line of more than %d MiB)"\n' % (MAX_LINE_BYTES >> 20)
        self.reading.bytes_read += len(chunk)
        return chunk

    def _decoded(self, chunk: bytes) -> Iterator[tuple[int, list[dict[str, Any]]] | list[Line]]:
        first, count = self.count + 1, chunk.count(b"\n") + (not chunk.endswith(b"\n"))
        rows = self._at_once(chunk)
        if rows is None and (b"NaN" in chunk or b"Infinity" in chunk):
            rows = self._at_once(_BARE.sub(rb'"\1"', chunk))
        self.count += count
        if rows is not None and len(rows) == count:
            self.objects += count
            yield first, rows
        else:  # a bad or an empty line, or two objects on one
            single = list(self._single(first, chunk))
            self.objects += len(single)
            if single:
                yield single

    def _at_once(self, chunk: bytes) -> list[dict[str, Any]] | None:
        try:
            return self._decode(chunk)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def _single(self, first: int, chunk: bytes) -> Iterator[Line]:
        for number, line in enumerate(chunk.splitlines() if b"\r" in chunk else chunk.split(b"\n"), first):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                json.dumps(row, ensure_ascii=False).encode()  # half of a character pair is no text
            except (ValueError, RecursionError):
                self.reading.trouble(
                    self.path, f"line {number}", f"no JSON: {shown(line[:80].decode(errors='replace'))}"
                )
                continue
            if isinstance(row, dict):
                yield number, row
            else:
                self.reading.trouble(self.path, f"line {number}", f"{shown(row)} is no JSON object")


def read_rows(lines: Lines, step_key: str | None = None) -> Iterator[Rows]:
    """Yield the rows of a file as columns, consecutive rows with the same keys together.

    Args:
        step_key: where the step stands; None: the first of STEP_KEYS that a row has, and then that one.
    """
    for piece in lines.pieces():
        if isinstance(piece, tuple):
            first, rows = piece
            numbered: Sequence[int] = range(first, first + len(rows))
        else:
            numbered, rows = [number for number, _ in piece], [row for _, row in piece]
        if step_key is None:
            step_key = next((key for row in rows[:100] for key in STEP_KEYS if key in row), None)
        at = 0
        for keys, group in groupby(map(tuple, rows)):
            count = sum(1 for _ in group)
            part = slice(at, at + count)
            yield from columns_of(lines, keys, numbered[part], rows[part], step_key or STEP_KEYS[0])
            at += count


def _open(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else path.open("rb")  # type: ignore[return-value]
