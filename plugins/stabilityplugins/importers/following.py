"""``stabilityboard import --follow``: goes on with an import while another job writes the files."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer

from stabilitybackend.cli.echo import echo
from stabilityclient.agent.upload.door import agent_url
from stabilityplugins.importers.base import Importer, ImportPlan
from stabilityplugins.importers.follow import Follower, FollowOptions
from stabilityplugins.importers.follow_paths import PathFollower
from stabilityplugins.importers.job import ImportResult

__all__ = ["follow_paths"]

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

    SIGTERM ends this program and not the runs: started again it goes on where it was.

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
    sys.stdout.flush()  # it may be a file that somebody follows
