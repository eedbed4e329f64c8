"""Says which runs are in files and folders, and reads them as frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from stabilitybackend.backtest.columns import Rows
from stabilitybackend.backtest.jsonl import Lines, read_rows
from stabilitybackend.backtest.log_frames import log_frames
from stabilitybackend.errors import BadRequest
from stabilitybackend.importers.detect import Plan, find_plans
from stabilitybackend.importers.job import ImportJob, Options
from stabilitybackend.importers.jsonl import export_header
from stabilitybackend.importers.names import Names, usual_names
from stabilitybackend.importers.troubles import Reading, Trouble
from stabilityclient.wire import Frame

__all__ = ["Log", "read_files"]

#: Names of files that are read as JSON lines without a look into them.
JSONL_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
#: Rows in which the names of metrics are looked for before the first one is judged; the import does the same.
LOOK_ROWS = 2_000


@dataclass
class Log:
    """One run of the past.

    Attributes:
        name: for people: the file or folder as given, and what is in it.
        kind: which reader. size: bytes of its files.
        reading: what could not be read, complete after the last frame.
    """

    name: str
    kind: str
    size: int
    read: Callable[[Reading], Iterator[Frame]]
    reading: Reading = field(default_factory=Reading)

    def frames(self) -> Iterator[Frame]:
        """Yield the frames, from the beginning.

        Raises:
            BadRequest: nothing in it can be read.
        """
        self.reading = Reading()
        yield from self.read(self.reading)


def read_files(paths: list[Path], *, step_key: str | None = None) -> Iterator[Log]:
    """Yield the runs in files and folders, one after the other.

    Args:
        paths: JSON lines (also ``.gz``), TensorBoard folders, our exports, or anything else that the import reads.
        step_key: where the step stands; None: the usual keys.

    Raises:
        BadRequest: a path is not there or holds nothing that is known. Paths before it have been yielded.
    """
    for path in paths:
        if (
            path.is_file()
            and path.name.lower().endswith(JSONL_SUFFIXES)
            and (path.suffix == ".gz" or export_header(path) is None)
        ):
            yield _json_lines(path, str(path), step_key)
        elif path.is_dir():
            yield from _of_folder(path, step_key)
        else:
            yield from (_of_plan(plan, str(path), step_key) for plan in find_plans([path]))


def _of_folder(folder: Path, step_key: str | None) -> Iterator[Log]:
    packed = sorted(path for path in folder.rglob("*.gz") if path.name.lower().endswith(JSONL_SUFFIXES))
    try:
        plans = find_plans([folder])
    except BadRequest:
        if not packed:
            raise
        plans = []
    for plan in plans:
        yield _of_plan(plan, str(folder) if len(plans) == 1 and not packed else str(plan.paths[0]), step_key)
    for path in packed:
        yield _json_lines(path, str(path), step_key)


def _json_lines(path: Path, name: str, step_key: str | None, troubles: list[Trouble] | None = None) -> Log:
    def read(reading: Reading) -> Iterator[Frame]:
        for trouble in troubles or []:
            reading.trouble(trouble.file, trouble.place, trouble.reason)
        lines = Lines(path, reading)
        yield from log_frames(_renamed(_counted(read_rows(lines, step_key), lines), path, reading))

    return Log(name, "jsonl", path.stat().st_size, read)


def _counted(rows: Iterator[Rows], lines: Lines) -> Iterator[Rows]:
    """Yield ``rows``, and raise at the end when there was a line and none of them is a row."""
    any_row = False
    try:
        for some in rows:
            any_row = True
            yield some
    except (OSError, EOFError) as error:
        if not any_row:
            raise BadRequest(f"{lines.path} can't be read: {error}") from error
        lines.reading.trouble(lines.path, f"after line {lines.count}", f"the rest can't be read: {error}")
    if not any_row and lines.reading.count:
        first = lines.reading.named[0]
        raise BadRequest(
            f"{lines.path} has no row that can be judged: {first.place}: {first.reason}",
            hint='expected JSON lines such as {"step": 1, "loss": 2.5}; --step-key names another key for the step',
        )


def _renamed(rows: Iterator[Rows], path: Path, reading: Reading) -> Iterator[Rows]:
    """Let other spellings take the place of loss, grad_norm and lr where there are none, as the import does."""
    looked: list[Rows] = []
    seen: set[str] = set()
    count = 0
    for some in rows:
        looked.append(some)
        seen.update(some.names)
        count += len(some.steps)
        if count >= LOOK_ROWS:
            break
    names = Names(usual_names(seen))
    for theirs, ours in names.renames.items():
        reading.note(f"{path}: {theirs} is judged as {ours}")
    for some in chain(looked, rows):
        seen.update(some.names)
        some.names = names.of(some.names)
        yield some
    reading.end_of_file(path, seen)


def _of_plan(plan: Plan, name: str, step_key: str | None) -> Log:
    if plan.kind == "jsonl" and len(plan.paths) == 1 and export_header(plan.paths[0]) is None:
        return _json_lines(plan.paths[0], name, step_key, plan.refused)
    if plan.kind == "spool":
        raise BadRequest(
            f"{name} is a spool folder, which only its run's server can read",
            hint="import it (stabilityboard import), then backtest the run by its id",
        )

    def read(reading: Reading) -> Iterator[Frame]:
        job = ImportJob(plan, Options(step_key=step_key))
        job.look()
        frames = job.frames({})
        yield from frames
        reading.named, reading.count = job.reading.named, job.reading.count
        reading.notes, reading.bytes_read = job.reading.notes, job.reading.bytes_read

    return Log(name, plan.kind, plan.size, read)
