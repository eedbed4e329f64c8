"""Import of one run: its files, frames, transmission and result."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stabilitybackend.base.errors import BadRequest, StabilityBoardError
from stabilitybackend.base.keys import MAX_ID_CHARS
from stabilitybackend.schema.metric_roles import OTHERS
from stabilitybackend.schema.runs import UNTIMED_KEY
from stabilityclient.wire import Frame, Hello, SourceInfo
from stabilityplugins.importers.base import ImportPlan
from stabilityplugins.importers.batches import PAUSE, Batch
from stabilityplugins.importers.detect import slug
from stabilityplugins.importers.frames import FrameMaker, fingerprint
from stabilityplugins.importers.names import Names, usual_names
from stabilityplugins.importers.problems import Reading
from stabilityplugins.importers.row_checks import CHECK_KEY, MAX_CHECKS, stored_checks
from stabilityplugins.importers.rows.opened import unreadable
from stabilityplugins.importers.sender import deliver

__all__ = ["SNIFFED_ROWS", "ImportJob", "ImportResult", "Options"]

#: Rows in which the names of metrics are looked for before the first one is sent.
SNIFFED_ROWS = 2_000
#: In the name of a stream that an import made, see ``frames.py``.
_IMPORTED = re.compile(r"-[ix][0-9a-f]{9}[.-]")
#: Most characters of a name in a run id.
_SLUG_CHARS = 80


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line.

    Args:
        name, project: of the run; None: as the files say. renames: name in the file -> name here.
        keep_names: do not let other spellings take the place of loss, grad_norm and lr. step_key: the column of the
            step. no_rollbacks: steps that go back are no rollback and no restart.
    """

    name: str | None = None
    project: str | None = None
    renames: Mapping[str, str] = field(default_factory=dict)
    keep_names: bool = False
    step_key: str | None = None
    no_rollbacks: bool = False


@dataclass(frozen=True, slots=True)
class ImportResult:
    """Result of one run.

    Args:
        run_id: its id. rows, values: sent. already: rows that the server held before. reading: its unreadable places.
        renames: names that were changed. exit_code: of the job, as its log has it.
    """

    run_id: str
    rows: int
    values: int
    already: int
    reading: Reading
    renames: Mapping[str, str]
    exit_code: int = 0


