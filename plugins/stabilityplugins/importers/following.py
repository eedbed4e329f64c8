"""``stabilityboard import --follow``: continues an import while another job writes the files."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer

from stabilitybackend.base.errors import BadRequest, StabilityBoardError
from stabilitybackend.cli.echo import echo
from stabilityclient.agent.upload.door import agent_url
from stabilityplugins.importers.base import Importer, ImportPlan
from stabilityplugins.importers.detect import find_plans, list_files
from stabilityplugins.importers.follow import Follower, FollowOptions
from stabilityplugins.importers.job import ImportResult

__all__ = ["follow_paths"]

#: Folders are looked at for further files so often, seconds.
RESCAN_S = 2.0
#: Age of the files at which one of several runs in a folder counts as ended: followed only once it grows, seconds.
OLD_S = 3_600.0


class PathFollower:
    """Follows every run in some paths.

    Args:
        paths, run_id, formats: as of ``find_plans``. make: makes the follower of one run. say: prints a line.
    """

    def __init__(
        self,
        paths: list[Path],
        run_id: str | None,
        make: Callable[[ImportPlan], Follower],
        say: Callable[[str], None],
        formats: Sequence[Importer],
    ) -> None:
        for path in paths:
            if not path.exists():
                raise BadRequest(f"{path} is not there", hint="follow the folder in which it will be")
        self._paths = paths
        self._run_id = run_id
        self._formats = formats
        self._say = say
        self._make = make
        self._listed: list[Path] | None = None
        self._plans: dict[tuple[str, Path], ImportPlan] = {}
        self._followers: dict[tuple[str, Path], Follower] = {}
        self._tasks: dict[tuple[str, Path], asyncio.Task[bool]] = {}
        #: Runs that are over -> when their files were written last, unix seconds.
        self._over: dict[tuple[str, Path], float] = {}
        self._why = ""
        self._ending = False
        self.good = True

    def end(self) -> None:
        """Take the present rows for all that there will be, and end all runs as finished."""
        self._ending = True
        for follower in self._followers.values():
            follower.end()

    async def run(self) -> bool:
        """Follow until all runs are over; return whether all of them could be read."""
        try:
            while True:
                if not self._ending:
                    await asyncio.to_thread(self._find)
                    self._begin()
                if not self._tasks:
                    if self._ending or self._over:
                        return self.good
                    await asyncio.sleep(RESCAN_S / 4)
                    continue
                done, _ = await asyncio.wait(self._tasks.values(), timeout=RESCAN_S, return_when="FIRST_COMPLETED")
                for place in [place for place, task in self._tasks.items() if task in done]:
                    self._take(place)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _find(self) -> None:
        """Look for runs where there are other files than before."""
        listed = [file for path in self._paths for file in (list_files(path) if path.is_dir() else [path])]
        if listed == self._listed and self._plans:
            return
        try:
            plans = find_plans(self._paths, run_id=self._run_id, formats=self._formats)
        except BadRequest as error:
            if (why := f"waits for something to follow: {error}") != self._why:
                self._why = why
                self._say(why)
            return
        self._listed, self._why = listed, ""
        for plan in plans:
            if not plan.importer.follows:
                raise BadRequest(
                    f"{plan.paths[0]}: {plan.importer.label} can't be followed",
                    hint="import it when it is complete, without --follow",
                )
            self._plans[plan.kind, plan.importer.place(plan)] = plan

    def _begin(self) -> None:
        """Follow new runs, and ended ones that grow."""
        for place, plan in self._plans.items():
            follower = self._followers.get(place)
            if follower is not None:
                follower.plan = plan
                continue
            written = _written(plan)
            old = len(self._plans) > 1 and time.time() - written > OLD_S
            if place in self._over and self._over[place] == written:
                continue
            self._over.pop(place, None)
            for note in plan.notes:
                self._say(f"{plan.name}: {note}")
            self._followers[place] = follower = self._make(plan)
            self._tasks[place] = asyncio.create_task(follower.run(), name=f"follow {plan.name}")
            if old:
                self._say(f"{plan.name}: written {(time.time() - written) / 3600:.0f} h ago, so it counts as ended")
                follower.end()

    def _take(self, place: tuple[str, Path]) -> None:
        """Take note that following one run has ended."""
        task = self._tasks.pop(place)
        del self._followers[place]
        plan = self._plans[place]
        self._over[place] = _written(plan)
        try:
            self.good = task.result() and self.good
        except (StabilityBoardError, OSError) as error:
            hint = f" ({error.hint})" if isinstance(error, StabilityBoardError) and error.hint else ""
            self._say(f"{plan.name}: no longer followed: {error}{hint}")
            self.good = False


def _written(plan: ImportPlan) -> float:
    """Return when the newest file of a run was written, unix seconds."""
    return max((os.stat(path).st_mtime for path in plan.paths if path.exists()), default=0.0)


#: Exit code of a program that SIGTERM ended.
_TERMINATED = 128 + signal.SIGTERM


def follow_paths(
    paths: list[Path],
    run_id: str | None,
    asked: FollowOptions,
    url: str,
    api_key: str | None,
    stored: Callable[[str], dict[str, Any] | None],
    report: Callable[[ImportResult, str], bool],
    formats: Sequence[Importer],
    err: bool = False,
) -> bool:
    """Follow files and folders until their runs are over, or until Ctrl-C; return whether all could be read.

    SIGTERM ends this program and not the runs: a restart continues them.

    Args:
        paths, run_id, formats: as of ``find_plans``. stored: run id -> its config at the server. report: prints the
            result of a run. err: print on standard error.
    """
    say = partial(_say, err=err)

    def make(plan: ImportPlan) -> Follower:
        return Follower(plan, asked, agent_url(url), api_key, stored, say, lambda result: _tell(result, report, say))

    async def follow() -> bool:
        follower = PathFollower(paths, run_id, make, say, formats)
        following = asyncio.create_task(follower.run())
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, follower.end)
        loop.add_signal_handler(signal.SIGTERM, following.cancel)
        return await following

    try:
        return asyncio.run(follow())
    except asyncio.CancelledError:
        say("ended by SIGTERM: the runs are as they were; start this again to go on")
        sys.stdout.flush()
        raise typer.Exit(_TERMINATED) from None


def _tell(result: ImportResult, report: Callable[[ImportResult, str], bool], say: Callable[[str], None]) -> None:
    report(result, "its log")
    say(f"{result.run_id}: " + (f"crashed with exit code {result.exit_code}" if result.exit_code else "finished"))


def _say(line: str, *, err: bool) -> None:
    echo(line, err=err)
    sys.stdout.flush()  # it may be a file with a live reader
