"""Lets ended runs without readers go, archived whole; also those that ended before the start."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from stabilitybackend.base.errors import ArchiveError
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.runs.internal_errors import FAILED
from stabilitybackend.runs.ownership.fence import NotOwner
from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.schema.runs import STATUSES

__all__ = ["FOLLOWED_STATES", "LIVE_STATES", "WATCH_AGAIN_S", "IdleRuns"]

#: Idle time after which an ended run is archived and let go, seconds ...
IDLE_S = 30.0
#: ... or directly when more than so many are kept: the most recently requested ones stay.
MAX_IDLE = 64
#: Runs whose stored status is one under way are watched again after a restart of the server.
LIVE_STATES = frozenset(status for status, facts in STATUSES.items() if facts.under_way)
#: ... and those that the server failed at, ...
FOLLOWED_STATES = LIVE_STATES | {FAILED}
#: ... if they reported within this time, seconds.
WATCH_AGAIN_S = 86_400.0

_log = logging.getLogger(__name__)


class IdleRuns:
    """Those of a manager's runs that may go.

    Args:
        workers: of the manager, by run; those that go are removed. get: takes a run up.
        clock: unix seconds now.
        placed: as of the manager.

    Attributes:
        leftover: runs that were over before the server started, and may still lie in Redis.
    """

    def __init__(
        self,
        workers: dict[str, RunWorker],
        index: RunIndex,
        clock: Callable[[], float],
        get: Callable[[str], Awaitable[RunWorker]],
        *,
        placed: bool,
    ) -> None:
        self.leftover: list[str] = []
        self._workers = workers
        self._index = index
        self._clock = clock
        self._get = get
        self._placed = placed

    async def let_go_idle(self) -> None:
        """Let those go that are over and unused, and those that another worker owns now."""
        for moved in [worker for worker in self._workers.values() if worker.moved]:
            await moved.stop()
            if self._workers.get(moved.run_id) is moved:
                del self._workers[moved.run_id]
        for worker in self.idle():
            try:
                await self._let_go(worker.run_id, worker)
            except Exception:  # one run's mistake must not keep all others in memory
                _log.exception("run %s could not be let go", worker.run_id)

    def idle(self) -> list[RunWorker]:
        """Return the workers that may go now, those idle longest first."""
        now = self._clock()
        free = [worker for worker in self._workers.values() if not worker.busy and worker.readiness.reached]
        over = [
            worker
            for worker in sorted(free, key=lambda worker: worker.used)
            if worker.listing.status not in FOLLOWED_STATES
            or now - max(worker.listing.updated, worker.used) > WATCH_AGAIN_S
        ]
        surplus = len(over) - MAX_IDLE
        return [worker for place, worker in enumerate(over) if place < surplus or now - worker.used > IDLE_S]

    async def archive_leftover(self) -> None:
        """Archive one run that was over before the server started, if it still has frames in Redis."""
        while self.leftover:
            run_id = self.leftover.pop()
            if run_id in self._workers or not await self._index.has_frames(run_id):
                continue
            worker = await self._get(run_id)
            await self._let_go(run_id, worker)
            return

    async def _let_go(self, run_id: str, worker: RunWorker) -> None:
        used = worker.used
        try:
            await worker.flush()
        except NotOwner:
            return  # dropped with the next sweep
        except ArchiveError as error:
            _log.warning("run %s stays in Redis: %s", run_id, error.message)
        if not worker.busy and worker.used == used and self._workers.get(run_id) is worker:
            await worker.let_go()
            if self._workers.get(run_id) is worker:  # else a request made another one meanwhile
                del self._workers[run_id]
                if self._placed:
                    await self._index.note_ended(run_id)
