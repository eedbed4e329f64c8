"""Text tables: Lightning's ``metrics.csv``, exports of W&B, TensorBoard and spreadsheets, long tables.

Wide tables have one row a step; an empty cell is missing. W&B's charts have the columns of several runs side by side.
"""

from __future__ import annotations

import csv
import io
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from stabilitybackend.base.errors import BadRequest
from stabilityplugins.importers.base import FilePart, Importer, ImportPlan, name_below
from stabilityplugins.importers.batches import Batch
from stabilityplugins.importers.problems import Reading, shown
from stabilityplugins.importers.rows.cells import NotAStep, as_step
from stabilityplugins.importers.rows.lanes import RANK, by_lane
from stabilityplugins.importers.rows.layout import ROW_NUMBER, Group, Layout, groups_of, is_step, layout_of
from stabilityplugins.importers.rows.opened import MAX_LINE_BYTES, count_lines, open_text, read_piece
from stabilityplugins.importers.rows.table import TableRows
from stabilityplugins.importers.rows.wide_runs import name_of_file, side_by_side_runs
from stabilityplugins.importers.text_logs import row_in

__all__ = ["CsvImporter", "sniff_columns"]

_METRIC = ("metric", "metric_name", "key", "tag", "name", "variable")
_VALUE = ("value", "metric_value")
_RUN = ("run", "run_name", "run_id", "run_uuid", "experiment")
#: Runs in one table.
_MAX_RUNS = 1_000


@dataclass(frozen=True, slots=True)
class LongColumns:
    """Names of the columns; run: None where there is none."""

    metric: str
    value: str
    run: str | None


def long_columns(columns: Sequence[str]) -> LongColumns | None:
    """Return the roles of a long table's columns, None of another table."""
    plain = {column.strip().lower(): column for column in columns}
    metric, value, run = (next((plain[n] for n in names if n in plain), None) for names in (_METRIC, _VALUE, _RUN))
    return None if metric is None or value is None else LongColumns(metric, value, run)


def runs_in(groups: Iterable[Group | None], column: str) -> list[str]:
    """Return the runs in a table, in the order in which they come.

    Raises:
        BadRequest: there are too many.
    """
    found: dict[str, None] = {}
    for group in groups:
        found |= dict.fromkeys(str(value) for value in (group.column(column) if group is not None else None) or ())
        if len(found) > _MAX_RUNS:
            raise BadRequest(f"the column {column} holds more than {_MAX_RUNS} runs", hint="import a part of the table")
    return list(found)


def widened(groups: Iterable[Group | None], long: LongColumns, layout: Layout, run: str) -> Iterator[Group]:
    """Yield the rows of one run with a column for each metric.

    Of a table that lists metric after metric, the values of a step come together again. Where the steps of a metric go
    back, the order of the table is that of the log and stays.
    """
    rows = [row for group in groups if group is not None for row in _rows(group, long, layout, run)]
    newest: dict[tuple[str, str], int] = {}
    goes_back = False
    for row in rows:
        place = row.metric, row.rank
        goes_back |= row.step < newest.get(place, -1)
        newest[place] = row.step
    if not goes_back:
        rows.sort(key=lambda row: row.step)
    wide: list[dict[str, Any]] = []
    newest_row: tuple[int, str] | None = None
    for row in rows:
        if newest_row != (row.step, row.rank) or row.metric in wide[-1]:
            wide.append(dict(row.shared))
            newest_row = row.step, row.rank
        wide[-1][row.metric] = row.value
    yield from groups_of(range(1, len(wide) + 1), wide)


@dataclass(frozen=True, slots=True)
class _Value:
    step: int
    rank: str
    metric: str
    value: Any
    shared: dict[str, Any]


def _rows(group: Group, long: LongColumns, layout: Layout, run: str) -> Iterator[_Value]:
    kept = [key for key in (layout.step, layout.time, RANK) if key in group.keys]
    for cells in zip(*group.columns, strict=True):
        row = dict(zip(group.keys, cells, strict=True))
        if run and long.run is not None and str(row[long.run]) != run:
            continue
        try:
            step = as_step(row[layout.step])
        except NotAStep:
            continue
        shared = {key: row[key] for key in kept if key is not None}
        yield _Value(step, str(row.get(RANK)), str(row[long.metric]), row[long.value], shared)


_DELIMITERS = ",;\t"
_HEAD_BYTES = 1 << 20
#: Rows of one group.
_ROWS = 2_000
#: Comments above a table, at most.
_MAX_COMMENTS = 100
#: How a row of numbers begins, and a line of a log.
_NO_HEADER = re.compile(r"\s*[-+]?\.?\d")
_MOMENT = re.compile(r"\s*\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d")


