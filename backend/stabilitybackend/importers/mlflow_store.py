"""Reads runs of MLflow's file store: ``meta.yaml`` of a run and, beside it, ``metrics/``, ``params/``.

A file below ``metrics/`` is a metric, its path the name. Each line is a value: unix milliseconds, value, step, and in
newer versions more.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from stabilitybackend.importers.base import FilePart, Importer, ImportPlan
from stabilitybackend.importers.batches import Batch, Grouper, Who
from stabilitybackend.importers.cells import NotAStep, as_step, as_time, row_of
from stabilitybackend.importers.troubles import Reading

__all__ = ["MlflowImporter"]

#: Longest parameter that is read, bytes; MLflow's own limit is lower.
MAX_PARAM_BYTES = 16_384

#: Unix seconds and step -> name -> value.
Rows = dict[tuple[float, int], dict[str, float]]


class MlflowImporter(Importer):
    """MLflow's file store, ``mlruns``: a run a folder."""

    name: ClassVar[str] = "mlflow"
    label: ClassVar[str] = "MLflow"
    known: ClassVar[str] = "MLflow file stores (mlruns)"

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
            project = _facts(above).get("name", "") if above.is_file() else ""
            config = {str(one.relative_to(params)): _param(one) for one in _files(params)}
            run_id = facts["run_id"]
            name = facts.get("run_name") or run_id
            found.append(ImportPlan(self.name, [FilePart((path,))], name, run_id, project, config))
        return found

    def read(
        self, path: Path, number: int, reading: Reading, *, rank: int = 0, prefix: str = "", step_key: str | None = None
    ) -> Iterator[Batch]:
        rows: Rows = {}
        metrics = path.parent / "metrics"
        for file in _files(metrics):
            _read_metric(file, prefix + str(file.relative_to(metrics)), rows, reading)
        groups, who = Grouper(reading), Who(number, rank)
        for item, (time, step) in enumerate(sorted(rows), 1):
            names, values = row_of(sorted(rows[time, step].items()), reading, path, f"step {step}")
            yield from groups.add(who, item, names, step, time, values)
        yield from groups.flush()
        reading.end_of_file(path, groups.numeric)


def _read_metric(file: Path, name: str, rows: Rows, reading: Reading) -> None:
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        words = line.split()
        place = f"line {number}"
        try:
            if len(words) < 3:
                reading.trouble(file, place, f"{len(words)} columns, expected time, value and step")
                continue
            time, value, step = as_time(words[0]), float(words[1]), as_step(int(words[2]))
        except (NotAStep, ValueError) as error:
            reading.trouble(file, place, str(error))
            continue
        if time is None:
            reading.trouble(file, place, f"{line[:80]!r}, expected time, value and step")
            continue
        # Of two values of one millisecond and step the later one is MLflow's too.
        rows.setdefault((time, step), {})[name] = value


def _facts(path: Path) -> dict[str, str]:
    """Return what a file of plain ``key: value`` lines says; MLflow writes no others of what is read here."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    pairs = (line.partition(": ")[::2] for line in lines if not line.startswith((" ", "-")))
    return {key: value.strip().strip("'\"") for key, value in pairs}


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []


def _param(path: Path) -> str | float:
    with path.open(encoding="utf-8", errors="replace") as file:
        text = file.read(MAX_PARAM_BYTES)
    try:
        return float(text)
    except ValueError:
        return text
