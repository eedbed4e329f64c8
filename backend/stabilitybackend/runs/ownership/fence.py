"""The fence of one run: writes of its worker in Redis count only while that worker owns the run.

``sb:{run}:owner`` holds a random token. Taking the run over puts a new one there, and every write that depends on
ownership compares it in the same Lua call. So a worker that was stopped, or cut off, for however long can change
nothing any more: its next write is refused, and it drops the run. Clocks only decide when another process tries to take
over. The token is random, unlike the number, because a failover of Redis may lose the newest takeover and
give the same number out again.

A failover, or a power cut, may lose writes of the owner, too. They follow from each other: where one is gone, later
ones are wrong, for one that everything up to a place in the stream is stored. So each write has a number,
and is refused without its predecessor: the run is taken up again from Redis.

Sources: Temporal's shard ownership (a range id that each write carries and the store compares); M. Kleppmann, "How to
do distributed locking" (2016), fencing tokens.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from redis.asyncio import Redis

from stabilitybackend.base.errors import Unavailable
from stabilitybackend.base.keys import RunKeys

__all__ = ["ANY", "CommitRefused", "Fence", "NotOwner", "Owner", "Ownership", "Write"]

#: A Redis command as name, key, arguments.
Write = tuple[str | bytes | int, ...]
#: Placeholder for the token of the run's owner, dead or alive (take.lua).
ANY = "*"


class NotOwner(Unavailable):
    """Another process owns the run, or none does, or Redis lost a write of this worker: nothing was written.

    This worker has to take the run again, or drop it.
    """

    default_code = "moved"


class CommitRefused(Exception):
    """The list of parts differs from the caller's; nothing was changed.

    Args:
        listed: how many parts are listed, where that differs; else -1.
        stem: whose files are no longer noted.
    """

    def __init__(self, listed: int, stem: str = "") -> None:
        super().__init__(f"{listed} parts are listed" if listed >= 0 else f"{stem} is not noted")
        self.listed = listed
        self.stem = stem


@dataclass(frozen=True, slots=True)
class Owner:
    """Who owns a run: ``worker`` a process' id, ``address`` where it answers."""

    token: str
    worker: str
    address: str


@dataclass(eq=False)
class Ownership:
    """How a process takes runs; shared by its fences.

    Args:
        worker, address: this process as others see it.
        placed: runs are given to this process one by one; else it takes all that are under way at its start.
        reads_only: this process takes no run, it reads the runs of others.
        token: a new random one.
        replaceable: which token may be replaced by this process: ``"*"`` any, ``""`` none, or that of an owner that
            is dead. Raises Unavailable where this process may take no run.
    """

    worker: str = "all"
    address: str = ""
    token: Callable[[], str] = lambda: secrets.token_hex(8)
    replaceable: Callable[[str], Awaitable[str]] | None = None
    placed: bool = False
    reads_only: bool = False
    #: Writes that were refused since the start.
    refused: int = 0

    def fence(self, run_id: str, redis: Redis) -> Fence:
        """Return the fence of a run."""
        return Fence(run_id, redis, self)

    async def may_replace(self, run_id: str) -> str:
        """Return the token that may be replaced."""
        return ANY if self.replaceable is None else await self.replaceable(run_id)


