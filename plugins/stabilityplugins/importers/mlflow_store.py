"""Runs of MLflow's file store: ``meta.yaml`` of a run, with ``metrics/``, ``params/``.

A file below ``metrics/`` is a metric, its path the name. Each line is a value: unix milliseconds, value, step, and in
newer versions more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from stabilitybackend.base.errors import BadRequest
from stabilityplugins.importers.base import FilePart, Importer, ImportPlan
from stabilityplugins.importers.batches import PAUSE, Batch, Grouper, Who
from stabilityplugins.importers.problems import Reading
from stabilityplugins.importers.rows.cells import NotAStep, as_step, as_time, row_of
from stabilityplugins.importers.rows.opened import is_inside, open_bytes

__all__ = ["MlflowImporter"]

#: Longest parameter that is read, bytes; MLflow's own limit is lower.
MAX_PARAM_BYTES = 16_384

#: Folders of a run that are read.
_PARTS = ("metrics", "params")
#: Longest line of a metric, and largest meta.yaml that is read, bytes.
MAX_LINE_CHARS, MAX_FACTS_BYTES = 4_096, 1 << 20

#: Status of an ended run in meta.yaml (FINISHED, FAILED, KILLED) -> exit code.
_EXIT_CODES = {"3": 0, "4": 1, "5": 1}

#: Unix seconds and step -> name -> value.
Rows = dict[tuple[float, int], dict[str, float]]


class MlflowImporter(Importer):
    """MLflow's file store, ``mlruns``: a run a folder."""

    name: ClassVar[str] = "mlflow"
    label: ClassVar[str] = "MLflow"
    known: ClassVar[str] = "MLflow file stores (mlruns)"
    follows: ClassVar[bool] = True

    def named(self, path: Path) -> bool:
        # Experiments and models have such a file too.
        return path.name == "meta.yaml" and path.is_file() and "run_id" in _facts(path)

    def takes(self, path: Path, head: bytes) -> bool:
        return self.named(path)

    def plans(self, paths: list[Path], root: Path) -> list[ImportPlan]:
        found = []
        for path in paths:
            facts, params = _facts(path), path.parent / "params"
            above = path.parent.parent / "meta.yaml"
            is_there = above.is_file() and is_inside(above, above.parent)
            project = _facts(above).get("name", "") if is_there else ""
            config = {str(one.relative_to(params)): _param(one, path.parent) for one in _files(params)}
            run_id = facts["run_id"]
            name = facts.get("run_name") or run_id
            plan = ImportPlan(self, [FilePart((path,))], name, run_id, project, config)
            outside = [str(one.relative_to(path.parent)) for part in _PARTS for one in _links_out(path.parent / part)]
            if outside:
                plan.notes.append(f"{path.parent}: links out of the run are left out: {', '.join(outside[:5])}")
            found.append(plan)
        return found

    def appended(self, plan: ImportPlan) -> list[Path]:
        return []  # meta.yaml is rewritten at the end, and the reader looks after the files of the metrics

    def read(
        self, path: Path, number: int, reading: Reading, *, rank: int = 0, prefix: str = "", step_key: str | None = None
    ) -> Iterator[Batch]:
        metrics = _Metrics(path.parent / "metrics", prefix, reading)
        groups, who, item = Grouper(reading), Who(number, rank), 0
        while True:
            following = reading.following
            for time, step, row in metrics.next_rows(following):
                item += 1
                names, values = row_of(sorted(row.items()), reading, path, f"step {step}")
                yield from groups.add(who, item, names, step, time, values)
            yield from groups.flush()
            status = _facts(path).get("status", "")
            if status in _EXIT_CODES:
                reading.ended[number] = _EXIT_CODES[status]
            if not following:
                break
            yield PAUSE
        reading.end_of_file(path, groups.numeric)


