"""Notifies agents of frames that survive a power cut and the loss of a Redis, and need not be kept any more.

An Ack says that Redis has a frame, in memory. A second later Redis has written it to its disk, and its replicas have
it: a write that comes after the frames is followed until that is so (WAITAOF, WAIT), since Redis writes and replicates
in one order. Then the numbers are read once more: a Redis that was killed in between, or a replica that took over, may
not have them. Until then an agent keeps its spool, also of a run that has ended, and sends lost frames again.

On a cluster each master is followed for itself, for its own runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.exceptions import ClusterDownError, RedisError, ResponseError

from stabilitybackend.base.errors import AgentGone
from stabilitybackend.base.keys import DURABLE, RunKeys
from stabilitybackend.base.quiet_log import QuietLog
from stabilitybackend.storage.redis_link import ClusterClient, as_unavailable

__all__ = ["Durability", "Recipient"]

#: How often it is asked, seconds, while anything new is stored.
EVERY_S = 1.0
#: How long Redis may take, milliseconds: it writes to its disk once a second. Less than a call may take.
WAIT_MS = 2_500
#: Where Redis can't say when it has written to its disk (before 7.2): it does so once a second, and waits for a write
#: that is under way at most as long again.
FSYNC_S = 2.1
_KEPT_S = 60
_quiet = QuietLog(logging.getLogger(__name__))


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


#: Carries out commands on one server and returns its answers, errors among them. Raises RedisError: it is away.
_Ask = Callable[[Sequence[Sequence[Any]]], Awaitable[list[Any]]]


class Durability:
    """Follows the newest write of a Redis until it can't be lost. ``follow`` it in the event loop.

    Args:
        redis: a client with a connection for this alone.
        connections: those of the agents.
    """

    def __init__(self, redis: Redis | ClusterClient, connections: Mapping[Any, Recipient]) -> None:
        self._redis = redis
        self._connections = connections
        #: By the name of a node; a single server has none.
        self._nodes: dict[str, _Node] = {}

    async def follow(self) -> None:
        """Ask and notify, again and again."""
        while True:
            await self.notify()
            await asyncio.sleep(EVERY_S)

    async def notify(self) -> None:
        """Notify each agent of its newest durable numbers."""
        news = [(each, stored) for each in self._connections.values() if (stored := each.stored)]
        if not news:
            return
        try:
            await self._redis.initialize()
            at = [self._node_of(each.run_id) for each, _ in news]
            holding = await self._holding()
            news = [one for one, node in zip(news, at, strict=True) if node in holding]
            at = [node for node in at if node in holding]
            there = await self._there([(each.run_id, list(stored)) for each, stored in news])
            # A slot that moved meanwhile is on a node that was not asked.
            same = [self._node_of(each.run_id) == node for (each, _), node in zip(news, at, strict=True)]
        except (RedisError, OSError):
            return
        # Together: an agent that takes nothing must not hold up the others.
        await asyncio.gather(
            *(_notify(each, stored, last) for (each, stored), last, kept in zip(news, there, same, strict=True) if kept)
        )

    async def holds(self) -> bool:
        """Return whether all writes before this call are on the disk of Redis, where it has one, and its replicas.

        False where that takes longer than ``WAIT_MS``, or Redis is away; on a cluster, where a part of it is.
        """
        try:
            await self._redis.initialize()
            return await self._holding() == set(self._asks())
        except (RedisError, OSError):
            return False

    async def _holding(self) -> set[str]:
        """Return the nodes on which all writes before this call are durable."""
        asks = self._asks()
        self._nodes = {name: self._nodes.get(name) or _Node() for name in asks}  # and forget those that are gone
        held = await asyncio.gather(*(self._nodes[name].holds(key, ask) for name, (key, ask) in asks.items()))
        return {name for name, yes in zip(asks, held, strict=True) if yes}

    def _asks(self) -> dict[str, tuple[str, _Ask]]:
        """Return for each node a key that it has, and how it is asked."""
        if isinstance(self._redis, ClusterClient):
            keys = self._redis.key_of_each(DURABLE)
            return {node: (key, partial(self._redis.on_node, node)) for node, key in keys.items()}
        return {"": (DURABLE, self._ask_the_one)}

    async def _ask_the_one(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        pipe = self._redis.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        return list(await pipe.execute(raise_on_error=False))

    def _node_of(self, run_id: str) -> str:
        if not isinstance(self._redis, ClusterClient):
            return ""
        try:
            return self._redis.master_of(RunKeys(run_id).last_seq)
        except ClusterDownError:
            return "none"

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


@dataclass(slots=True)
class _Node:
    """State of one server.

    Args:
        replicas: that were connected last. says: whether it says when it has written to its disk. writes: whether it
            does.
    """

    replicas: int = 0
    says: bool = True
    writes: bool = True

    async def holds(self, key: str, ask: _Ask) -> bool:
        """Return whether all its writes before this call are durable."""
        try:
            return await self._follow_a_write(key, ask)
        except ResponseError as error:
            text = str(error)
            if "unknown command" in text:
                self.says = False
            elif "appendonly is disabled" in text:
                self.writes = False
            elif as_unavailable(error) is None:  # else it is full: storing.py reports that
                _quiet.log(logging.WARNING, f"what is durable is not known: Redis answers {text}")
            return False  # the next time, in the other way
        except (RedisError, OSError):
            return False

    async def _follow_a_write(self, key: str, ask: _Ask) -> bool:
        expected, local = self.replicas, int(self.writes)
        waits = self.says and self.writes
        wait = ("WAITAOF", local, expected, WAIT_MS) if waits else ("WAIT", expected, WAIT_MS)
        commands = [("SET", key, "1", "EX", _KEPT_S), wait, ("INFO", "replication"), ("INFO", "persistence")]
        answers = await ask(commands)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        _, followed, replication, persistence = answers
        self.replicas = int(replication.get("connected_slaves", 0))
        self.writes = bool(int(persistence.get("aof_enabled", 0)))
        if self.replicas > expected or bool(local) != self.writes:
            return False  # it has changed: asked again in a second
        if waits:
            written, replicated = followed
            return bool(written >= local and replicated >= expected)
        if followed < expected:
            return False
        return not local or await self._has_written(persistence, ask)

    @staticmethod
    async def _has_written(before: Mapping[str, Any], ask: _Ask) -> bool:
        await asyncio.sleep(FSYNC_S)
        (now,) = await ask([("INFO", "persistence")])
        if isinstance(now, Exception):
            raise now
        name = "aof_delayed_fsync"
        return bool(now.get("aof_last_write_status") == "ok" and now.get(name) == before.get(name))


async def _notify(agent: Recipient, stored: Mapping[str, int], there: Mapping[str, int]) -> None:
    """Notify an agent of the numbers of ``stored`` that are still there, and of lost ones."""
    durable = {source: last for source, last in stored.items() if there[source] >= last}
    try:
        if durable:
            await agent.durable(durable)
        if len(durable) < len(stored):
            await agent.lost({source: there[source] for source in stored if source not in durable})
    except AgentGone:
        return
