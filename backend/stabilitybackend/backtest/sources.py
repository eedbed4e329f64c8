"""Says which runs are in files and folders, and reads them as frames."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from stabilitybackend.backtest.columns import LogRows
from stabilitybackend.backtest.jsonl import Lines, read_rows
from stabilitybackend.backtest.log_frames import log_frames
from stabilitybackend.backtest.side_by_side import side_by_side
from stabilitybackend.errors import BadRequest
from stabilitybackend.importers.base import FilePart, ImportPlan
from stabilitybackend.importers.detect import find_plans
from stabilitybackend.importers.job import SNIFFED_ROWS, ImportJob, Options
from stabilitybackend.importers.jsonl import export_header
from stabilitybackend.importers.names import Names, usual_names
from stabilitybackend.importers.troubles import Reading
from stabilityclient.wire import Frame

__all__ = ["Log", "read_files"]

#: Names of files that are read as JSON lines without a look into them, also when they are empty.
JSONL_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")


@dataclass
class Log:
    """One run of the past; can be sent to another process before it is read.

    Attributes:
        name: for people: the path as given, or the one of the run in the folder that was given.
        plan: the files and what they are; the kind ``jsonl`` is JSON lines that are no export of ours.
        step_key: name of the step's column; None: the usual keys.
        renames: name in the log -> name that it is judged as; empty: the usual other spellings.
        reading: what could not be read and what was decided, complete after the last frame.
    """

    name: str
    plan: ImportPlan
    step_key: str | None = None
    renames: Mapping[str, str] = field(default_factory=dict)
    reading: Reading = field(default_factory=Reading)

    def frames(self) -> Iterator[Frame]:
        """Yield the frames, from the beginning.

        Raises:
            BadRequest: nothing in it can be read.
        """
        self.reading = Reading(notes=list(self.plan.notes))
        for trouble in self.plan.refused:
            self.reading.trouble(trouble.file, trouble.place, trouble.reason)
        if self.plan.kind == "lines":
            lines = Lines(self.plan.paths[0], self.reading)
            if lines.is_export():
                raise BadRequest(f"{self.name} is a packed export of ours", hint="unpack it first: gunzip")
            yield from log_frames(_renamed(_counted(read_rows(lines, self.step_key), lines), lines, self.renames))
            return
        job = ImportJob(self.plan, Options(step_key=self.step_key, renames=self.renames))
        job.sniff()
        frames = job.frames({})
        try:
            yield from side_by_side(frames)
        finally:
            self.reading = job.reading
        for theirs, ours in job.result().renames.items():
            self.reading.note(f"{self.name}: {theirs} is judged as {ours}")


def read_files(
    paths: list[Path], *, step_key: str | None = None, renames: Mapping[str, str] | None = None
) -> Iterator[Log]:
    """Yield the runs in files and folders, one after the other.

    Args:
        paths: JSON lines (also ``.gz``), TensorBoard folders, our exports, or anything else that the import reads.
        step_key: name of the step's column; None: the usual keys.
        renames: name in the log -> name that it is judged as; None: the usual other spellings.

    Raises:
        BadRequest: a path is not there or holds nothing that is known. Paths before it have been yielded.
    """
    for path in paths:
        if path.is_dir():
            found = _of_folder(path, step_key)
        elif path.is_file() and path.name.lower().endswith(JSONL_SUFFIXES):
            found = iter([_log(_jsonl(path), str(path), step_key)])
        else:
            found = (_log(plan, str(path), step_key) for plan in find_plans([path]))
        for log in found:
            log.renames = renames or {}
            yield log


def _of_folder(folder: Path, step_key: str | None) -> Iterator[Log]:
    """Yield the runs in a folder. The import does not know ``.gz``, so those files are looked for here."""
    packed = sorted(path for path in folder.rglob("*.gz") if path.name.lower().endswith(JSONL_SUFFIXES))
    try:
        plans = find_plans([folder])
    except BadRequest:
        if not packed:
            raise
        plans = []
    plans += map(_jsonl, packed)
    for plan in plans:
        one = plan.paths[0]
        yield _log(plan, str(one.parent if plan.kind == "tensorboard" else one), step_key)


def _jsonl(path: Path) -> ImportPlan:
    return ImportPlan("jsonl", [FilePart((path,))], path.name)


def _log(plan: ImportPlan, name: str, step_key: str | None) -> Log:
    if plan.kind == "spool":
        raise BadRequest(
            f"{name} is a spool folder, which only its run's server can read",
            hint="import it (stabilityboard import), then backtest the run by its id",
        )
    if plan.kind == "jsonl" and export_header(plan.paths[0]) is None:
        plan.kind = "lines"
    return Log(name, plan, step_key)


def _counted(rows: Iterator[LogRows], lines: Lines) -> Iterator[LogRows]:
    """Yield ``rows``; raise when there was something to read and none of it is a row.

    What breaks off behind the first row (a damaged ``.gz``) is noted, and what came before it is judged.
    """
    any_row = False
    try:
        for some in rows:
            any_row = True
            yield some
    except (OSError, EOFError, zlib.error) as error:
        if not any_row:
            raise BadRequest(f"{lines.path} can't be read: {error}") from error
        lines.reading.trouble(lines.path, f"after line {lines.count}", f"the rest can't be read: {error}")
    if not any_row and lines.reading.count:
        first = lines.reading.named[0]
        raise BadRequest(
            f"{lines.path} has no row that can be judged: {first.place}: {first.reason}",
            hint='expected JSON lines such as {"step": 1, "loss": 2.5}; --step-key names another key for the step',
        )


def _renamed(rows: Iterator[LogRows], lines: Lines, renames: Mapping[str, str]) -> Iterator[LogRows]:
    """Rename as asked; else let other spellings take the place of loss, grad_norm and lr, as the import does."""
    looked: list[LogRows] = []
    seen: set[str] = set()
    count = 0
    for some in rows:
        looked.append(some)
        seen.update(some.names)
        count += len(some.steps)
        if count >= SNIFFED_ROWS:
            break
    names = Names(renames or usual_names(seen))
    for theirs, ours in names.renames.items():
        lines.reading.note(f"{lines.path}: {theirs} is judged as {ours}")
    for some in chain(looked, rows):
        seen.update(some.names)
        some.names = names.of(some.names)
        yield some
    lines.reading.end_of_file(lines.path, seen)