class _Metrics:
    """The metrics of a run, a file each, and how far each is read.

    A row is the log of one step at one time: ``log_metrics`` writes it into one file after the other. So of
    files that are followed a row is taken once it was there at the look before, or nothing changed since.
    """

    def __init__(self, folder: Path, prefix: str, reading: Reading) -> None:
        self._folder = folder
        self._prefix = prefix
        self._reading = reading
        self._read: dict[Path, int] = {}
        self._lines: dict[Path, int] = {}
        self._rows: Rows = {}
        self._taken = (-math.inf, -1)
        #: Newest time of a value at the last look, unix seconds.
        self._newest = -math.inf

    def next_rows(self, following: bool) -> Iterator[tuple[float, int, dict[str, float]]]:
        """Yield time, step and values of the rows that are whole, in this order."""
        before = self._newest
        changed = [self._read_metric(file, following) for file in _files(self._folder)]
        for time, step in sorted(self._rows):
            if following and any(changed) and time > before:
                break
            row = self._rows.pop((time, step))
            if (time, step) > self._taken:
                self._taken = time, step
                yield time, step, row
            else:
                for name in row:
                    self._reading.problem(
                        self._folder / name, f"step {step}", "written after later values had been sent"
                    )

    def _read_metric(self, file: Path, following: bool) -> bool:
        """Take the lines that a file has more; return whether there were any."""
        start, reading = self._read.get(file, 0), self._reading
        if (size := file.stat().st_size) == start:
            return False
        if size < start:
            raise BadRequest(
                f"{file} was cut: {start} bytes of it were read, and it has {size}", hint="import it as another run"
            )
        first = number = self._lines.get(file, 0)
        with open_bytes(file, self._folder.parent) as opened:
            opened.seek(start)
            while line := opened.readline(MAX_LINE_CHARS):
                if following and not line.endswith(b"\n"):
                    break  # half of a line, maybe
                number += 1
                self._read[file] = start = start + len(line)
                if len(line) >= MAX_LINE_CHARS:
                    reading.problem(file, f"line {number}", f"longer than {MAX_LINE_CHARS} bytes; the rest is not read")
                    self._read[file] = size
                    break
                self._take(file, number, line.decode("utf-8", "replace"))
        self._lines[file] = number
        return number > first

    def _take(self, file: Path, number: int, line: str) -> None:
        """Take a value."""
        words, place = line.split(), f"line {number}"
        try:
            if len(words) < 3:
                self._reading.problem(file, place, f"{len(words)} columns, expected time, value and step")
                return
            time, value, step = as_time(words[0]), float(words[1]), as_step(int(words[2]))
        except (NotAStep, ValueError) as error:
            self._reading.problem(file, place, str(error))
            return
        if time is None:
            self._reading.problem(file, place, f"{line[:80]!r}, expected time, value and step")
            return
        # Of two values of one millisecond and step the later one is MLflow's too.
        name = self._prefix + str(file.relative_to(self._folder))
        self._rows.setdefault((time, step), {})[name] = value
        self._newest = max(self._newest, time)


def _facts(path: Path) -> dict[str, str]:
    """Return the facts in a file of plain ``key: value`` lines; MLflow's files that are read here have no others."""
    with open_bytes(path, path.parent) as file:
        lines = file.read(MAX_FACTS_BYTES).decode("utf-8", "replace").splitlines()
    pairs = (line.partition(": ")[::2] for line in lines if not line.startswith((" ", "-")))
    return {key: value.strip().strip("'\"") for key, value in pairs}


def _files(folder: Path) -> list[Path]:
    """Return the files below a folder of a run; none that a link leads to out of that run."""
    found = folder.rglob("*") if folder.is_dir() and is_inside(folder, folder.parent) else ()
    return sorted(path for path in found if path.is_file() and is_inside(path, folder.parent))


def _links_out(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_symlink() and not is_inside(path, folder.parent)]


def _param(path: Path, folder: Path) -> str | float:
    with open_bytes(path, folder) as file:
        text = file.read(MAX_PARAM_BYTES).decode("utf-8", "replace")
    try:
        return float(text)
    except ValueError:
        return text
