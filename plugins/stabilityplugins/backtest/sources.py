"""Says which runs are in files and folders, and reads them as frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stabilitybackend.base.errors import BadRequest
from stabilityclient.wire import Frame
from stabilityplugins.backtest.log_frames import log_frames
from stabilityplugins.backtest.side_by_side import side_by_side
from stabilityplugins.importers.base import Importer, ImportPlan
from stabilityplugins.importers.detect import find_plans
from stabilityplugins.importers.formats import FORMATS
from stabilityplugins.importers.job import ImportJob, Options
from stabilityplugins.importers.troubles import Reading

__all__ = ["Log", "read_files"]

#: Formats whose rows are in the order of the log, for all ranks: they need not be put side by side by their times.
_IN_ORDER = ("jsonl", "csv", "json_list", "trainer_state", "text_log")


@dataclass
class Log:
    """One run of the past; can be sent to another process before it is read.

    Attributes:
        name: for people: the path as given, or the one of the run in the folder that was given.
        plan: the files and what they are.
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
        job = ImportJob(self.plan, Options(step_key=self.step_key, renames=self.renames))
        job.sniff()
        if self.plan.kind in _IN_ORDER and not job.exported:
            frames = log_frames(job.rows())
        else:
            frames = side_by_side(job.frames({}))
        try:
            yield from frames
        finally:
            self.reading = job.reading
        for path, why in self.reading.untimed:
            if why:
                self.reading.note(f"{path}: no times ({why}), so each step counts one second")
        for theirs, ours in job.used_names().items():
            self.reading.note(f"{self.name}: {theirs} is judged as {ours}")


def read_files(
    paths: list[Path],
    *,
    step_key: str | None = None,
    renames: Mapping[str, str] | None = None,
    formats: Sequence[Importer] = FORMATS,
) -> Iterator[Log]:
    """Yield the runs in files and folders, one after the other.

    Args:
        paths: anything that the import reads.
        step_key: name of the step's column; None: the usual keys.
        renames: name in the log -> name that it is judged as; None: the usual other spellings.
        formats: those that are looked for.

    Raises:
        BadRequest: a path is not there or holds nothing that is known. Paths before it have been yielded.
    """
    for path in paths:
        for plan in find_plans([path], formats=formats):
            if plan.kind == "spool":
                raise BadRequest(
                    f"{plan.paths[0]} is a spool folder, which only its run's server can read",
                    hint="import it (stabilityboard import), then backtest the run by its id",
                )
            yield Log(_name(plan, path), plan, step_key, renames or {})


def _name(plan: ImportPlan, given: Path) -> str:
    one = plan.paths[0]
    name = str(given if not given.is_dir() else one.parent if plan.kind == "tensorboard" else one)
    return f"{name} ({run})" if (run := plan.parts[0].run) else name
