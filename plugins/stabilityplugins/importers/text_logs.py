"""Printed output of trainers: lines of names and numbers, as ``iter 10: loss 3.45, time 228.3ms`` or ``step:1/1750``.

A name and its number are divided by a colon, an equals sign, white space or a bracket. The step has a usual name, or
leads the lines; a line ``Epoch 3/20`` by itself is the epoch of those below. A line without a step (an evaluation below
its epoch) is at the step of the line before. Lines without a readable pair are passed over: most of the
output is no row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

from stabilitybackend.base.errors import BadRequest
from stabilityplugins.importers.base import Importer
from stabilityplugins.importers.batches import Batch
from stabilityplugins.importers.problems import Reading
from stabilityplugins.importers.rows.cells import NotAStep, as_step
from stabilityplugins.importers.rows.layout import Group, Layout, groups_of, is_axis, is_step, layout_of
from stabilityplugins.importers.rows.opened import MAX_LINE_BYTES, count_lines, open_text
from stabilityplugins.importers.rows.table import TableRows

__all__ = ["TextLogImporter", "row_in"]

#: Lines of a file in which steps are looked for before it is taken for a log; so many steps and values it must have.
_HEAD_LINES, _HEAD_ROWS = 2_000, 3
#: Longer lines are no rows, characters.
_MAX_LINE_CHARS = 4_096
_ROWS = 2_000
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_OBJECT = re.compile(rb'\s*[\[{]\s*["{}]')
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d")
#: 3.4e-05, 1,234 and 10/438, but not the hours of 10:15:00.
_NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?:\s*/\s*\d+)?(?![\w.]*:\d)"
    r"|[-+]?(?:nan|inf)\b"
)
_PAIR = re.compile(
    r"['\"]?(?P<name>[A-Za-z_][\w./-]*(?: [A-Za-z_(][\w./()-]*){0,5})['\"]?"  # up to six words
    r"(?P<between>\s*[:=|]?\s*[\[('\"]?\s*)"
    rf"(?P<number>{_NUMBER})(?:[A-Za-z%]+(?:/[a-z]+)?)?",  # and a unit: 228.3ms
    re.IGNORECASE,
)


def row_in(line: str) -> dict[str, Any]:
    """Return the names and numbers in a line, and its time where it begins with one; {} where nothing is understood."""
    if len(line) > _MAX_LINE_CHARS or "%|" in line:  # a progress bar
        return {}
    line = _COLOURS.sub("", line)
    row: dict[str, Any] = {}
    moment = _MOMENT.search(line, 0, 60)
    if moment is not None:
        row["timestamp"] = moment[0]
        line = line[moment.end() :]
    cells = line.strip().strip("|").split("|")
    if line.lstrip().startswith("|") and len(cells) == 2:  # a row of a table of names and values
        line = ":".join(cell.strip() for cell in cells)
    for part in re.split(r",(?!\d)|[;\t]|\s\|\s", line):
        for pair in _PAIR.finditer(part):
            if pair["between"]:
                row.setdefault(pair["name"].strip(), pair["number"].replace(" ", "").replace(",", ""))
    return row if len(row) > (moment is not None) else {}


class TextLogImporter(Importer):
    """Printed output of trainers: names and numbers."""

    name: ClassVar[str] = "text_log"
    label: ClassVar[str] = "text log"
    known: ClassVar[str] = "text logs (step 10: loss 3.45)"
    may_hold: ClassVar[tuple[str, ...]] = (".log", ".txt", ".out")

    def takes(self, path: Path, head: bytes) -> bool:
        if b"\0" in head or path.suffix.lower() == ".json" or _OBJECT.match(head):
            return False
        found = _head(path)
        steps = [(key, row[key]) for row in found for key in row if is_step(key)]
        counts = len(steps) >= _HEAD_ROWS and len(set(steps)) > len({key for key, _ in steps})  # one of them changes
        is_log = counts or _leading(found) is not None
        return is_log and sum(not is_axis(key) for row in found for key in row) >= _HEAD_ROWS

    def read(
        self, path: Path, number: int, reading: Reading, *, rank: int = 0, prefix: str = "", step_key: str | None = None
    ) -> Iterator[Batch]:
        layout = _layout(path, step_key)
        base = 0.0 if layout.time is not None else reading.base(number, path, count_lines(path))
        rows = TableRows(path, number, reading, layout, rank=rank, prefix=prefix, base=base)
        yield from rows.batches(_groups(path))
        reading.bytes_read += path.stat().st_size
        rows.close()


def _layout(path: Path, step_key: str | None) -> Layout:
    """Return the layout of a file; without a usual name the step is the number that leads each line."""
    try:
        return layout_of(path, _groups(path), step_key)
    except BadRequest:
        leading = None if step_key is not None else _leading(_head(path))
        if leading is None:
            raise
        why = f"{path}: the step is {leading}, the number that leads the lines and rises"
        return replace(layout_of(path, _groups(path), leading), notes=(why,))


def _head(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in takewhile(lambda one: one[0] <= _HEAD_LINES, _rows(path))]


def _leading(rows: Sequence[dict[str, Any]]) -> str | None:
    """Return the name that leads most lines with further values, with a whole number that never falls."""
    firsts = [next(((key, row[key]) for key in row if key != "timestamp"), None) for row in rows if len(row) > 1]
    led = [first for first in firsts if first is not None]
    key = Counter(key for key, _ in led).most_common(1)[0][0] if led else ""
    counts = [count for name, text in led if name == key and (count := _step_in(text)) is not None]
    is_step_key = len(counts) > len(led) / 2 and len(set(counts)) >= _HEAD_ROWS and counts == sorted(counts)
    return key if is_step_key else None


def _step_in(text: Any) -> int | None:
    try:
        return as_step(text)
    except NotAStep:
        return None


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with open_text(path) as file:
        number = 0
        heading: dict[str, Any] = {}
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            row = row_in(line.decode("utf-8", "replace"))
            epoch = {key: value for key, value in row.items() if key.lower() == "epoch"}
            if epoch:
                heading = epoch if row.keys() <= {*epoch, "timestamp"} else {}
            if row:
                yield number, {**heading, **row}


def _groups(path: Path) -> Iterator[Group]:
    waiting: list[tuple[int, dict[str, Any]]] = []
    for row in _rows(path):
        waiting.append(row)
        if len(waiting) >= _ROWS:
            yield from groups_of([number for number, _ in waiting], [row for _, row in waiting])
            waiting = []
    yield from groups_of([number for number, _ in waiting], [row for _, row in waiting])
