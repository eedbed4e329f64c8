"""Follower of one run whose files another program still writes: sends new rows, and reports silence.

A reader of ``importers/`` stays where a file ends (``Reading.following``) and continues from there, so a look costs
the new rows only. The place is kept by the server alone, as numbers of records: a restarted follower reads the
files once from the beginning and sends the missing rows. The same happens when files were replaced.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.schema.runs import FOLLOWED_KEY, Followed
from stabilityclient.wire import Health
from stabilityplugins.importers.base import ImportPlan
from stabilityplugins.importers.job import ImportJob, ImportResult, Options
from stabilityplugins.importers.row_checks import CHECK_KEY
from stabilityplugins.importers.sender import POLL_S, deliver

__all__ = ["FollowOptions", "Follower"]

#: Bytes at the beginning of a file that have to stay as they are.
HEAD_BYTES = 4_096


@dataclass(slots=True)
class _Mark:
    """A file as it was: which one, how long, when written (ns), how it begins."""

    place: tuple[int, int]
    size: int
    written: int
    head: bytes


class Change(NamedTuple):
    """Reason to read the files from the beginning. intact: the present reading can be completed before."""

    why: str
    intact: bool


class FileMarks:
    """The files of a plan as they are when a pass over them begins, and how they change."""

    def __init__(self, plan: ImportPlan) -> None:
        self._paths = plan.paths
        self._rewritten = plan.importer.rewritten
        self._marks = {path: _mark(path) for path in (plan.paths if self._rewritten else plan.importer.appended(plan))}

    def age_s(self, now: float) -> float:
        """Return the time since the last write, seconds; 0 where it is unavailable."""
        newest = max((mark.written for mark in self._marks.values()), default=None)
        return 0.0 if newest is None else max(0.0, now - newest / 1e9)

    def changed(self, plan: ImportPlan) -> Change | None:
        """Return why the files have to be read from the beginning, None where they only grew."""
        if plan.paths != self._paths:
            return Change("there are other files now", intact=True)
        for path, mark in self._marks.items():
            try:
                now = os.stat(path)
            except FileNotFoundError:
                return Change(f"{path} is gone", intact=True)
            if (now.st_dev, now.st_ino) != mark.place:
                return Change(f"{path} was replaced by another file", intact=True)
            if self._rewritten:
                if (now.st_size, now.st_mtime_ns) != (mark.size, mark.written):
                    return Change(f"{path} was rewritten", intact=True)  # it is read whole
            elif now.st_size < mark.size:
                return Change(f"{path} was cut from {mark.size} to {now.st_size} bytes", intact=False)
            elif now.st_size > mark.size:
                if _head(path, len(mark.head)) != mark.head:
                    return Change(f"{path} was rewritten", intact=False)
                mark.size, mark.written = now.st_size, now.st_mtime_ns
        return None


def _mark(path: Path) -> _Mark:
    now = os.stat(path)
    return _Mark((now.st_dev, now.st_ino), now.st_size, now.st_mtime_ns, _head(path, min(now.st_size, HEAD_BYTES)))


def _head(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)


#: A log is quiet after so many times its longest pause so far, and not before, seconds.
QUIET_FACTOR, QUIET_FLOOR_S = 5.0, 300.0
#: The time between two looks counts as quiet up to this: no look was taken while the server was away, seconds.
MAX_LOOK_S = 5.0
#: Period of leaving the sum over the rows read with the run, seconds: it reveals a rewritten file.
CHECKS_EVERY_S = 60.0

_UNSEEN = "only its log is followed, its process can't be seen"


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """Options of the command line.

    Args:
        options: as of an import. quiet_after_s: silence after which the run is shown as quiet; None: by the longest
            pause so far. until_quiet_s: silence after which the log counts as ended; None: never.
    """

    options: Options
    quiet_after_s: float | None = None
    until_quiet_s: float | None = None


class _NewPass(Exception):
    """The files are others now; ``job`` reads them from the beginning."""

    def __init__(self, job: ImportJob) -> None:
        super().__init__()
        self.job = job


class Follower:
    """One run whose files may still grow.

    Args:
        plan: its files. url, api_key: of the server's agents' door. stored: run id -> its config at the server, None
            for a new run. say: prints a line. report: prints the result of an ended run.

    Attributes:
        plan: may be replaced at any time, when there are more files.
    """

    def __init__(
        self,
        plan: ImportPlan,
        asked: FollowOptions,
        url: str,
        api_key: str | None,
        stored: Callable[[str], dict[str, Any] | None],
        say: Callable[[str], None],
        report: Callable[[ImportResult], None],
    ) -> None:
        self.plan = plan
        self._asked = asked
        self._url = url
        self._api_key = api_key
        self._stored = stored
        self._say = say
        self._report = report
        self._said: dict[str, str | None] = {}
        self._ending = False
        self._started = time.time()
        self._job = ImportJob(plan, asked.options, following=True)
        self._next: ImportJob | None = None
        self._marks = FileMarks(plan)
        self._config: dict[str, Any] = {}
        self._left_at = time.monotonic()
        self._problems = 0
        # Silence and pauses, seconds.
        self._changed = False
        #: When all was sent that the files had at the start, unix seconds.
        self._caught_up: float | None = None
        self._sent = 0
        self._looked: float | None = None
        self._quiet_s = 0.0
        self._longest_s = 0.0

    def end(self) -> None:
        """Take the present rows for all that there will be, and end the run as finished."""
        self._ending = True

    async def run(self) -> bool:
        """Follow to the end of the log; return whether all its rows could be read.

        Raises:
            BadRequest: the files were rewritten, or are of a kind that can't be followed.
            StabilityBoardError: see ``deliver``.
        """
        job = await self._first()
        if job is None:
            return True
        good, before = True, None
        while True:
            self._job, self._next, self._problems, self._sent, self._changed = job, None, 0, 0, False
            stored = await asyncio.to_thread(self._known, job, before)
            self._longest_s = max(self._longest_s, Followed.of(stored or {}).longest_pause_s)
            hello = job.hello(stored)
            self._config = hello.config
            self._leave()
            try:
                await deliver(hello, job.frames_and_pauses, self._url, self._api_key, following=self)
            except _NewPass as new:
                job, before = new.job, job
                continue
            if self._leave():
                await deliver(hello, lambda held: iter(()), self._url, self._api_key)
            result = job.result()
            good = good and not result.reading.count
            self._report(result)
            if self._next is None:
                return good
            job, before, self._caught_up, self._longest_s = self._next, None, None, 0.0

    async def _first(self) -> ImportJob | None:
        """Return the job once the files have a row; None where following ended before."""
        while True:
            try:
                return await asyncio.to_thread(self._new_job)
            except BadRequest as error:
                if error.code == "not_followed":
                    raise
                self._tell("start", f"{self.plan.name}: waits for a first row: {error}")
            if self._ending:
                return None
            await asyncio.sleep(POLL_S)

    def _new_job(self) -> ImportJob:
        marks = FileMarks(self.plan)
        job = ImportJob(self.plan, self._asked.options, following=True)
        job.sniff()
        if job.exported:
            raise BadRequest(
                f"{self.plan.name} is an export of ours, which does not grow",
                hint="import it without --follow",
                code="not_followed",
            )
        self._marks = marks
        return job

    def _known(self, job: ImportJob, before: ImportJob | None) -> Mapping[str, Any] | None:
        """Return the run's config at the server, with the sums over the rows read until now."""
        stored = self._stored(job.run_id)
        if before is None:
            return stored
        sums = {source: list(entry) for source, entry in before.checks.items()}
        return {**(stored or {"imported_from": self.plan.kind}), CHECK_KEY: sums}

    # --- the questions of ``deliver`` -------------------------------------------------------------------------------

    def paused(self) -> bool:
        """Take note that all is sent; begin again where the files are others now; end at the end of the log."""
        job = self._job
        first = self._caught_up is None
        self._measure_silence()
        self._tell_problems()
        code = job.reading.ended.get(len(self.plan.parts) - 1)
        until = self._asked.until_quiet_s
        if code is not None:
            self._tell("over", f"{job.run_id}: its log has ended" + (f", exit code {code}" if code else ""))
        if self._ending or code is not None or (until is not None and self._quiet_s >= until):
            if first:  # it had ended before this program started
                self._caught_up = None
            job.end()
            return False
        change = self._marks.changed(self.plan)
        self._tell("files", None if change is None else f"{job.run_id}: {change.why}")
        if change is not None:
            # Once more to the end of a file that was put aside: its last rows may have come after our last look.
            at_once = self._changed or not change.intact
            self._changed = True
            return self._start_over(change.intact) if at_once else False
        self._changed = False
        shorter = f"{job.run_id}: {self._name} has less than was sent of it: waits for more" if job.behind else None
        self._tell("behind", shorter)
        return (first or time.monotonic() - self._left_at >= CHECKS_EVERY_S) and self._leave()

    def _leave(self) -> bool:
        """Put the facts for a later follower and the alerts into the config; return whether they are new."""
        self._left_at = time.monotonic()
        left: dict[str, Any] = {FOLLOWED_KEY: Followed(self._caught_up, self._longest_s).as_config()}
        if self._job.sent or self._job.already:
            left[CHECK_KEY] = self._job.checks
        news = any(self._config.get(key) != value for key, value in left.items())
        self._config |= left
        return news

    def health(self) -> Health:
        """Return that the ranks can't be seen, and the time without a new row."""
        job = self._job
        now, log = time.time(), {"name": self._name, "quiet_s": self._quiet_s, "limit_s": self._limit_s}
        ranks = [
            {"rank": one.rank, "source": one.source, "alive": True, "local_rank": one.local_rank, "time": now,
             "world_size": one.world_size, "trouble": _UNSEEN}
            for one in job.sources
        ]  # fmt: skip
        state = {"started": self._started, "log": log}
        return Health(job.agent, os.uname().nodename, now, ranks, state)

    def connection(self, problem: str | None) -> None:
        """Report the server's loss and its return."""
        self._looked = None
        run = self._job.run_id
        self._tell("server", None if problem is None else f"{run}: trying again: {problem}", f"{run}: connected again")

    # --- the rest ---------------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        path: Path = self.plan.paths[-1]
        return path.name if self.plan.importer.appended(self.plan) else f"{path.parent.name}/{path.name}"

    @property
    def _limit_s(self) -> float:
        given = self._asked.quiet_after_s
        return max(QUIET_FLOOR_S, QUIET_FACTOR * self._longest_s) if given is None else given

    def _measure_silence(self) -> None:
        """Count the silence, and learn from the pauses."""
        now, before, sent = time.monotonic(), self._looked, self._job.sent
        passed_s = 0.0 if before is None else min(now - before, MAX_LOOK_S)
        self._looked = now
        if self._caught_up is None:
            self._caught_up, self._quiet_s = time.time(), self._marks.age_s(time.time())
            there = f"{sent} rows sent, {self._job.already} were there already"
            self._say(f"{self._job.run_id}: follows {self._name}: {there}")
        elif sent == self._sent:
            self._quiet_s += passed_s
        else:
            # An alarm at most doubles the usual time.
            self._longest_s = max(self._longest_s, min(self._quiet_s + passed_s, 2 * self._limit_s))
            self._quiet_s = 0.0
        self._sent = sent
        quiet = f"{self._job.run_id}: nothing new in {self._name} for {self._limit_s:.0f} s"
        self._tell("quiet", quiet if self._quiet_s > self._limit_s else None, f"{self._job.run_id}: new rows again")

    def _tell_problems(self) -> None:
        reading = self._job.reading
        if reading.count > self._problems:
            self._say(f"{self._job.run_id}: could not be read: {reading.named[-1]} ({reading.count} in all)")
            self._problems = reading.count

    def _start_over(self, intact: bool) -> bool:
        """Read the files that are there now: as the same run where they begin as before, else as another one."""
        job = self._job
        try:
            new = self._new_job()
        except (BadRequest, OSError) as error:  # it is being written, maybe
            self._tell("new", f"{job.run_id}: waits for it: {error}")
            return False
        self._tell("new", None)
        if new.run_id == job.run_id:
            raise _NewPass(new)
        self._say(f"{job.run_id} ends: the files begin differently now, and go on as {new.run_id}")
        self._next = new
        job.end(read_on=intact)
        return False

    def _tell(self, about: str, text: str | None, over: str | None = None) -> None:
        """Say something once, and ``over`` once it is so no longer."""
        before, self._said[about] = self._said.get(about), text
        if text != before:
            line = over if text is None else text
            if line is not None:
                self._say(line)
