"""Which runs this worker takes, gives to another one, and whose place it takes when that one has died.

Every worker computes the same placement by itself (placement.py) and takes its own runs: one without an owner, or
with a dead one, without a wait; a run of a live owner when that one has given it up. Conflicts of two workers, which
see different members for a moment, are decided by the token in Redis.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from stabilitybackend.base.errors import StabilityBoardError
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.base.quiet_log import QuietLog
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.runs.manager import RunManager
from stabilityplugins.scale.members import Members
from stabilityplugins.scale.placement import placed
from stabilityplugins.scale.roles.inbox import Outbox

__all__ = ["Placer", "replaceable_by"]

#: Period of the placement, seconds; without a wait when members or runs arrive.
EVERY_S = 2.0
#: Thousands of runs may come one by one, and each look is at all of them: a pause after it is so many times as long as
#: it took, seconds at most.
PAUSES, MOST_PAUSE_S = 4.0, 0.5
#: Looks in a row before a run is handed to a new worker: members come and go.
HAND_OVER_AFTER = 2
#: A run that can't be taken up is tried again after so long, seconds, twice as long each time, at most MOST_RETRY_S:
#: doors name a run with each of its frames, and each try may read much.
FIRST_RETRY_S, MOST_RETRY_S = 1.0, 60.0
#: Period of reading the memory over all runs, seconds: other workers add to it.
FLEET_EVERY_S = 30.0
_log = logging.getLogger(__name__)


async def replaceable_by(redis: Redis, members: Members, run_id: str) -> str:
    """Return the token of the run's owner if that is dead, "" where it has none or lives."""
    token, worker = await _owner(redis, run_id)
    return "" if worker in members.alive else token


async def _owner(redis: Redis, run_id: str) -> tuple[str, str]:
    found: Any = await redis.hmget(RunKeys(run_id).owner, ["token", "worker"])
    token, worker = ((value or b"").decode() for value in found)
    return token, worker


class Placer:
    """Takes and gives runs for one worker.

    Args:
        manager: follows them. elapsed: seconds, of a monotonic clock.
    """

    def __init__(
        self,
        redis: Redis,
        members: Members,
        index: RunIndex,
        manager: RunManager,
        outbox: Outbox,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._elapsed = elapsed
        self._redis = redis
        self._members = members
        self._index = index
        self._manager = manager
        self._outbox = outbox
        self._due = asyncio.Event()
        #: Run of this worker -> looks in a row at which it should be another worker's.
        self._elsewhere = Counter[str]()
        #: How often a run was tried that did not get as far as being judged, and until when it is left alone.
        self._tried: dict[str, tuple[int, float]] = {}
        self._quiet = QuietLog(_log)
        members.changed.append(self.place_soon)

    def place_soon(self) -> None:
        """Place without a wait: members or runs have changed."""
        self._due.set()

    async def follow(self) -> None:
        """Look again and again."""
        loop = asyncio.get_running_loop()
        fleet_at = loop.time()
        while True:
            self._due.clear()
            began = time.monotonic()
            try:
                await self.place()
                if loop.time() >= fleet_at + FLEET_EVERY_S:
                    fleet_at = loop.time()
                    await self._manager.fleet.refresh()
            except (RedisError, OSError, StabilityBoardError) as error:
                self._quiet.log(logging.WARNING, f"which runs are to be followed is not known: {error!s:.200}")
            await asyncio.sleep(min(MOST_PAUSE_S, PAUSES * (time.monotonic() - began)))
            try:
                async with asyncio.timeout(EVERY_S):
                    await self._due.wait()
            except TimeoutError:
                pass

    async def place(self) -> None:
        """Take the runs that this worker should follow and that have no owner; give up those of another one."""
        me = self._members.me.member_id
        workers = [one.member_id for one in self._members.having("worker")]
        if me not in self._members.alive:
            return  # this process has not been able to write its entry
        live = await self._index.live()
        wanted = placed(live, workers)
        ours, judged, now = self._manager.owned(), self._manager.followed(), self._elapsed()
        there = set(live) if self._tried else set[str]()
        self._tried = {name: tries for name, tries in self._tried.items() if name in there and name not in judged}
        waking = self._manager.waking
        missing = [one for one in live if wanted.get(one) == me and one not in ours and not waking.waits(one)]
        taken = list[str]()
        for run_id, owner in zip(missing, await self._owners(missing), strict=True):
            tries, until = self._tried.get(run_id, (0, now))
            if (owner not in self._members.alive or owner == me) and now >= until:
                taken.append(run_id)
                self._tried[run_id] = tries + 1, now + min(MOST_RETRY_S, FIRST_RETRY_S * 2 ** min(tries, 9))
                if tries:
                    self._quiet.log(logging.WARNING, f"run {run_id} could not be taken up {tries} times: tried again")
        if taken:
            await self._manager.fleet.refresh_faults()  # those that the worker before us has seen
        waking.start(taken)
        leaving = [run_id for run_id in ours if wanted.get(run_id, me) != me]
        self._elsewhere = Counter({run_id: self._elsewhere[run_id] + 1 for run_id in leaving})
        for run_id in leaving:
            if self._elsewhere[run_id] >= HAND_OVER_AFTER:
                await self._manager.give_up(run_id)
                self._outbox.name(wanted[run_id], run_id)

    async def give_all(self) -> None:
        """Give every run to its next worker: this one stops."""
        me = self._members.me.member_id
        others = [one.member_id for one in self._members.having("worker") if one.member_id != me]
        ours = list(self._manager.owned())
        await self._manager.stop()
        for run_id, worker in placed(ours, others).items():
            self._outbox.name(worker, run_id)

    async def _owners(self, runs: list[str]) -> list[str]:
        pipe = self._redis.pipeline(transaction=False)
        for run_id in runs:
            pipe.hget(RunKeys(run_id).owner, "worker")
        return [(found or b"").decode() for found in await pipe.execute()]
