"""The page of all runs from their owners' stored views, and its browsers' notices of changes.

Nothing is written. Once a second the stored views of the runs under way are compared with those of the look before,
and the incidents of those that changed are read; the memory of the fleet is read again once a minute. A look
takes a bounded share of a core: with very many runs it comes less often.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import structs
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stabilitybackend.base.errors import StabilityBoardError
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.base.rounds import in_rounds
from stabilitybackend.runs.index import BATCH, RunIndex
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.schema.fleet import FoundRun
from stabilitybackend.schema.runs import listed

__all__ = ["Overview"]

#: Share of a core.
SHARE = 0.1
#: Times of messages are those of their workers' clocks, and some seconds late: runs are looked at for so long, seconds.
SLACK_S = 120.0
#: Period of reading the memory of the fleet, seconds.
FLEET_EVERY_S = 60.0
#: Events of a run's incidents that are read at its first sight, and at most per look later.
FIRST_EVENTS, MOST_EVENTS = 20, 1_000

_log = logging.getLogger(__name__)


class Overview:
    """Changes in all runs, as stored.

    Args:
        manager: whose list of runs and memory of the fleet is kept up. clock: unix seconds now.
    """

    def __init__(
        self, redis: Redis, manager: RunManager, index: RunIndex, clock: Callable[[], float] = time.time
    ) -> None:
        self._redis = redis
        self._manager = manager
        self._index = index
        self._clock = clock
        #: Run -> its stored names, and its state.
        self._known: dict[str, tuple[list[Any], list[Any]]] = {}
        #: Run -> its newest event of an incident that was read.
        self._events: dict[str, bytes] = {}
        self._fleet_at = clock()
        self._news: set[str] = set()

    async def follow(self) -> None:
        """Do it again and again."""
        await in_rounds(
            self.refresh, share=SHARE, undone="what changed in other processes' runs is not shown",
            expected=(RedisError, OSError, StabilityBoardError), log=_log,
        )  # fmt: skip

    def news(self) -> set[str]:
        """Return the runs of which something else is stored than when this was called last."""
        news, self._news = self._news, set()
        return news

    async def refresh(self) -> None:
        """Do it once. Raises RedisError when Redis is away."""
        since = self._clock() - SLACK_S
        ids = list(dict.fromkeys([*await self._index.live(), *await self._index.active_since(since)]))
        changed, renamed = await self._changed(ids)
        self._news |= {*changed}
        shown = changed if self._manager.overview else renamed
        for run in await self._index.stored_all(shown):
            self._manager.fleet.catalog.renamed(FoundRun(run.run_id, run.name, run.project, run.created))
            self._manager.overview.publish({"type": "run", "run": structs.asdict(listed(self._manager.marked(run)))})
        ill = await self._index.with_incidents_since(since)
        await self._read_events(dict.fromkeys([*changed, *ill]))
        if not 0 <= self._clock() - self._fleet_at < FLEET_EVERY_S:
            self._fleet_at = self._clock()
            await self._manager.fleet.refresh()
            await self._forget_deleted()

    async def _changed(self, ids: list[str]) -> tuple[list[str], list[str]]:
        """Return those of some runs of which something else is stored than at the last look, and is called so."""
        known, self._known = self._known, {}
        changed, renamed = list[str](), list[str]()
        for at in range(0, len(ids), BATCH):
            some = ids[at : at + BATCH]
            pipe = self._redis.pipeline(transaction=False)
            for run_id in some:
                pipe.hmget(RunKeys(run_id).meta, "name", "project", "about", "view", "updated")
            for run_id, found in zip(some, await pipe.execute(), strict=True):
                now = self._known[run_id] = found[:3], found[3:]
                before = known.get(run_id)
                if before is None or before[0] != now[0]:
                    renamed.append(run_id)
                if before != now:
                    changed.append(run_id)
        return changed, renamed

    async def _read_events(self, run_ids: Iterable[str]) -> None:
        ids = list(run_ids)
        for at in range(0, len(ids), BATCH):
            some = ids[at : at + BATCH]
            pipe = self._redis.pipeline(transaction=False)
            for run_id in some:
                key, last = RunKeys(run_id).incident_events, self._events.get(run_id)
                if last is None:
                    pipe.xrevrange(key, count=FIRST_EVENTS)
                else:
                    pipe.xrange(key, min=b"(" + last, count=MOST_EVENTS)
            for run_id, found in zip(some, await pipe.execute(), strict=True):
                events = sorted(found, key=_order)
                if events or run_id not in self._events:
                    self._events[run_id] = events[-1][0] if events else b"0-0"
                self._manager.fleet.incidents.stored_elsewhere(run_id, [fields[b"i"] for _, fields in events])

    async def _forget_deleted(self) -> None:
        fleet = self._manager.fleet
        for run_id in {run.run_id for run in fleet.catalog.runs()} - set(await self._index.ids()):
            fleet.catalog.forget(run_id)
            fleet.incidents.forget(run_id)
        for gone in self._events.keys() - self._known.keys():
            del self._events[gone]


def _order(event: tuple[bytes, Any]) -> tuple[int, int]:
    time_ms, _, number = event[0].partition(b"-")
    return int(time_ms), int(number)
