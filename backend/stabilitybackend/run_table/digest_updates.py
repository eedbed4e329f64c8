"""Keeps the digests of the runs up to date: a bounded share of a core, live ones first, old ones if somebody looks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec
from redis.exceptions import RedisError

from stabilitybackend.base.errors import StabilityBoardError
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.base.rounds import ROUND_S, in_rounds
from stabilitybackend.base.tasks import in_thread
from stabilitybackend.run_table.digest import digest_of
from stabilitybackend.run_table.table import RunTables
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.schema.pages.run_table import CURVE_BUCKETS, RunDigest
from stabilitybackend.schema.runs import STATUSES, Run

__all__ = ["DigestUpdater", "is_stale"]

#: Part of the time that rounds may take: all runs share one core.
SHARE = 0.1
#: A run is worked out again at most this often, seconds.
EVERY_S = 5.0
#: ... and while its job is under way at least this often, seconds.
AGES_S = 30.0
#: So long after somebody looked at the table, runs that nobody follows are worked out too, seconds.
LOOKED_S = 60.0

_log = logging.getLogger(__name__)


def is_stale(run: Run, digest: RunDigest | None, now: float = 0.0) -> bool:
    """Return whether a run is another one than when it was worked out, by a stretch of its curve or by its head.

    Args:
        now: unix seconds. The goodput of a job under way is another one while it does nothing; 0: leave that out.
    """
    if digest is None:
        return bool(run.latest)
    if STATUSES[run.status].under_way and now - digest.made >= AGES_S:
        return True
    if (digest.head, digest.status) != (run.head, run.status):
        return True
    # Another one may be the loss now, or stand for the run where none is.
    others = run.loss_metric is not None or digest.metric_count != run.metric_count
    if others and digest.curve is not None and digest.curve.metric != run.loss_metric:
        return True
    if run.last_step is None or digest.step is None:
        return run.last_step != digest.step
    return run.last_step - digest.step >= max(1, run.last_step // CURVE_BUCKETS)


class DigestUpdater:
    """Works out what the table shows of whole runs.

    Args:
        clock: unix seconds now.
    """

    def __init__(self, manager: RunManager, tables: RunTables, clock: Callable[[], float] = time.time) -> None:
        self._manager = manager
        self._tables = tables
        self._clock = clock
        #: Runs that could not be read -> their newest step then: they are tried again when it is another one.
        self._failed: dict[str, int | None] = {}

    async def follow(self) -> None:
        """Go on round by round, until it is cancelled."""
        undone = "curves of the list of runs are not made"
        expected = (RedisError, OSError, StabilityBoardError)
        await in_rounds(self.round, share=SHARE, undone=undone, expected=expected, log=_log)

    async def round(self) -> None:
        """Work out the live runs that went on, those that waited longest first, then one that is over."""
        await self._tables.refresh()
        followed, now = self._manager.followed(), self._clock()
        due = []
        for run_id in followed:
            row = self._tables.row(run_id)
            if row is None or not is_stale(row.run, row.digest, now) or followed[run_id].state.store.loading:
                continue
            made = 0.0 if row.digest is None else row.digest.made
            if not 0 <= now - made < EVERY_S and self._failed.get(run_id, -1) != row.run.last_step:
                due.append((made, run_id))
        began = time.monotonic()
        for _, run_id in sorted(due):
            await self._work(followed[run_id])
            if time.monotonic() - began > ROUND_S * SHARE:
                return
        if now - self._tables.used < LOOKED_S:
            await self._catch_up(set(followed))

    async def _catch_up(self, followed: set[str]) -> None:
        left = [
            row.run
            for row in self._tables.rows()
            if row.run.run_id not in followed
            and is_stale(row.run, row.digest)
            and self._failed.get(row.run.run_id, -1) != row.run.last_step
        ]
        if left:
            newest = max(left, key=lambda run: run.created)
            try:
                worker = await self._manager.glance(newest.run_id)
            except StabilityBoardError:
                self._failed[newest.run_id] = newest.last_step
                raise
            await self._work(worker)

    async def _work(self, worker: RunWorker) -> None:
        await worker.points.wait()
        run = worker.listing.run
        self._failed[worker.run_id] = run.last_step  # until it has gone well
        digest = await in_thread(digest_of(worker, self._manager.fleet, self._clock()))
        await worker.fence.write(("HSET", RunKeys(worker.run_id).meta, "digest", msgspec.json.encode(digest)))
        self._tables.digested(worker.run_id, digest)
        del self._failed[worker.run_id]