def sniff_columns(path: Path) -> tuple[list[str], str]:
    """Return the column names, without white space, and the delimiter; ([], "") where the first line is no header."""
    return _header_of(path)[:2]


def _header_of(path: Path) -> tuple[list[str], str, int]:
    """Return the column names, the delimiter, and how many lines come before those of the rows.

    Comments come before the header (Monitor of Stable-Baselines3) or are the header (NumPy's ``savetxt``). An index
    without a name (pandas) is called as pandas calls it.
    """
    with open_text(path) as file:
        comment, count = "", 1
        line = _line_of(file)
        while line.lstrip().startswith("#") and count <= _MAX_COMMENTS:
            comment, count = line.lstrip("# \t"), count + 1
            line = _line_of(file)
        if comment and _NO_HEADER.match(line):
            line, count = comment, count - 1
    for delimiter in _DELIMITERS:
        try:
            columns = [column.strip() for column in next(csv.reader([line], delimiter=delimiter), [])]
        except csv.Error:  # a cell of 128 KiB
            continue
        if len(columns) > 1 and all(column or at == 0 for at, column in enumerate(columns)) and not _is_printed(line):
            return [columns[0] or ROW_NUMBER, *columns[1:]], delimiter, count
    return [], "", 0


def _line_of(file: BinaryIO) -> str:
    return file.readline(_HEAD_BYTES).decode("utf-8", "replace").rstrip("\r\n")


def _is_printed(line: str) -> bool:
    """Say whether a line is no header: a progress bar (``10%|###   | 10/100``), or ``step 10: loss 2.5, time 3 s``."""
    return "%|" in line or _MOMENT.match(line) is not None or any(is_step(key) for key in row_in(line))


class CsvImporter(Importer):
    """Tables as text: Lightning's ``metrics.csv``, downloads of W&B and TensorBoard, and handwritten ones."""

    name: ClassVar[str] = "csv"
    label: ClassVar[str] = "CSV"
    known: ClassVar[str] = "CSV with a step column (metrics.csv of Lightning)"
    suffixes: ClassVar[tuple[str, ...]] = (".csv", ".tsv")
    follows: ClassVar[bool] = True

    def takes(self, path: Path, head: bytes) -> bool:
        return (
            bool(head.strip()) and b"\0" not in head and head.lstrip()[:1] not in b"[{" and bool(sniff_columns(path)[0])
        )

    def plans(self, paths: list[Path], root: Path) -> list[ImportPlan]:
        return [plan for path in paths for plan in self._plans(path, root)]

    def _plans(self, path: Path, root: Path) -> list[ImportPlan]:
        # Lightning: the folder is the run.
        name = name_below(path.parent if path.name == "metrics.csv" else path.parent / path.stem, root)
        columns, _ = sniff_columns(path)
        long = long_columns(columns)
        runs = list(side_by_side_runs(columns)) or (
            runs_in(_Table(path, Reading()).groups(), long.run) if long is not None and long.run is not None else []
        )
        if not runs:
            return [ImportPlan(self, [FilePart((path,))], name)]
        plans = [ImportPlan(self, [FilePart((path,), run=run)], run) for run in runs]
        plans[0].notes.append(f"{path} holds {len(runs)} runs: {', '.join(runs[:5])}{', ...' if len(runs) > 5 else ''}")
        return plans

    def read(
        self,
        path: Path,
        number: int,
        reading: Reading,
        *,
        rank: int = 0,
        prefix: str = "",
        step_key: str | None = None,
        run: str = "",
    ) -> Iterator[Batch]:
        """Yield the rows of one file, or those of one of its runs."""
        following = reading.following
        first = _Table(path, Reading(following=following), run)
        long = None if following else long_columns(first.keys)
        layout = layout_of(path, first.groups(), step_key, first.delimiter)
        if long is not None:
            layout = replace(layout, epoch=None)
        base = 0.0 if layout.time is not None else reading.base(number, path, count_lines(path) - 1)
        rows = TableRows(
            path, number, reading, layout, rank=rank, prefix=prefix, base=base,
            place=lambda item: f"line {item + 1}",
        )  # fmt: skip
        table = _Table(path, reading, run)
        groups: Iterator[Group | None] = table.groups()
        yield from rows.batches(groups if long is None else widened(groups, long, layout, run))
        rows.close()
        twice = next((name for name in table.keys if name and table.keys.count(name) > 1), None)
        if twice is not None:
            reading.problem(path, "line 1", f"the column {shown(twice)} is there twice; the last one is stored")


