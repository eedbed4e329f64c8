"""Problems of the server, for probes and alerting. They name no run: any caller sees them."""

from __future__ import annotations

from collections.abc import Iterable

from stabilitybackend.base.tasks import Watched
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.schema.server import ErrorFacts
from stabilitybackend.storage.storing import Storing

__all__ = ["in_one_line", "lost", "server_problems"]


def server_problems(manager: RunManager, storing: Storing, work: Watched) -> list[ErrorFacts]:
    """Return why the server is not ready: a live run is not judged or stored, or a background task ended."""
    hint = "restart the server, and report what its log says"
    found = [ErrorFacts("stopped", f"{task} no longer runs", hint) for task in work.failed]
    if storing.problem is not None:
        found.append(ErrorFacts(storing.problem.code, storing.problem.problem, storing.problem.hint))
    return [*found, *_restoring(manager), *_windows(manager)]


def _restoring(manager: RunManager) -> Iterable[ErrorFacts]:
    if manager.late:
        message, hint = "Redis was away at the start: live runs are not taken up yet", "wait; it is tried each second"
        yield ErrorFacts("restoring", message, hint)
    elif waiting := manager.waking.waiting:
        message = f"{waiting} of {manager.waking.total} live runs are not judged yet after the restart"
        yield ErrorFacts("restoring", message, "wait; the server's log names trouble")


def _windows(manager: RunManager) -> Iterable[ErrorFacts]:
    windows = [worker.window for worker in manager.owned().values()]
    if unarchived := sum(bool(window.problem) for window in windows):
        message = f"the archive of {_runs(unarchived)} can't be written; their points stay in Redis until it can"
        hint = "make room on its disk, or mend the way to its store: the run's page and its storage call say why"
        yield ErrorFacts("archive", message, hint)
    if full := sum(window.full_since is not None for window in windows):
        message = f"nothing new of {_runs(full)} is stored: the window of each is full"
        hint = "agents keep what comes; the banner of the run's page and its storage call say why"
        yield ErrorFacts("window_full", message, hint)


def lost(manager: RunManager) -> list[ErrorFacts]:
    """Return the rows that Redis lost before its start. They keep no server from its work."""
    runs = sum(bool(worker.window.lost) for worker in manager.owned().values())
    if not runs:
        return []
    message = f"Redis came up with less of {_runs(runs)} than was written down of it"
    hint = (
        "see the log of Redis: was its append-only file cut? The run's storage call says up to when rows may be missing"
    )
    return [ErrorFacts("redis_lost", message, hint)]


def in_one_line(problems: Iterable[ErrorFacts]) -> str:
    """Return problems in one line, "" for none."""
    return "; ".join(f"{one.code}: {one.message}" for one in problems)


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"
