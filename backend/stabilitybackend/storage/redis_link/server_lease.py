"""Lease of the one server without roles that works on a Redis; a second server waits for it, then reports its holder.

Two servers would each judge every run: an agent that moves from one to the other is lost for the first, a command given
at one does not reach the agents of the other, and both archive. The embedded Redis has its folder's lock instead. The
owner of one run is set by its fence (runs/ownership).
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stabilitybackend.base.errors import RedisStartError, Unavailable
from stabilitybackend.base.keys import SERVER
from stabilitybackend.storage.redis_link import as_unavailable

__all__ = ["LEASE_S", "ServerLease"]

#: Life of a lease that is not renewed, seconds: longer than a pause of the machine, short enough for a takeover.
LEASE_S = 6.0
RENEW_S = 1.0
#: Longest wait of a start for another server, seconds: a killed one has lost its lease by then.
WAIT_S = 8.0
_LOOK_S = 0.25
#: KEYS: the lease.  ARGV: own token, a token that may be replaced (or empty), own description, milliseconds.
#: Answers nothing where the lease is taken, else token and description of its holder.
_TAKE = """
local held = redis.call('HMGET', KEYS[1], 'token', 'who')
if held[1] and held[1] ~= ARGV[1] and held[1] ~= ARGV[2] then return held end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'who', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return false
"""
_RELEASE = "if redis.call('HGET', KEYS[1], 'token') == ARGV[1] then redis.call('DEL', KEYS[1]) end"
_log = logging.getLogger(__name__)


class _Holder(msgspec.Struct):
    """Holder of a lease. ``pid_ns`` and ``ticks`` (its start since boot) tell its process from others of its pid."""

    url: str
    host: str
    pid: int
    pid_ns: str
    ticks: int
    since: float

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since))
        return f"{self.url} on {self.host} (pid {self.pid}, since {since})"


class ServerLease:
    """This server's lease on a Redis.

    Args:
        url: of this server.
        proc: the folder of processes.

    Attributes:
        lost_to: the server that took it over, empty while this one holds it.
    """

    def __init__(
        self, url: str, *, clock: Callable[[], float] = time.time, proc: Path = Path("/proc"), token: str = ""
    ) -> None:
        self._token = token or secrets.token_hex(16)
        self._proc = proc
        ticks, pid_ns = _ticks(proc, os.getpid()), _pid_namespace(proc)
        self._who = msgspec.json.encode(_Holder(url, socket.gethostname(), os.getpid(), pid_ns, ticks, clock()))
        self.lost_to = ""

    @staticmethod
    async def refuse_beside(redis: Redis, place: str) -> None:
        """Return where no server works alone on a Redis. Raises RedisStartError where one does."""
        who: Any = await redis.hget(SERVER, "who")
        if who is not None:
            raise RedisStartError(
                f"a server that does everything alone works on Redis at {place}: {_read(who) or 'of another version'}",
                hint="stop it, or start it with roles, too (--role door --role worker --role pages --role alerting)",
                code="server_there",
            )

    async def take(self, redis: Redis, place: str, wait_s: float = WAIT_S) -> None:
        """Take the lease, or wait until it is free.

        Args:
            place: of the Redis, for the message.

        Raises:
            RedisStartError: another server held it all the time.
        """
        until = time.monotonic() + wait_s
        replaced = ""
        while True:
            try:
                held = await self._ask(redis, replaced)
            except (RedisError, OSError) as error:
                if (away := as_unavailable(error)) is None:
                    raise
                _log.warning("whether another server works on Redis at %s is not known: %s", place, away.message)
                return  # full, or away again: no other server can take it either, and ``keep`` tries on
            if held is None:
                return
            token, holder = held
            replaced = token if holder is not None and self._is_dead(holder) else ""
            if replaced:
                continue
            if time.monotonic() >= until:
                raise RedisStartError(
                    f"another server works on Redis at {place}: {holder or 'of another version'}. Two would judge "
                    "each run twice",
                    hint="stop it, or give this one a Redis of its own (another --redis-url, or another database: "
                    "redis://host:port/1)",
                    code="server_there",
                )
            await asyncio.sleep(_LOOK_S)

    async def may_take_runs(self, redis: Redis) -> None:
        """Return while this server holds the lease; a stalled one may not take runs back from its successor.

        Raises:
            Unavailable: another server holds it.
            RedisError: Redis is away.
        """
        held: Any = await redis.hget(SERVER, "token")
        if held is not None and held.decode() != self._token:
            raise Unavailable("another server works on this Redis", hint="ask that one", code="moved")

    async def keep(self, redis: Redis) -> None:
        """Renew the lease until cancelled; end this process where another server has taken it."""
        while True:
            try:
                held = await self._ask(redis, "")
            except (RedisError, OSError):
                held = None  # no other server can take it either
            if held is not None:
                self.lost_to = str(held[1] or "another server")
                _log.error("this server was stalled for over %g s, and %s took over: it stops", LEASE_S, self.lost_to)
                signal.raise_signal(signal.SIGTERM)
                return
            await asyncio.sleep(RENEW_S)

    async def release(self, redis: Redis) -> None:
        """Give the lease back, where this server holds it."""
        try:
            await redis.eval(_RELEASE, 1, SERVER, self._token)
        except (RedisError, OSError):
            pass  # it ends by itself

    async def _ask(self, redis: Redis, replaced: str) -> tuple[str, _Holder | None] | None:
        found = await redis.eval(_TAKE, 1, SERVER, self._token, replaced, self._who, int(LEASE_S * 1000))
        if found is None:
            return None
        token, who = found
        return token.decode(), _read(who)

    def _is_dead(self, holder: _Holder) -> bool:
        """Whether that process of this machine has ended; False where that is unknown."""
        here = holder.host == socket.gethostname() and holder.pid_ns == _pid_namespace(self._proc) != ""
        return here and _ticks(self._proc, holder.pid) != holder.ticks


def _read(who: bytes | None) -> _Holder | None:
    try:
        return None if who is None else msgspec.json.decode(who, type=_Holder)
    except msgspec.MsgspecError:  # of another version
        return None


def _ticks(proc: Path, pid: int) -> int:
    """Return when a process started, clock ticks since boot; -1 where there is none."""
    try:
        return int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return -1


def _pid_namespace(proc: Path) -> str:
    try:
        return os.readlink(proc / "self" / "ns" / "pid")
    except OSError:
        return ""
