"""The program ``stabilityboard`` in a process of its own, forked from one that has imported it already.

A hundred tests start a server. Its imports take longer than all else that it does until it answers, and every one of
them is the same: Python's own fork server makes them once. All that follows is the program's: its settings, its port,
its Redis, its signals. That it starts from nothing too is what tests/backend/cli/test_program.py shows.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from functools import cache
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from pathlib import Path

__all__ = ["ForkedProgram"]

#: What `up` imports and makes until it answers.
_MADE = "support.made.application"


class ForkedProgram:
    """As much of `subprocess.Popen` as tests ask of a server.

    Args:
        arguments: of the program.
        environ: all of its environment.
        log: file to whose end its output goes.
    """

    def __init__(self, arguments: list[str], environ: dict[str, str], log: Path) -> None:
        context = _fork_server()
        self._process = context.Process(target=_run, args=(arguments, environ, str(log)), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return `returncode`."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended; raises subprocess.TimeoutExpired after ``timeout`` seconds."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("stabilityboard", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9."""
        self.send_signal(signal.SIGKILL)


@cache
def _fork_server() -> ForkServerContext:
    """Return where programs are forked from; it runs.

    Python gives it no path for what it imports first, and passes over what it does not find: the path is put into its
    environment. Those of the programs are their own.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_MADE])
    before = os.environ.get("PYTHONPATH")
    tests = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = tests if before is None else os.pathsep.join((tests, before))
    try:
        ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context


def _run(arguments: list[str], environ: dict[str, str], log: str) -> None:
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = ["stabilityboard", *arguments]
    assert _MADE in sys.modules, "the fork server did not make the application first"
    from stabilitybackend.cli.app import main
    from support.roles.planted import plant_from_environment

    plant_from_environment()

    main()
