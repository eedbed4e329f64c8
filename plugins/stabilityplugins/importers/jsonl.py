"""Reads JSON lines: ``{"step": int, "<metric>": float, ...}`` in the log's own order, and our own JSONL exports.

Optional keys: a time, ``rank``, ``phase`` (live only, not stored), ``batch_fp`` (the data of the step), and in our
exports ``segment``, ``dead``, ``node`` and, in the first line, ``export`` (the run and its segments). Objects in a row
are flattened with ``/``. Imports and backtests read with this; a piece of the file is decoded in one call, single lines
only where something is odd.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import msgspec
import orjson

from stabilityplugins.importers.base import Importer, ImportPlan
from stabilityplugins.importers.batches import Batch
from stabilityplugins.importers.lineage import ExportedLineage, header_of, named_by_export
from stabilityplugins.importers.problems import Reading, shown
from stabilityplugins.importers.rows.lanes import by_lane
from stabilityplugins.importers.rows.layout import EXPORT_LAYOUT, Group, groups_of, is_axis, layout_of
from stabilityplugins.importers.rows.opened import (
    HEAD_BYTES,
    MAX_LINE_BYTES,
    count_lines,
    open_text,
    read_piece,
)
from stabilityplugins.importers.rows.table import FINGERPRINT, TableRows

__all__ = ["JsonlImporter", "export_header", "flat", "objects_in"]

#: How Python's json writes the numbers that JSON does not have. Replaced as bytes, which is ten times as fast as a
#: pattern; if such a text is in a string the piece is no JSON any more, and is read line by line.
_BARE = tuple((colon + word, colon + b'"' + word + b'"') for colon in (b":", b": ")
              for word in (b"NaN", b"Infinity", b"-Infinity"))  # fmt: skip
#: Lines that are looked at, however long they are.
_HEAD_LINES = 3
#: Objects within objects that are flattened.
_MAX_DEPTH = 8

#: A decoded line and its number in the file, from 1.
Line = tuple[int, dict[str, Any]]


def export_header(path: Path) -> dict[str, Any] | None:
    """Return an export's facts of its run, None where the file is no export."""
    try:
        with open_text(path) as file:
            first = msgspec.json.decode(file.readline(MAX_LINE_BYTES))
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return header_of(first.get("export")) if isinstance(first, dict) else None


def objects_in(path: Path, most: int = 2) -> int:
    """Count the lines that are JSON objects, up to ``most``, of those that begin in the head of a file.

    The first may be damaged, or very long.
    """
    count, read, lines = 0, 0, 0
    with open_text(path) as file:
        while count < most and (read < HEAD_BYTES or lines < _HEAD_LINES) and (line := file.readline(MAX_LINE_BYTES)):
            count += _is_object(line.strip())
            read, lines = read + len(line), lines + 1
    return count


