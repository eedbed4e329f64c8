"""Reads the runs of an Aim repository (``.aim``) with Aim's own package: its metrics, parameters, name and experiment.

Aim lists runs by an index that only its server (``aim up``) writes: in a repository that a job has just written its
package finds no run. So its trees are read through the union of all runs' own files, as the package itself does where
the index is missing altogether. Written against Aim 3.29.1.
"""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from stabilitybackend.base.errors import StabilityBoardError
from stabilityplugins.importers.base import FilePart, Importer, ImportPlan
from stabilityplugins.importers.batches import Batch, Grouper, Who
from stabilityplugins.importers.problems import Reading
from stabilityplugins.importers.rows.cells import NotAStep, as_step, row_of

__all__ = ["AimImporter"]

#: The database of a repository: every ``.aim`` has it.
_DATABASE = "run_metadata.sqlite"
#: Metrics and parameters that Aim adds by itself; their steps are counts of their own.
_OWN = "__system"


class AimImporter(Importer):
    """Aim's repositories: a run each."""

    name: ClassVar[str] = "aim"
    label: ClassVar[str] = "Aim"
    known: ClassVar[str] = "Aim repositories (.aim)"

    def named(self, path: Path) -> bool:
        return path.name == _DATABASE and path.parent.name == ".aim"

    def takes(self, path: Path, head: bytes) -> bool:
        return self.named(path)

    def plans(self, paths: list[Path], root: Path) -> list[ImportPlan]:
        return [self._plan_of(run, path.parent) for path in paths for run in _repository(path.parent).iter_runs()]

    def _plan_of(self, run: Any, folder: Path) -> ImportPlan:
        given = {name: value for name, value in run.meta_run_attrs_tree.collect().items() if not name.startswith(_OWN)}
        config = json.loads(json.dumps(given, default=str))
        part = FilePart((folder / "seqs" / "chunks" / run.hash,))
        return ImportPlan(self, [part], run.name or run.hash, run.hash, run.experiment or "", config)

    def read(
        self, path: Path, number: int, reading: Reading, *, rank: int = 0, prefix: str = "", step_key: str | None = None
    ) -> Iterator[Batch]:
        [run] = [run for run in _repository(path.parents[2]).iter_runs() if run.hash == path.name]
        rows: dict[int, dict[str, Any]] = defaultdict(dict)
        times: dict[int, float] = {}
        left_out = 0
        for name, metric in _named(run):
            if name.startswith(_OWN):
                left_out += 1
                continue
            steps, (values, _, stamps) = metric.data.numpy()
            for at, value, time in zip(steps.tolist(), values.tolist(), stamps.tolist(), strict=True):
                try:
                    step = as_step(at)
                except NotAStep as error:
                    reading.problem(path, name, str(error))
                    continue
                rows[step][prefix + name] = value
                times[step] = max(time, times.get(step, time))
        groups, who = Grouper(reading), Who(number, rank)
        # Aim keeps the newest value of a step, so steps never go back; earlier ones of a run that did are gone there.
        for item, step in enumerate(sorted(rows), 1):
            names, row = row_of(sorted(rows[step].items()), reading, path, f"step {step}")
            yield from groups.add(who, item, names, step, times[step], array("d", row))
        yield from groups.flush()
        reading.end_of_file(path, groups.numeric)
        if left_out:
            reading.note(
                f"{path}: {left_out} of Aim's system metrics are left out: their steps are counts of their own"
            )


def _repository(folder: Path) -> Any:
    """Return the repository in ``.aim``.

    Raises:
        StabilityBoardError: Aim is not installed.
    """
    try:
        sdk, union = import_module("aim.sdk.repo"), import_module("aim.storage.union")
    except ImportError as error:
        raise StabilityBoardError(
            f"Aim repositories are read with the package aim, which is not there ({error})",
            hint="pip install aim",
            code="missing_package",
        ) from error
    repo = sdk.Repo(str(folder.parent))
    repo.runs_of_files = union.RocksUnionContainer(f"{repo.path}/meta", read_only=True)  # the pool alone would drop it
    repo.container_pool[sdk.ContainerConfig("meta", None, True)] = repo.runs_of_files
    return repo


def _named(run: Any) -> list[tuple[str, Any]]:
    """Return each metric under its name: the values of its context before it, as in ``train/loss``.

    With the keys of the context where two would have one name.
    """
    metrics = [(metric, sorted(metric.context.to_dict().items())) for metric in run.metrics()]
    short = ["/".join([*(str(value) for _, value in context), metric.name]) for metric, context in metrics]
    return [
        (name if short.count(name) == 1 else "/".join([*(f"{k}={v}" for k, v in context), metric.name]), metric)
        for name, (metric, context) in zip(short, metrics, strict=True)
    ]
