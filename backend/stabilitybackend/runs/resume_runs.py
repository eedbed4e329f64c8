"""Takes up the runs that were under way when the server stopped: those last connected first, a few at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from stabilitybackend.base.errors import StabilityBoardError
from stabilitybackend.base.tasks import end
from stabilitybackend.runs.worker import RunWorker

__all__ = ["RunResumer"]

#: Runs that are taken up at the same time: all share one core, so more of them only make the first one wait.
AT_ONCE = 4
#: Time after which the next run begins beside a slow one, seconds.
WAIT_S = 5.0


class RunResumer:
    """Which runs are not judged yet after a restart.

    Args:
        worker: starts the worker of a run, or returns the one that is there.
    """

    def __init__(self, worker: Callable[[str], RunWorker]) -> None:
        #: Runs to be taken up, since the start of the server.
        self.total = 0
        self._worker = worker
        self._waiting: dict[str, RunWorker | None] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks = set[asyncio.Task[None]]()

    def start(self, newest_first: Iterable[str]) -> None:
        """Take runs up."""
        self._forget_judged()
        for run_id in newest_first:
            if run_id in self._waiting:
                continue
            self._waiting[run_id] = None
            self.total += 1
            task = asyncio.create_task(self._wake(run_id), name=f"waking-{run_id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def waits(self, run_id: str) -> bool:
        """Return whether a run is to be taken up, and was not begun yet."""
        return self._waiting.get(run_id, ...) is None

    async def stop(self) -> None:
        """Take up no more."""
        await end(*self._tasks)

    @property
    def waiting(self) -> int:
        """Runs of those that are not judged yet."""
        self._forget_judged()
        return len(self._waiting)

    def _forget_judged(self) -> None:
        judged = [run_id for run_id, worker in self._waiting.items() if worker and _judged(worker)]
        for run_id in judged:
            del self._waiting[run_id]

    async def _wake(self, run_id: str) -> None:
        async with self._slots:
            try:
                worker = self._waiting[run_id] = self._worker(run_id)
            except StabilityBoardError:  # it is being deleted, or the server stops
                self._waiting.pop(run_id, None)
                return
            with contextlib.suppress(StabilityBoardError):  # still under way, and shown as such
                await worker.ready(WAIT_S)


def _judged(worker: RunWorker) -> bool:
    """Return whether a run is taken up; one whose worker ended will be by the next request."""
    return worker.readiness.reached or worker.is_over
