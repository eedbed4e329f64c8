"""Notifies agents of what they need not keep any more: what survives a power cut, and the loss of its Redis.

An Ack says that Redis has a frame, in memory. A second later Redis has written it to its disk, and its replicas have
it: a write that comes after the frames is followed until that is so (WAITAOF, WAIT), since Redis writes and replicates
in one order. Then the numbers are read once more: a Redis that was killed in between, or a replica that took over, may
not have them. Until then an agent keeps its spool, also of a run that has ended, and sends again what was lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from stabilitybackend.errors import AgentGone
from stabilitybackend.keys import DURABLE, RunKeys
from stabilitybackend.process.quiet_log import QuietLog
from stabilitybackend.redis_link import as_unavailable

__all__ = ["Durability", "Recipient"]

#: How often it is asked, seconds, while anything new is stored.
EVERY_S = 1.0
#: How long Redis may take, milliseconds: it writes to its disk once a second. Less than a call may take.
WAIT_MS = 2_500
#: Where Redis can't say when it has written to its disk (before 7.2): it does so once a second, and waits for a write
#: that is under way at most as long again.
FSYNC_S = 2.1
_KEPT_S = 60


class Recipient(Protocol):
    """A connection to an agent that wants to know."""

    @property
    def run_id(self) -> str:
        """Its run."""

    @property
    def stored(self) -> dict[str, int]:
        """The newest number stored of each source, of those that are newer than those reported as durable."""

    async def durable(self, last_seq: Mapping[str, int]) -> None:
        """Notify it. Raises AgentGone when it is gone."""

    async def lost(self, last_seq: Mapping[str, int]) -> None:
        """Notify it that these are the newest numbers, where it knows higher ones. Raises AgentGone when it is gone."""


class Durability:
    """Follows the newest write of a Redis until it can't be lost. ``follow`` it in the event loop.

    Args:
        redis: a client with a connection for this alone.
        connections: those of the agents.
    """

    def __init__(self, redis: Redis, connections: Mapping[Any, Recipient]) -> None:
        self._redis = redis
        self._connections = connections
        #: Replicas that were connected last; whether Redis says when it has written to its disk; whether it writes.
        self._replicas = 0
        self._says, self._writes = True, True
        self._quiet = QuietLog(logging.getLogger(__name__))

    async def follow(self) -> None:
        """Ask and notify, again and again."""
        while True:
            await self.notify()
            await asyncio.sleep(EVERY_S)

    async def notify(self) -> None:
        """Notify each agent of what of its newest numbers can't be lost any more."""
        news = [(each, stored) for each in self._connections.values() if (stored := each.stored)]
        if not news or not await self.holds():
            return
        try:
            there = await self._there([(each.run_id, list(stored)) for each, stored in news])
        except (RedisError, OSError):
            return
        # Together: an agent that takes nothing must not hold up the others.
        await asyncio.gather(*(_notify(each, stored, last) for (each, stored), last in zip(news, there, strict=True)))

    async def _there(self, asked: list[tuple[str, list[str]]]) -> list[dict[str, int]]:
        """Return the newest number that Redis has of each source now."""
        pipe = self._redis.pipeline(transaction=False)
        for run_id, sources in asked:
            pipe.hmget(RunKeys(run_id).last_seq, sources)
        found = await pipe.execute()
        return [
            {source: int(last or 0) for source, last in zip(sources, each, strict=True)}
            for (_, sources), each in zip(asked, found, strict=True)
        ]

    async def holds(self) -> bool:
        """Return whether what Redis had stored before this call is on its disk, where it has one, and its replicas.

        False where that takes longer than ``WAIT_MS``, or Redis is away.
        """
        try:
            return await self._follow_a_write()
        except ResponseError as error:
            text = str(error)
            if "unknown command" in text:
                self._says = False
            elif "appendonly is disabled" in text:
                self._writes = False
            elif as_unavailable(error) is None:  # else it is full: storing.py reports that
                self._quiet.log(logging.WARNING, f"what is durable is not known: Redis answers {text}")
            return False  # the next time, in the other way
        except (RedisError, OSError):
            return False

    async def _follow_a_write(self) -> bool:
        expected, local = self._replicas, int(self._writes)
        pipe = self._redis.pipeline(transaction=False)
        pipe.set(DURABLE, "1", ex=_KEPT_S)
        if self._says and self._writes:
            pipe.execute_command("WAITAOF", local, expected, WAIT_MS)
        else:
            pipe.execute_command("WAIT", expected, WAIT_MS)
        pipe.info("replication")
        pipe.info("persistence")
        _, followed, replication, persistence = await pipe.execute()
        self._replicas = int(replication.get("connected_slaves", 0))
        self._writes = bool(int(persistence.get("aof_enabled", 0)))
        if self._replicas > expected or bool(local) != self._writes:
            return False  # it has changed: asked again in a second
        if self._says and local:
            written, replicated = followed
            return bool(written >= local and replicated >= expected)
        if followed < expected:
            return False
        return not local or await self._has_written(persistence)

    async def _has_written(self, before: Mapping[str, Any]) -> bool:
        await asyncio.sleep(FSYNC_S)
        now = await self._redis.info("persistence")
        name = "aof_delayed_fsync"
        return bool(now.get("aof_last_write_status") == "ok" and now.get(name) == before.get(name))


async def _notify(agent: Recipient, stored: Mapping[str, int], there: Mapping[str, int]) -> None:
    """Notify an agent of what of ``stored`` is still there, and what is not."""
    durable = {source: last for source, last in stored.items() if there[source] >= last}
    try:
        if durable:
            await agent.durable(durable)
        if len(durable) < len(stored):
            await agent.lost({source: there[source] for source in stored if source not in durable})
    except AgentGone:
        return