def _is_object(line: bytes) -> bool:
    if line[:1] != b"{":
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without objects in it: ``{"train": {"loss": 2}}`` as ``train/loss``.

    Where all metrics are in one object, as in ``{"step": 1, "data": {...}}``, its name is left out.
    """
    inner = [key for key, value in row.items() if isinstance(value, dict)]
    if "export" in inner and header_of(row["export"]) is not None:  # of our own file: about the run, no metric
        inner.remove("export")
        row = {key: value for key, value in row.items() if key != "export"}
    if not inner:
        return row
    found: dict[str, Any] = {}
    alone = len(inner) == 1 and all(key in inner or is_axis(key) for key in row)
    for key, value in row.items():
        if isinstance(value, dict):
            _flatten("" if alone else f"{key}/", value, found, _MAX_DEPTH)
        else:
            found[key] = value
    return found


def _flatten(prefix: str, row: dict[str, Any], found: dict[str, Any], depth: int) -> None:
    for key, value in row.items():
        if isinstance(value, dict) and depth > 0:
            _flatten(f"{prefix}{key}/", value, found, depth - 1)
        else:
            found.setdefault(prefix + key, value)


class JsonlImporter(Importer):
    """One JSON object a line."""

    name: ClassVar[str] = "jsonl"
    label: ClassVar[str] = "JSONL"
    known: ClassVar[str] = "JSON lines with a key step"
    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson")
    may_hold: ClassVar[tuple[str, ...]] = (".json", ".log", ".txt")
    follows: ClassVar[bool] = True

    def takes(self, path: Path, head: bytes) -> bool:
        return objects_in(path, 1) > 0

    def plans(self, paths: list[Path], root: Path) -> list[ImportPlan]:
        return [named_by_export(plan, export_header(plan.paths[0])) for plan in super().plans(paths, root)]

    def read(
        self, path: Path, number: int, reading: Reading, *, rank: int = 0, prefix: str = "", step_key: str | None = None
    ) -> Iterator[Batch]:
        header = export_header(path)
        if header is None:
            looked = Reading(following=reading.following)
            layout, lineage = layout_of(path, _Lines(path, looked, rank).groups(), step_key, looked=looked), None
        else:
            layout, lineage = EXPORT_LAYOUT, ExportedLineage(header)
        base = 0.0 if layout.time is not None else reading.base(number, path, count_lines(path))
        rows = TableRows(path, number, reading, layout, rank=rank, prefix=prefix, base=base, lineage=lineage)
        if header is not None:
            # The file's own words tell two exports of a run apart: their lines are numbered differently.
            rows.edition = (str(header.get("run_id")), hashlib.sha256(orjson.dumps(header)).hexdigest()[:8])
        yield from rows.batches(_Lines(path, reading, rank, by_segment=header is not None).groups())
        rows.close()


class _Lines:
    """Objects of one file, in pieces, with the numbers of their lines; other lines are noted.

    Args:
        rank: of the rows that name none. by_segment: cut where the key ``segment`` changes.
    """

    def __init__(self, path: Path, reading: Reading, rank: int = 0, *, by_segment: bool = False) -> None:
        self.path = path
        self.reading = reading
        self._rank = rank
        self._by_segment = by_segment
        #: Lines seen so far.
        self._count = 0
        self._decode = msgspec.json.Decoder(dict[str, Any]).decode_lines
        self._decode_numbers = msgspec.json.Decoder(dict[str, float]).decode_lines
        #: Whether everything so far was a number, and in the newest piece: such rows become columns in one go.
        self._plain = not by_segment

    def groups(self) -> Iterator[Group | None]:
        """Yield rows with the same keys together, None where a file that is followed has no more for now."""
        for piece in self._pieces():
            if piece is None:
                yield None
                continue
            if not self._plain:
                piece = [(number, flat(row)) for number, row in piece]
            parts = [list(found) for _, found in groupby(piece, _segment)] if self._by_segment else [piece]
            for part in parts:
                ordered = by_lane(part, self._rank)
                yield from groups_of([n for n, _ in ordered], [row for _, row in ordered], plain=self._plain)

    def _pieces(self) -> Iterator[list[Line] | None]:
        reading, before = self.reading, self.reading.bytes_read
        read = 0
        with open_text(self.path) as file:
            rest, broken = b"", None
            while True:
                new, broken = read_piece(file)
                read += len(new)
                reading.bytes_read = before + read
                data = rest + new
                if broken or (not new and not reading.following):
                    break
                end = data.rfind(b"\n") + 1
                rest = data[end:]
                if end:
                    yield from self._decoded(data[:end])
                if len(rest) > MAX_LINE_BYTES:
                    rest = self._too_long(file)
                if not new:
                    yield None
            if broken:
                data = data[: data.rfind(b"\n") + 1]
            if data:
                yield from self._decoded(data)
            if broken:
                reading.problem(self.path, f"after line {self._count}", f"the rest can't be read: {broken}")

    def _too_long(self, file: BinaryIO) -> bytes:
        """Pass over the rest of a line that is no row of metrics; return its replacement, and the bytes after it."""
        while True:
            new, broken = read_piece(file)
            end = new.find(b"\n") + 1
            if end or broken or not new:
                return b'"(a line of more than %d MiB)"\n' % (MAX_LINE_BYTES >> 20) + new[end:]

    def _decoded(self, chunk: bytes) -> Iterator[list[Line]]:
        first, count = self._count + 1, chunk.count(b"\n") + (not chunk.endswith(b"\n"))
        rows = self._at_once(chunk)
        if rows is None and (b"NaN" in chunk or b"Infinity" in chunk):
            quoted = chunk
            for bare, text in _BARE:
                quoted = quoted.replace(bare, text)
            rows = self._at_once(quoted)
        self._count += count
        if rows is not None and len(rows) == count:
            yield list(enumerate(rows, first))
        else:  # a bad or an empty line, or two objects on one
            self._plain = False
            single = list(self._single(first, chunk))
            if single:
                yield single

    def _at_once(self, chunk: bytes) -> list[dict[str, Any]] | None:
        if self._plain:
            self._plain = FINGERPRINT.encode() not in chunk  # a whole number there may be too long for a float
        try:
            return self._decode_numbers(chunk) if self._plain else self._decode(chunk)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            again, self._plain = self._plain, False
        return self._at_once(chunk) if again else None

    def _single(self, first: int, chunk: bytes) -> Iterator[Line]:
        lines = chunk.split(b"\n")
        for number, line in enumerate(lines, first):
            if not line.strip():
                continue
            try:
                row = self._one(line)
            except (ValueError, RecursionError):
                is_cut = number == first + len(lines) - 1
                what = "the last line is cut" if is_cut else "no JSON"
                self._count -= is_cut  # the file may still grow
                self.reading.problem(self.path, f"line {number}", f"{what}: {shown(_text(line))}")
                continue
            if isinstance(row, dict):
                yield number, row
            else:
                self.reading.problem(self.path, f"line {number}", f"{shown(row)} is no JSON object")

    def _one(self, line: bytes) -> Any:
        """Return the content of one line. Raises ValueError or RecursionError where it is no JSON of Python."""
        try:
            return msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            row = json.loads(line)
            json.dumps(row, ensure_ascii=False).encode()  # half of a character pair is no text
            return row


def _segment(line: Line) -> Any:
    return line[1].get("segment")


def _text(line: bytes) -> str:
    return line[:80].decode("utf-8", "replace").rstrip("\r\n")
