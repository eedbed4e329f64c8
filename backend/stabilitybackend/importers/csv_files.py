"""Reads CSV: Lightning's ``metrics.csv`` and what W&B, TensorBoard and people export. One row a step; an empty cell is
missing."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from time import time as clock
from typing import BinaryIO, ClassVar

from stabilitybackend.errors import BadRequest
from stabilitybackend.importers.base import FilePart, Importer, ImportPlan, name_below
from stabilitybackend.importers.batches import PAUSE, Batch, Grouper, Who
from stabilitybackend.importers.cells import NotAStep, as_rank, as_step, as_time, count_lines, note_step
from stabilitybackend.importers.troubles import Reading, shown
from stabilityclient.wire import MAX_NAME_CHARS

__all__ = ["LEFT_OUT", "CsvImporter", "find_columns", "sniff_columns"]

#: Columns that hold the step and the time, lower case, the first one that is there is taken.
STEP_COLUMNS = ("step", "_step", "global_step", "trainer/global_step", "train/global_step", "iteration", "iter")
TIME_COLUMNS = ("t", "_timestamp", "timestamp", "wall_time", "wall time", "time")
#: Columns that are no metric.
LEFT_OUT = frozenset({"_runtime", "_wandb", "run_id"})
_MISSING = frozenset({"", "null", "none", "na", "n/a", "<na>"})
_DELIMITERS = ",;\t"
_HEAD_BYTES = 1 << 20
_REPORTED_EVERY = 1_000


def sniff_columns(path: Path) -> tuple[list[str], str]:
    """Return the column names and the delimiter of a file, ([], "") where its first line is no header."""
    with path.open("rb") as file:
        line = file.readline(_HEAD_BYTES).decode("utf-8-sig", "replace").rstrip("\r\n")
    for delimiter in _DELIMITERS:
        columns = next(csv.reader([line], delimiter=delimiter), [])
        if len(columns) > 1 and all(column.strip() or at == 0 for at, column in enumerate(columns)):
            return columns, delimiter
    return [], ""


def find_columns(path: Path, columns: Sequence[str], step_key: str | None) -> tuple[str, str | None]:
    """Return the names of the columns that hold the step and the time (None: there is none).

    Raises:
        BadRequest: there is no step column.
    """
    lower = {column.strip().lower(): column for column in reversed(columns)}
    if step_key is not None and step_key not in columns:
        raise BadRequest(f"{path} has no column {step_key!r} for the step, it has {', '.join(columns[:12])}")
    step = step_key or next((lower[name] for name in STEP_COLUMNS if name in lower), None)
    if step is None:
        raise BadRequest(
            f"{path} has no step column: its columns are {', '.join(columns[:12])}, expected one of "
            f"{', '.join(STEP_COLUMNS)}",
            hint="name it: --step-key COLUMN",
        )
    return step, next((lower[name] for name in TIME_COLUMNS if name in lower and lower[name] != step), None)


class _WholeLines:
    """The lines of a file that grows: it ends before half a line, and goes on when it is asked again."""

    def __init__(self, file: BinaryIO, reading: Reading) -> None:
        self._file = file
        self._reading = reading

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        at = self._file.tell()
        line = self._file.readline()
        if not line or (self._reading.following and not line.endswith(b"\n")):
            self._file.seek(at)
            raise StopIteration
        return line.decode("utf-8-sig" if at == 0 else "utf-8", "replace")


class CsvImporter(Importer):
    """Tables as text: Lightning's ``metrics.csv``, downloads of W&B and TensorBoard, and what people write."""

    name: ClassVar[str] = "csv"
    label: ClassVar[str] = "CSV"
    known: ClassVar[str] = "CSV with a step column (metrics.csv of Lightning)"
    suffixes: ClassVar[tuple[str, ...]] = (".csv", ".tsv")
    follows: ClassVar[bool] = True

    def takes(self, path: Path, head: bytes) -> bool:
        return bool(head.strip()) and b"\0" not in head and bool(sniff_columns(path)[0])

    def plans(self, paths: list[Path], root: Path) -> list[ImportPlan]:
        # Lightning: the folder is the run.
        places = [path.parent if path.name == "metrics.csv" else path.parent / path.stem for path in paths]
        return [
            ImportPlan(self.name, [FilePart((path,))], name_below(at, root))
            for path, at in zip(paths, places, strict=True)
        ]

    def read(
        self, path: Path, number: int, reading: Reading, *, rank: int = 0, prefix: str = "", step_key: str | None = None
    ) -> Iterator[Batch]:
        columns, delimiter = sniff_columns(path)
        step_name, time_name = find_columns(path, columns, step_key)
        step_at = columns.index(step_name)
        time_at = -1 if time_name is None else columns.index(time_name)
        rank_at = columns.index("rank") if "rank" in columns else -1
        metrics = [
            (at, prefix + name)
            for at, name in enumerate(columns)
            if at not in (step_at, time_at, rank_at)
            and name not in LEFT_OUT
            and 1 <= len(prefix + name) <= MAX_NAME_CHARS
        ]
        groups = Grouper(reading, timed=time_at >= 0)
        before, base = reading.bytes_read, 0.0 if time_at >= 0 else path.stat().st_mtime - (count_lines(path) - 1)
        time = base or path.stat().st_mtime
        with path.open("rb") as raw:
            whole = TextIOWrapper(raw, encoding="utf-8-sig", errors="replace", newline="")
            rows = csv.reader(_WholeLines(raw, reading) if reading.following else whole, delimiter=delimiter)
            next(rows)
            item, live = 0, False
            while True:
                try:
                    cells = next(rows)
                except StopIteration:
                    if not reading.following:
                        break
                    yield from groups.flush()
                    yield PAUSE
                    live = True  # what comes now was written just now
                    continue
                except csv.Error as error:
                    item += 1
                    reading.trouble(path, f"line {rows.line_num}", f"no CSV: {error}")
                    continue
                if not cells:
                    continue
                item += 1
                if item % _REPORTED_EVERY == 0:
                    reading.bytes_read = before + raw.tell()
                place = f"line {rows.line_num}"
                if len(cells) != len(columns):
                    reading.trouble(path, place, f"{len(cells)} cells, expected {len(columns)} as in the first line")
                    continue
                try:
                    step = as_step(cells[step_at])
                    at_rank = as_rank(cells[rank_at]) if rank_at >= 0 and cells[rank_at] else rank
                except NotAStep as error:
                    reading.trouble(path, place, str(error))
                    continue
                time = (clock() if live else base + item) if time_at < 0 else as_time(cells[time_at]) or time
                names: list[str] = []
                values = array("d")
                for at, name in metrics:
                    cell = cells[at]
                    if cell:
                        try:
                            values.append(float(cell))
                        except ValueError:
                            if cell.strip().lower() not in _MISSING:
                                reading.odd_value(path, place, name, cell)
                        else:
                            names.append(name)
                yield from groups.add(Who(number, at_rank), item, tuple(names), step, time, values)
        yield from groups.flush()
        reading.bytes_read = before + path.stat().st_size
        reading.end_of_file(path, groups.numeric)
        note_step(path, step_name, columns, reading)
        if time_at < 0:
            reading.note(f"{path}: no times, so each row counts one second, up to when the file was last written")
        if len(set(columns)) < len(columns):
            twice = next(name for name in columns if columns.count(name) > 1)
            reading.trouble(path, "line 1", f"the column {shown(twice)} is there twice; the last one is stored")