class Fence:
    """The fence of one run, for the worker that follows it.

    Args:
        run_id: must have passed ``check_run_id``.

    Attributes:
        redis: for reading; writes that depend on ownership go through ``write`` and ``commit`` only.
        epoch: how often the run was taken until this worker took it, with that; 0 before.
        was_free: the run had no owner when it was taken: no other worker may be writing files for it still.
        lost: a write was refused: the run has to be taken again, or dropped.
        reads_only: the fence may never take the run, and writes nothing.
    """

    reads_only = False

    def __init__(self, run_id: str, redis: Redis, ownership: Ownership) -> None:
        self.redis = redis
        self.epoch = 0
        self.was_free = self.lost = False
        self._run_id = run_id
        self._keys = RunKeys(run_id)
        self._ownership = ownership
        self._token = ""
        #: One write at a time: their numbers, since the run was taken, of the newest and of the newest with an answer.
        self._writing = asyncio.Lock()
        self._number = self._answered = 0
        #: Called when a write is refused.
        self.dropped: Callable[[], None] = lambda: None

    async def take(self) -> None:
        """Become the owner.

        Raises:
            NotOwner: another process is, which may not be replaced. Its address is ``facts["address"]``.
            Unavailable: this process may take no run now.
            RedisError: Redis is away.
        """
        token = self._ownership.token()
        replaced = await self._ownership.may_replace(self._run_id)
        ours = (token, self._ownership.worker, self._ownership.address)
        found: Any = await self.redis.eval(_script("take.lua"), 1, self._keys.owner, replaced, *ours)
        epoch, *held = found
        if not epoch:
            _, worker, address = (each.decode() for each in held)
            raise NotOwner(
                f"run {self._run_id} is followed by another worker ({worker})", hint="try again", address=address
            )
        self._token, self.epoch, self.lost = token, epoch, False
        self._number = self._answered = 0
        self.was_free = not held[0]

    async def release(self) -> None:
        """Give the run up, if owned: any process may take it."""
        if self._token:
            token, self._token = self._token, ""
            await self.redis.eval(_RELEASE, 1, self._keys.owner, token)

    async def write(self, *commands: Write) -> None:
        """Carry out commands on keys of the run, all of them or none.

        Raises:
            NotOwner: the run is not owned (any more); nothing was written.
            RedisError: Redis is away; they may have been carried out or not.
        """
        keys: dict[str, int] = {self._keys.owner: 1}
        arguments: list[Any] = []
        for name, key, *rest in commands:
            place = keys.setdefault(str(key), len(keys) + 1)
            arguments += (len(rest), name, place, *rest)
        if not await self._numbered("write.lua", list(keys), arguments):
            self._refused()

    async def commit(
        self, listed: Iterable[str], gone: Iterable[str], new: Iterable[tuple[str, bytes | str]], smallest_id: str = ""
    ) -> None:
        """Change the list of parts; the stream keeps the entries from ``smallest_id`` on.

        Args:
            listed: stems that the caller takes for listed. gone: those that go.
            new: stem and JSON of those that come.

        Raises:
            CommitRefused: others are listed, or files of a new one may be gone.
            NotOwner: the run is not owned; nothing was changed.
            RedisError: Redis is away; it may have happened or not.
        """
        keys, known, old = self._keys, list(listed), list(gone)
        places = (keys.owner, keys.parts, keys.garbage, keys.parts_next, keys.frames)
        parts = [one for pair in new for one in pair]
        arguments = (smallest_id, len(known), *known, len(old), *old, *parts)
        answer = await self._numbered("commit.lua", places, arguments)
        match answer:
            case [0]:
                self._refused()
            case [-1, count]:
                raise CommitRefused(count)
            case [-2, stem]:
                raise CommitRefused(-1, stem.decode())

    async def take_order(self, name: str, command_id: str, command: bytes) -> bool:
        """Make a command of an order that waited (runs/orders/waiting.py); return whether it still did.

        Raises:
            NotOwner: the run is not owned; nothing was changed.
            RedisError: Redis is away; it may have happened or not.
        """
        keys = self._keys
        places = (keys.owner, keys.orders, keys.commands)
        answer = await self._numbered("order.lua", places, (name, command_id, command))
        if answer < 0:
            self._refused()
        return bool(answer)

    async def holds(self) -> bool:
        """Return whether Redis has the newest write of this worker.

        Raises:
            NotOwner: the run is not owned (any more).
            RedisError: Redis is away.
        """
        found: Any = await self.redis.hmget(self._keys.owner, ["token", "written"])
        self.lost = self.lost or (found[0] or b"").decode() != self._token
        self.check()
        return int(found[1] or 0) >= self._answered

    async def _numbered(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        async with self._writing:
            self._number += 1  # also where no answer comes: then Redis has this number or the one before it
            number, token = self._number, self._token
            answer: Any = await self.redis.eval(
                _script(script), len(keys), *keys, token, self._answered, number, *arguments
            )
            if answer in (1, [1]) and token == self._token:
                self._answered = number
            return answer

    def check(self) -> None:
        """Raise NotOwner if any write was refused since the run was taken."""
        if self.lost:
            self._refused()

    def _refused(self) -> None:
        if not self.lost:
            self.lost = True
            self._ownership.refused += 1
            self.dropped()
        raise NotOwner(
            f"run {self._run_id} was taken over by another worker, or Redis lost what was written of it: nothing was "
            "changed",
            hint="look at the run, then try again",
        )


@cache
def _script(name: str) -> str:
    return resources.files("stabilitybackend.runs.ownership").joinpath(name).read_text(encoding="utf-8")


_RELEASE = (
    "if redis.call('HGET', KEYS[1], 'token') == ARGV[1] then "
    "redis.call('HDEL', KEYS[1], 'token', 'worker', 'address', 'full', 'written') end"
)
