"""The doors' reports of a run's agents to the run's owner: Health, and each agent's connection.

Both are in Redis with the run, in its slot: a stream of reports, of which the newest stay, and a hash of the agents
that are connected. An owner that takes a run over reads the hash and the last seconds of the stream, and misses
nothing. Each connection of an agent has a number, so that the end of an older connection, which a door may notice late,
is no end of the newer one. It is the time of Redis, microseconds, or one more than the last: a Redis that lost its
newest second to a power cut or a failover must not give a number twice. Lost connections are noted again
with the next Health.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from stabilitybackend.base.keys import MAX_REPORTS, RunKeys
from stabilitybackend.schema.health import TYPED_HEALTH
from stabilityclient.wire import BadMessage, Health, Hello, WrongVersion, decode_message, encode_message

__all__ = ["AgentAt", "Connected", "Disconnected", "Ordered", "Report", "RunReports"]

#: Reports read in one call.
READ_COUNT = 512
#: An owner that takes a run over reads the reports of so many milliseconds before: one Health of each agent.
COVERED_MS = 3_000
#: KEYS: agents, reports.  ARGV: agent, door, Hello as a message, how many reports are kept.
#: Answers the connection's number.
_CONNECT = """
local time = redis.call('TIME')
local last = tonumber(redis.call('HGET', KEYS[1], 'n:' .. ARGV[1]) or 0)
local number = string.format('%.0f', math.max(last + 1, time[1] * 1000000 + time[2]))
redis.call('HSET', KEYS[1], 'n:' .. ARGV[1], number, 'a:' .. ARGV[1], ARGV[2] .. ' ' .. number .. ' ' .. ARGV[3])
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], '*', 'c', ARGV[1], 'n', number, 'd', ARGV[2], 'b', ARGV[3])
return number
"""
#: The same of a connection's end.  ARGV: agent, the connection's number, how many reports are kept.
#: Answers 1, or 0 where the agent has a newer connection.
_DISCONNECT = """
if redis.call('HGET', KEYS[1], 'n:' .. ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], 'a:' .. ARGV[1])
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'g', ARGV[1], 'n', ARGV[2])
return 1
"""
#: The same of an agent's view of its ranks.  ARGV: agent, the connection's number, Health as a message, how many
#: reports are kept.  Answers 0 where this connection is no longer stored.
_HEALTH = """
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], '*', 'h', ARGV[3])
local newest = tonumber(redis.call('HGET', KEYS[1], 'n:' .. ARGV[1]) or 0)
if newest > tonumber(ARGV[2]) then return 1 end
return redis.call('HEXISTS', KEYS[1], 'a:' .. ARGV[1])
"""


@dataclass(frozen=True, slots=True)
class AgentAt:
    """The connection of an agent: to which door (its member id), and its number."""

    door: str
    number: int


@dataclass(frozen=True, slots=True)
class Connected:
    """An agent connected."""

    hello: Hello
    at: AgentAt


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection ``number`` of an agent ended, and it has no newer one."""

    agent: str
    number: int


@dataclass(frozen=True, slots=True)
class Ordered:
    """An order was stored while the run had no owner (runs/orders/waiting.py)."""


Report = Connected | Disconnected | Ordered | Health


class RunReports:
    """The reports of one run.

    Args:
        run_id: must have passed ``check_run_id``.
    """

    def __init__(self, redis: Redis, run_id: str) -> None:
        self._redis = redis
        self._keys = RunKeys(run_id)
        #: Stream id of the newest report that was read.
        self.place = "0-0"

    # --- a door --------------------------------------------------------------------------------------------------

    async def connected(self, hello: Hello, door: str) -> int:
        """Note that an agent connected to a door; return the connection's number."""
        keys = (self._keys.agents, self._keys.reports)
        arguments = (hello.agent, door, encode_message(hello), MAX_REPORTS)
        return int(await self._redis.eval(_CONNECT, 2, *keys, *arguments))

    async def disconnected(self, agent: str, number: int) -> bool:
        """Note that the connection ``number`` ended; return whether the agent has no newer one."""
        keys = (self._keys.agents, self._keys.reports)
        return bool(await self._redis.eval(_DISCONNECT, 2, *keys, agent, number, MAX_REPORTS))

    async def health(self, health: Health, number: int) -> bool:
        """Report an agent's view of its ranks over the connection ``number``.

        Returns:
            Whether the agent's connection is stored. If not, Redis has lost it, or an owner took the door for
            dead that was only stalled: ``connected`` notes it again.
        """
        keys = (self._keys.agents, self._keys.reports)
        arguments = (health.agent, number, encode_message(health), MAX_REPORTS)
        return bool(await self._redis.eval(_HEALTH, 2, *keys, *arguments))

    # --- the owner -----------------------------------------------------------------------------------------------

    async def begin(self) -> list[Report]:
        """Return the present connections and the last reports; ``read`` continues from there."""
        last: Any = await self._redis.xrevrange(self._keys.reports, count=1)
        self.place = last[0][0].decode() if last else "0-0"
        found: list[Report] = []
        agents: Any = await self._redis.hgetall(self._keys.agents)
        for name, value in agents.items():
            if name.startswith(b"a:"):
                door, number, message = value.split(b" ", 2)
                if (hello := _message(message)) is not None:
                    found.append(Connected(cast("Hello", hello), AgentAt(door.decode(), int(number))))
        if last:
            since = max(0, int(self.place.partition("-")[0]) - COVERED_MS)
            newest = dict[str, Health]()
            entries: Any = await self._redis.xrange(self._keys.reports, min=str(since), max=self.place)
            for _, fields in entries:
                if isinstance(report := _report(fields), Health):
                    newest[report.agent] = report
            found += newest.values()
        return found

    def ask(self, pipe: Pipeline) -> None:
        """Ask in a pipeline whether anything was reported since: one entry at most."""
        pipe.xrange(self._keys.reports, min=f"({self.place}", count=1)

    async def read(self) -> list[Report]:
        """Return the reports since, at most READ_COUNT: ask again while there are so many."""
        entries: Any = await self._redis.xrange(self._keys.reports, min=f"({self.place}", count=READ_COUNT)
        if entries:
            self.place = entries[-1][0].decode()
        return [report for _, fields in entries if (report := _report(fields)) is not None]


def _report(fields: dict[bytes, bytes]) -> Report | None:
    """Return a report, None for one of a newer version."""
    if (data := fields.get(b"h")) is not None:
        return cast("Health | None", _message(data))
    if (agent := fields.get(b"g")) is not None:
        return Disconnected(agent.decode(), int(fields[b"n"]))
    if b"c" in fields and (hello := _message(fields[b"b"])) is not None:
        return Connected(cast("Hello", hello), AgentAt(fields[b"d"].decode(), int(fields[b"n"])))
    return Ordered() if b"o" in fields else None


def _message(data: bytes) -> Any:
    try:
        return decode_message(data, TYPED_HEALTH)
    except (BadMessage, WrongVersion):
        return None