class _Table:
    """The rows of one table.

    Args:
        run: of several side by side, the one whose columns are read.
    """

    def __init__(self, path: Path, reading: Reading, run: str = "") -> None:
        self.path = path
        self.reading = reading
        self._columns, self.delimiter, self._before = _header_of(path)
        #: Column -> its name as a metric; the others belong to another run.
        names = side_by_side_runs(self._columns).get(run) or name_of_file(path, self._columns)
        self.keys = [names.get(column, "") for column in self._columns]
        self._places = [at for at, key in enumerate(self.keys) if key and key not in self.keys[at + 1 :]]

    def groups(self) -> Iterator[Group | None]:
        """Yield the rows in groups; other lines are noted. None: of a followed file, no more for now."""
        keys = tuple(self.keys[at] for at in self._places)
        waiting: list[tuple[int, Sequence[str]]] = []
        for row in self._rows():
            if row is not None:
                waiting.append(row)
            if waiting and (row is None or len(waiting) >= _ROWS):
                yield self._group(keys, waiting)
                waiting = []
            if row is None:
                yield None
        if waiting:
            yield self._group(keys, waiting)

    def _group(self, keys: tuple[str, ...], rows: list[tuple[int, Sequence[str]]]) -> Group:
        if "rank" in keys:
            at = self._places[keys.index("rank")]
            lanes = by_lane([(place, {"rank": cells[at]}) for place, (_, cells) in enumerate(rows)])
            rows = [rows[place] for place, _ in lanes]
        columns: list[Any] = list(zip(*(cells for _, cells in rows), strict=True))
        return Group(keys, [number for number, _ in rows], [columns[at] for at in self._places])

    def _rows(self) -> Iterator[tuple[int, Sequence[str]] | None]:
        path, reading, width = self.path, self.reading, len(self._columns)
        again = _Again()
        with open_text(path) as file:
            lines = _Texts(path, file, reading)
            for _ in range(self._before):
                header = next(csv.reader([next(lines)], delimiter=self.delimiter))
            rows = csv.reader(lines, delimiter=self.delimiter)
            for cells in self._lines(rows):
                if cells is None:
                    yield None
                    continue
                if len(cells) == width + 1 and not cells[-1]:
                    cells.pop()  # the line ends with a delimiter
                if len(cells) == width and cells != header:
                    if not again.has(cells):
                        yield self._before + rows.line_num - 1, cells
                elif cells == header:
                    again.begin()
                    reading.note(f"{path}: the first line is there again, at line {self._before + rows.line_num}")
                elif cells:
                    what = f"{len(cells)} cells, expected {width} as in the first line"
                    reading.problem(path, f"line {self._before + rows.line_num}", what)

    def _lines(self, rows: Any) -> Iterator[list[str] | None]:
        """Yield the cells of each line of a reader of CSV; None where a followed file has nothing more for now."""
        while True:
            try:
                yield next(rows)
            except StopIteration:
                if not self.reading.following:
                    return
                yield None
            except csv.Error as error:
                self.reading.problem(self.path, f"line {self._before + rows.line_num}", f"no CSV: {error}")


class _Again:
    """The rows of a table that some loggers write anew from its first row at each save, below the same header."""

    def __init__(self) -> None:
        self._rows = array("q")  # hashes, 8 bytes a row
        self._at: int | None = None

    def begin(self) -> None:
        """Take note that the header is there again."""
        self._at = 0

    def has(self, cells: list[str]) -> bool:
        """Say whether a row is the next one of those from before the header; else it is new, as all after it."""
        row = hash(tuple(cells))
        if self._at is not None and self._at < len(self._rows) and self._rows[self._at] == row:
            self._at += 1
            return True
        self._at = None
        self._rows.append(row)
        return False


class _Texts:
    """Lines of a file; of a growing one it ends before half a line, and continues when it is asked again."""

    def __init__(self, path: Path, file: BinaryIO, reading: Reading) -> None:
        self._path = path
        self._file = file
        self._reading = reading
        self._rest = b""
        self._lines: Iterator[str] = iter(())

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines, None)
        if line is not None:
            return line
        self._lines = io.StringIO(self._next_text(), newline="\n")
        return next(self._lines)

    def _next_text(self) -> str:
        """Return the whole lines of the next piece, "" where there are none for now."""
        while True:
            new, broken = read_piece(self._file)
            self._reading.bytes_read += len(new)
            data = self._rest + new
            end = data.rfind(b"\n") + 1
            if broken:
                self._reading.problem(self._path, "its end", f"the rest can't be read: {broken}")
            elif not new and not self._reading.following:
                end = len(data)
            elif len(data) - end > MAX_LINE_BYTES:
                self._reading.problem(self._path, "a line", f"longer than {MAX_LINE_BYTES >> 20} MiB")
                data, end = b"", 0
            self._rest = data[end:]
            if end or not new:
                return data[:end].decode("utf-8", "replace")
