"""Inbox of a process: a stream of other processes' notices, in order and without a wait.

A worker finds names of runs in which something is new, a door finds commands for its agents. A name is a hint: each
run is looked at once a second anyway. A lost command is handed out again (owner_side.py), and carried out once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stabilitybackend.base.keys import inbox_key
from stabilitybackend.base.quiet_log import QuietLog
from stabilityclient.wire import CommandMessage, decode_message, encode_message

__all__ = ["Inbox", "Order", "Outbox"]

#: Entries kept; a reader that is so far behind looks at everything anyway.
MAX_ENTRIES = 10_000
#: Longest wait for an entry, milliseconds.
BLOCK_MS = 500
#: Names of runs are collected for so long before they are sent, seconds: frames come in crowds.
COLLECT_S = 0.005
#: An unread inbox is removed after so long, seconds.
KEEP_S = 600
_AWAY_PAUSE_S = 0.2
_log = logging.getLogger(__name__)


class Order(msgspec.Struct, frozen=True):
    """A command on its way to a door; for the connection ``number`` of one agent of a run."""

    run_id: str
    agent: str
    number: int
    command: CommandMessage


class Outbox:
    """Puts entries into the inboxes of others. ``follow`` it in the event loop."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._names: defaultdict[str, set[str]] = defaultdict(set)
        self._due = asyncio.Event()
        self._quiet = QuietLog(_log)

    def name(self, member_id: str, run_id: str) -> None:
        """Let a worker know that something is new in a run, within COLLECT_S."""
        self._names[member_id].add(run_id)
        self._due.set()

    async def order(self, door: str, order: Order) -> None:
        """Give a door a command for one of its agents. Raises RedisError when Redis is away."""
        entry: Any = {
            "o": encode_message(order.command), "r": order.run_id, "a": order.agent, "n": order.number,
        }  # fmt: skip
        pipe = self._redis.pipeline(transaction=False)
        pipe.xadd(inbox_key(door), entry, maxlen=MAX_ENTRIES, approximate=True)
        pipe.expire(inbox_key(door), KEEP_S)
        await pipe.execute()

    async def follow(self) -> None:
        """Send the names that were given, again and again."""
        while True:
            await self._due.wait()
            await asyncio.sleep(COLLECT_S)
            self._due.clear()
            names, self._names = self._names, defaultdict(set)
            pipe = self._redis.pipeline(transaction=False)
            for member_id, runs in names.items():
                pipe.xadd(inbox_key(member_id), {"w": " ".join(runs)}, maxlen=MAX_ENTRIES, approximate=True)
                pipe.expire(inbox_key(member_id), KEEP_S)
            try:
                await pipe.execute(raise_on_error=False)
            except (RedisError, OSError) as error:
                self._quiet.log(logging.WARNING, f"workers are not notified of new frames: {error!s:.200}")


class Inbox:
    """The inbox of one process.

    Args:
        redis: a client with a connection for this alone: it waits.
        on_runs: called with the names of runs in which something is new.
        on_order: called with each command.
    """

    def __init__(
        self,
        redis: Redis,
        member_id: str,
        on_runs: Callable[[set[str]], None] = lambda runs: None,
        on_order: Callable[[Order], Awaitable[None]] | None = None,
    ) -> None:
        self._redis = redis
        self._key = inbox_key(member_id)
        self._on_runs = on_runs
        self._on_order = on_order
        self._place = "0-0"
        self._quiet = QuietLog(_log)

    async def follow(self) -> None:
        """Read without end."""
        while True:
            try:
                found: Any = await self._redis.xread({self._key: self._place}, block=BLOCK_MS)
            except (RedisError, OSError) as error:
                self._quiet.log(logging.WARNING, f"the inbox of this process can't be read: {error!s:.200}")
                await asyncio.sleep(_AWAY_PAUSE_S)
                continue
            entries = found[0][1] if found else []
            runs = set[str]()
            for entry_id, fields in entries:
                self._place = entry_id.decode()
                if (names := fields.get(b"w")) is not None:
                    runs.update(names.decode().split())
                elif (command := fields.get(b"o")) is not None and self._on_order is not None:
                    message = decode_message(command)
                    assert isinstance(message, CommandMessage)
                    place = fields[b"r"].decode(), fields[b"a"].decode(), int(fields[b"n"])
                    await self._on_order(Order(*place, message))
            if runs:
                self._on_runs(runs)
