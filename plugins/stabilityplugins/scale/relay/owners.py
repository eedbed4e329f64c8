"""Finds the process that works on a run: its owner, or the worker that would take it next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from stabilitybackend.base.errors import TakesNoPart, Unavailable
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.storage.redis_link import redis_errors
from stabilityplugins.scale.members import Members
from stabilityplugins.scale.placement import choices

__all__ = ["Owners", "Target"]

#: An owner is asked for so long without looking again, seconds: a wrong one refuses.
REMEMBERED_S = 1.0
#: Runs that are remembered.
MAX_REMEMBERED = 10_000
#: Runs looked at in one call to Redis.
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Target:
    """A process to ask about a run: its id, and where it answers."""

    member_id: str
    address: str


class Owners:
    """Where runs are.

    Args:
        members: that are alive.
        elapsed: seconds, of a monotonic clock.
    """

    def __init__(self, redis: Redis, members: Members, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._redis = redis
        self._members = members
        self._elapsed = elapsed
        self._known: dict[str, tuple[Target, float]] = {}

    async def find(self, run_id: str) -> Target | None:
        """Return whom to ask about a run, None where no worker is alive.

        Raises:
            Unavailable: Redis is away, and the run has no earlier look-up; else its result still holds.
        """
        known = self._known.get(run_id)
        if known is not None and self._elapsed() < known[1] and self.lives(known[0]):
            return known[0]
        try:
            found = (await self.find_all([run_id]))[0]
        except Unavailable:
            if known is None:
                raise
            return known[0]
        if found is not None:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            self._known[run_id] = found, self._elapsed() + REMEMBERED_S
        return found

    async def find_all(self, run_ids: Sequence[str]) -> list[Target | None]:
        """Return the owners of some runs, by Redis. Raises Unavailable when Redis is away."""
        found: list[Target | None] = []
        for at in range(0, len(run_ids), _BATCH):
            some = run_ids[at : at + _BATCH]
            pipe = self._redis.pipeline(transaction=False)
            for run_id in some:
                pipe.hmget(RunKeys(run_id).owner, "token", "worker", "address")
            with redis_errors():
                answers: Iterable[Any] = await pipe.execute()
            for run_id, answer in zip(some, answers, strict=True):
                token, worker, address = ((value or b"").decode() for value in answer)
                owner = Target(worker, address)
                found.append(owner if token and self.lives(owner) else self._next(run_id))
        return found

    def _next(self, run_id: str) -> Target | None:
        """Return the worker that is to take a run without a live owner."""
        workers = {one.member_id: one for one in self._members.having("worker")}
        if not workers:
            return None
        first = workers[choices(run_id, workers)[0]]
        return Target(first.member_id, first.url)

    def lives(self, target: Target) -> bool:
        """Whether a process is alive, by the entries read here."""
        return target.member_id in self._members.alive

    def no_part(self) -> TakesNoPart | None:
        """Return why this process may change nothing, None while it takes part."""
        return self._members.no_part()

    def is_me(self, target: Target) -> bool:
        """Whether it is this process."""
        return target.member_id == self._members.me.member_id

    def forget(self, run_id: str) -> None:
        """Look again the next time: the process asked is not the owner."""
        self._known.pop(run_id, None)