class ImportJob:
    """The import of one run.

    Args:
        following: its files may still grow; see ``Reading.following`` and ``follow.py``.

    Attributes:
        reading: of the pass that is under way; the progress bar looks at it.
    """

    def __init__(self, plan: ImportPlan, options: Options, *, following: bool = False) -> None:
        self._plan = plan
        self._following = following
        self._closed = False
        self._options = options
        self.reading = Reading()
        self._seen: set[str] = set()
        self._mark = ""
        self._exported = False
        self._checks: dict[str, tuple[int, str]] = {}
        self._importer = plan.importer
        self._prepared: tuple[Any, list[str]] | None = None
        self._maker: FrameMaker | None = None
        self._names = Names(options.renames)
        #: Id of the run; set by ``sniff``.
        self.run_id = plan.run_id or ""

    def sniff(self) -> None:
        """Read the beginning of the files: the metrics' names and the run's.

        Raises:
            BadRequest: there is no row in them, or they can't be read.
        """
        rows, edition, pauses = 0, None, 0
        for batch in self._batches(Reading(following=self._following)):
            if batch is PAUSE:
                pauses += 1
                if pauses > 1 or self._seen:
                    break
                continue
            if not self._mark:
                self._mark, edition = fingerprint(batch), batch.edition
            self._seen.update(batch.names)
            rows += len(batch)
            if rows >= SNIFFED_ROWS and self._seen:
                break
        if not self._seen and edition is None:
            reading = Reading()
            for _ in self._batches(reading):
                pass
            why = next((f": {reason}" for reason in (*reading.named, *reading.notes)), "")
            raise BadRequest(
                f"{self._plan.name} has no row that can be read{why}",
                hint="expected rows of a step and numbers; --step-key names another column for the step",
            )
        if not self.run_id:
            self.run_id = f"{slug(self._plan.name)[-_SLUG_CHARS:].lstrip('-._')}-{self._mark[1:]}"[:MAX_ID_CHARS]
        self._exported = edition is not None

    async def send(
        self,
        url: str,
        api_key: str | None,
        progress: Callable[[], None] = lambda: None,
        stored: Mapping[str, Any] | None = None,
    ) -> ImportResult:
        """Send everything that the server does not hold.

        Args:
            url: of the gateway. progress: called now and then; ``reading.bytes_read`` is the size
                read. stored: config of the run at the server, where it is there.

        Raises:
            BadRequest: the run at the server is another one.
            StabilityBoardError: see ``deliver``.
        """
        hello = self.hello(stored)
        await deliver(hello, self.frames, url, api_key, progress)
        left = self.checks
        if left != self._checks:
            hello.config[CHECK_KEY] = left
            if self.reading.untimed:
                hello.config[UNTIMED_KEY] = True
            await deliver(hello, lambda held: iter(()), url, api_key)
        return self.result()

    def hello(self, stored: Mapping[str, Any] | None) -> Hello:
        """Return the run's identity; arguments and errors as of ``send``."""
        plan, options = self._plan, self._options
        hello = Hello(
            run_id=self.run_id,
            agent=self.agent,
            node=os.uname().nodename,
            client_version="import",
            project=options.project or plan.project,
            name=options.name or plan.name,
            config={**plan.config, "imported_from": plan.kind},
        )
        self._checks = stored_checks(stored)
        if stored is not None and "imported_from" not in stored:
            raise self._another_run()
        self._check_run(self._checks)  # before the server gets a name and a config
        hello.config[CHECK_KEY] = self._checks
        return hello

    @property
    def exported(self) -> bool:
        """Whether the files are this server's exports; set by ``sniff``."""
        return self._exported

    @property
    def behind(self) -> bool:
        """Whether the files have fewer records so far than were imported of them before."""
        return self._maker is not None and self._maker.behind

    @property
    def sent(self) -> int:
        """Rows sent so far."""
        return 0 if self._maker is None else self._maker.rows

    @property
    def already(self) -> int:
        """Rows that the server held before."""
        return 0 if self._maker is None else self._maker.already

    @property
    def agent(self) -> str:
        """As whom it talks to the server."""
        return f"import-{self.run_id}"[:MAX_ID_CHARS]

    @property
    def sources(self) -> list[SourceInfo]:
        """The newest process of each rank."""
        return [] if self._maker is None else self._maker.newest

    def end(self, *, read_on: bool = True) -> None:
        """Take the files' present rows for all that there will be; without ``read_on`` the rows read until now."""
        self._following = self.reading.following = False
        self._closed = not read_on

    @property
    def checks(self) -> dict[str, tuple[int, str]]:
        """Notes with the run for the next import, see ``checks.py``."""
        assert self._maker is not None
        return dict(list({**self._checks, **self._maker.checks}.items())[-MAX_CHECKS:])

    def used_names(self) -> dict[str, str]:
        """Return which names were changed into which, after the last row."""
        return {theirs: ours for theirs, ours in self._names.renames.items() if theirs in self._names.used}

    def rows(self) -> Iterator[Batch]:
        """Yield all rows under their names here, after ``sniff``."""
        self._names = self._choose_names({})
        self._begin()
        for batch in self._batches(self.reading):
            yield replace(batch, names=self._names.of(batch.names))

    def result(self) -> ImportResult:
        """Return the result, after the last frame."""
        maker = self._maker
        assert maker is not None
        used = self.used_names()
        for path, why in self.reading.untimed:
            self.reading.note(
                f"{path}: no times{f' ({why})' if why else ''}, so each row counts one second, up to when the file was "
                "last written"
            )
        self.reading.untimed.clear()
        if self._options.no_rollbacks and maker.already:
            self.reading.note("--no-rollbacks is for a new run: what the server holds stays as it is; --run-id NEW")
        for theirs in (name for name in self._options.renames if name not in used):
            self.reading.note(f"{theirs} is renamed nowhere: no row has it without {self._options.renames[theirs]}")
        return ImportResult(self.run_id, maker.rows, maker.values, maker.already, self.reading, used, maker.exit_code)

    def frames(self, held: Mapping[str, int], checks: dict[str, tuple[int, str]] | None = None) -> Iterator[Frame]:
        """Yield the frames that the server does not hold; arguments as of ``frames_and_pauses``."""
        return (frame for frame in self.frames_and_pauses(held, checks) if frame is not None)

    def frames_and_pauses(
        self, held: Mapping[str, int], checks: dict[str, tuple[int, str]] | None = None
    ) -> Iterator[Frame | None]:
        """Yield the frames that the server does not hold, None where files that are followed have no more for now.

        Args:
            held: source -> last number, of all sources of the run.
            checks: the last import's notes; None: as given to ``send``.
        """
        before = self._maker
        if checks is not None:
            self._checks = checks
        elif before is not None and self._following:
            self._checks = self.checks
        self._check_run(held)
        self._names = self._choose_names(held)
        self._begin()
        known = ((at, self._importer.start_of_file(path)) for at, path in enumerate(self._plan.paths))
        starts = {at: start for at, start in known if start is not None}
        self._maker = FrameMaker(held, self._names, self.reading, self._plan.paths, starts, self._checks)
        self._maker.no_rollbacks = self._options.no_rollbacks
        if before is not None:  # frames sent on the connection before count as sent
            self._maker.rows, self._maker.values = before.rows, before.values
            self._maker.already = -before.rows
        return self._maker.frames(self._batches(self.reading))

    def _begin(self) -> None:
        self.reading = Reading(notes=list(self._plan.notes), following=self._following)
        for problem in self._plan.refused:
            self.reading.problem(problem.file, problem.place, problem.reason)

    def _check_run(self, sources: Iterable[str]) -> None:
        """Refuse to mix files into a run that did not come from such: its points would stand there twice, its name and
        config would be lost.

        Args:
            sources: streams of the run at the server.
        """
        ours = f"-{self._mark}" if self._exported and len(self._plan.parts) == 1 else None
        if any(ours not in source if ours is not None else not _IMPORTED.search(source) for source in sources):
            raise self._another_run()

    def _another_run(self) -> BadRequest:
        return BadRequest(
            f"run {self.run_id} is on the server already and did not come from such an import",
            hint="import the files as another run: --run-id NEW",
        )

    def _choose_names(self, held: Mapping[str, int]) -> Names:
        """Return the names: as asked; as in the import that the server holds of this file; else the usual ones."""
        options = self._options
        if options.renames or self._exported:
            return Names(options.renames)
        suffixes = {source.rpartition(".")[2] for source in held if f"-{self._mark}." in source}
        usual = {} if options.keep_names else usual_names(self._seen)
        for renames in (usual, *_possible()) if suffixes and not options.keep_names else (usual,):
            names = Names(renames)
            if not suffixes or names.mark in suffixes:
                return names
        return Names(usual)

    def _batches(self, reading: Reading) -> Iterator[Batch]:
        if self._prepared is None:  # of some formats it reads every file: once is enough
            first = Reading()
            self._prepared = self._importer.prepare(self._plan.parts, first), first.notes
        prepared, notes = self._prepared
        for note in notes:
            reading.note(note)
        try:
            for batch in self._importer.batches(prepared, reading, self._options.step_key):
                yield batch
                if self._closed:
                    break
            yield from reading.rest_of_file()
        except (StabilityBoardError, OSError):
            raise
        except Exception as error:  # a file of another program may hold anything, and the next one is to be read
            raise unreadable(self._plan.paths[0], error) from error


def _possible() -> Iterator[dict[str, str]]:
    """Yield every mapping that ``usual_names`` can give."""
    choices = [[(None, ours), *((theirs, ours) for theirs in spellings)] for ours, spellings in OTHERS.items()]
    for chosen in itertools.product(*choices):
        yield {theirs: ours for theirs, ours in chosen if theirs is not None}
