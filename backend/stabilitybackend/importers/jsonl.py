"""Reads JSON lines: ``{"step": int, "<metric>": float, ...}`` in the log's own order, and our own JSONL exports.

Optional keys: ``t`` (unix seconds), ``rank``, ``phase`` (live only, not stored), ``batch_fp`` (the data of the step),
and in our
exports ``segment``, ``dead``, ``node`` and, in the first line, ``export`` (the run and its segments).
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import orjson

from stabilitybackend.importers.base import Importer, ImportPlan
from stabilitybackend.importers.batches import PAUSE, Batch, Grouper, Note, Who
from stabilitybackend.importers.cells import (
    MAX_RANK,
    TIME_UNITS,
    NotAStep,
    as_rank,
    as_step,
    as_time,
    count_lines,
    note_step,
    row_of,
)
from stabilitybackend.importers.lineage import ExportedLineage, header_of, named_by_export
from stabilitybackend.importers.troubles import Reading, shown
from stabilityclient.wire import MAX_NAME_CHARS

__all__ = ["BLANK", "MAX_LINE_BYTES", "TIME_KEYS", "JsonlImporter", "export_header", "has_objects"]

#: Longest line, bytes: more is no row of metrics, and must not fill the memory.
MAX_LINE_BYTES = 16 * 1024 * 1024
#: Keys that are asked for the time when ``t`` is not there, in this order.
TIME_KEYS = ("t", "_timestamp", "timestamp", "wall_time", "time")
#: ... and for the step, when the user names none.
STEP_KEYS = ("step", "_step", "global_step", "iteration")
#: Different sets of keys remembered; a file in which every line has its own is read more slowly, nothing else.
MAX_NAME_SETS = 10_000
#: Beginnings of lines in so many bytes are looked at.
_HEAD_BYTES = 64 * 1024
#: A byte order mark and white space.
BLANK = b"\xef\xbb\xbf \t\r\n"


def export_header(path: Path) -> dict[str, Any] | None:
    """Return what our own export says about its run, None where the file is none."""
    with path.open("rb") as file:
        line = file.readline(MAX_LINE_BYTES)
    try:
        first = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return header_of(first.get("export")) if isinstance(first, dict) else None


def has_objects(path: Path) -> bool:
    """Say whether a line that begins in the head of a file is a JSON object: the first may be damaged, or very long."""
    with path.open("rb") as file:
        while file.tell() < _HEAD_BYTES and (line := file.readline(MAX_LINE_BYTES)):
            if _is_object(line.strip(BLANK)):
                return True
    return False


def _is_object(line: bytes) -> bool:
    if line[:1] != b"{":
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


class JsonlImporter(Importer):
    """One JSON object a line."""

    name: ClassVar[str] = "jsonl"
    label: ClassVar[str] = "JSONL"
    known: ClassVar[str] = "JSON lines with a key step"
    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson")
    follows: ClassVar[bool] = True

    def takes(self, path: Path, head: bytes) -> bool:
        return has_objects(path)

    def plans(self, paths: list[Path], root: Path) -> list[ImportPlan]:
        return [named_by_export(plan, export_header(plan.paths[0])) for plan in super().plans(paths, root)]

    def read(
        self, path: Path, number: int, reading: Reading, *, rank: int = 0, prefix: str = "", step_key: str | None = None
    ) -> Iterator[Batch]:
        header = export_header(path)
        lineage = None if header is None else ExportedLineage(header)
        groups = Grouper(reading)
        if header is not None:
            # The file's own words tell two exports of a run apart: their lines are numbered differently.
            groups.edition = (str(header.get("run_id")), hashlib.sha256(orjson.dumps(header)).hexdigest()[:8])
        clock = _RowTimes(path)
        with path.open("rb") as file:
            yield from _rows(_Lines(path, file, reading), number, rank, prefix, step_key, groups, clock, lineage)
        if lineage is not None:
            yield from groups.flush()
            yield from groups.fork(lineage.rest())
            yield from groups.bare_forks(Who(number, 0), clock.lines)
        reading.end_of_file(path, groups.numeric)
        if clock.made_up:
            reading.note(
                f"{path}: no times (key t), so each line counts one second, up to when the file was last written"
            )


def _rows(
    lines: _Lines,
    number: int,
    rank: int,
    prefix: str,
    step_key: str | None,
    groups: Grouper,
    clock: _RowTimes,
    lineage: ExportedLineage | None,
) -> Iterator[Batch]:
    path, reading = lines.path, lines.reading
    known: dict[tuple[str, ...], tuple[str, ...]] = {}
    for item, row in lines:
        if row is None:
            yield from groups.flush()
            yield PAUSE
            clock.live = True
            continue
        if step_key is None:
            step_key = next((key for key in STEP_KEYS if key in row), None)
        step = row.pop(step_key, None) if step_key is not None else None
        if type(step) is not int or not 0 <= step < 2**53:
            try:
                step = as_step(step)
            except NotAStep as error:
                reading.trouble(path, f"line {item}", str(error))
                continue
        time = row.pop("t", None)
        if type(time) is not float or not 0.0 <= time < TIME_UNITS[-1][0]:
            time = _time_of(time, row)
        time = clock.at(item, time)
        groups.timed = not clock.made_up
        who = Who(number, rank)
        if "rank" in row:
            given = row.pop("rank")
            node = row.pop("node", None)
            if given is None and isinstance(node, str) and node:
                who = Who(number, None, node)
            elif type(given) is int and 0 <= given <= MAX_RANK:
                who = Who(number, given)
            elif given is not None:
                try:
                    who = Who(number, as_rank(given))
                except NotAStep as error:
                    reading.trouble(path, f"line {item}", str(error))
                    continue
        if lineage is not None:
            segment = row.pop("segment", 0)
            row.pop("dead", None)
            row.pop("export", None)
            if row.pop("stray", False):
                reading.note(f"{path}: rows marked stray (low steps that led nowhere) are left out")
                continue
            forks = lineage.enter(who, segment)
            if forks:
                yield from groups.fork(forks)
                if who.rank is None:
                    yield from groups.bare_forks(Who(number, 0), item)
        row.pop("phase", None)
        fingerprint = row.pop("batch_fp", None)
        if fingerprint is not None and who.rank is not None:
            yield from groups.note(who, Note(item, "batch", step, time, {"fingerprint": str(fingerprint)[:1_000]}))
        given_names = tuple(row)
        names = known.get(given_names)
        if names is None:
            if len(known) >= MAX_NAME_SETS:
                known.clear()
            plain = all(1 <= len(prefix + name) <= MAX_NAME_CHARS for name in given_names)
            names = known[given_names] = tuple(prefix + name for name in given_names) if plain else ()
        try:
            values = array("d", row.values()) if names else array("d")
        except (TypeError, OverflowError):
            names = ()
        if not names and given_names:
            pairs = ((prefix + key, value) for key, value in row.items())
            names, values = row_of(pairs, reading, path, f"line {item}")
        yield from groups.add(who, item, names, step, time, values)
    clock.lines = lines.count
    yield from groups.flush()
    note_step(path, step_key, groups.numeric, reading)


def _time_of(value: Any, row: dict[str, Any]) -> float | None:
    """Return the time of a row: from ``t``, or taken out of it under another name."""
    if value is not None:
        return as_time(value)
    for key in TIME_KEYS:
        if key in row:
            return as_time(row.pop(key))
    return None


class _Lines:
    """The objects in a file, with their line numbers; what is none is noted. None: nothing more for now.

    A last line without an end that can't be read is not counted: the file may still grow.
    """

    def __init__(self, path: Path, file: BinaryIO, reading: Reading) -> None:
        self.path = path
        self.reading = reading
        self.count = 0
        self._file = file

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any] | None]]:
        readline, reading = self._file.readline, self.reading
        loads, before = orjson.loads, reading.bytes_read
        read = 0
        while (line := readline(MAX_LINE_BYTES)) or reading.following:
            if reading.following and not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                self._file.seek(-len(line), os.SEEK_CUR)  # half of a line, maybe
                yield self.count, None
                continue
            read += len(line)
            self.count += 1
            if not self.count & 0x3FF:
                reading.bytes_read = before + read
            try:
                row = loads(line)
            except orjson.JSONDecodeError:
                row = self._otherwise(line)
            if type(row) is dict:
                yield self.count, row
            elif row is not None:
                self.reading.trouble(self.path, f"line {self.count}", f"{shown(row)} is no JSON object")
        reading.bytes_read = before + read

    def _otherwise(self, line: bytes) -> Any:
        """Return the object of a line with bare NaN or Infinity, None for an empty line or one that is no JSON."""
        if not line.strip():
            return None
        try:
            found = json.loads(line)
            json.dumps(found, ensure_ascii=False).encode()  # half of a character pair can be stored nowhere
        except (ValueError, RecursionError):
            pass
        else:
            return found
        place = f"line {self.count}"
        if len(line) == MAX_LINE_BYTES:
            self.reading.trouble(self.path, place, f"longer than {MAX_LINE_BYTES >> 20} MiB")
            while line and not line.endswith(b"\n"):
                line = self._file.readline(MAX_LINE_BYTES)
        elif not line.endswith(b"\n"):
            self.reading.trouble(self.path, place, f"the last line is cut: {shown(_text(line))}")
            self.count -= 1
        else:
            self.reading.trouble(self.path, place, f"no JSON: {shown(_text(line))}")
        return None


class _RowTimes:
    """Says when a row was logged, also where the file does not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: float | None = None
        self._base = 0.0
        self.made_up = False
        self.lines = 0
        #: The end was reached before: what comes now was written just now.
        self.live = False

    def at(self, item: int, given: float | None) -> float:
        if given is None:
            if self._last is None:
                self.made_up = True
                self._base = self._path.stat().st_mtime - count_lines(self._path)
            given = self._last if not self.made_up else time.time() if self.live else self._base + item
        self._last = given
        return given  # type: ignore[return-value]


def _text(line: bytes) -> str:
    return line[:80].decode("utf-8", "replace").rstrip("\r\n")
