"""What is remembered in Redis: the thread of each incident, orders that are under way, and what was acted on once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from redis.asyncio import Redis

from stabilityalerting.notification_log import KEEP_S

#: Begin of a hash's name, a receiver each: command id -> order as JSON, of those whose end the thread has not told yet.
_ORDERS = "sb:alerting:slack_app:orders:"
#: String, a key a press: something that Slack delivered was acted on.
_ONCE = "sb:alerting:slack_app:once:"
#: How long something that was delivered once may be delivered again, seconds.
ONCE_S = 3_600

__all__ = ["OpenOrder", "Thread", "ThreadLog"]


@dataclass(frozen=True, slots=True)
class Thread:
    """The message of an incident.

    Args:
        channel, ts: by which Slack knows it.
        acknowledged_by: who was said to take care of it. picture: a picture was put into the thread.
    """

    channel: str
    ts: str
    acknowledged_by: str = ""
    picture: bool = False


@dataclass(frozen=True, slots=True)
class OpenOrder:
    """An order whose outcome the thread waits for.

    Args:
        channel, thread: of the incident's message. reply: of the message about the order.
        who: Slack user id. told: what the message about the order says.
    """

    run_id: str
    command_id: str
    channel: str
    thread: str
    reply: str
    who: str
    to_step: int
    reason: str
    told: str = ""


class ThreadLog:
    """All of it; the keys of an incident lie beside its stream."""

    def __init__(self, redis: Redis, sink: str) -> None:
        self._redis = redis
        self._sink = sink

    async def read(self, stream: str, incident_id: str) -> Thread | None:
        """Return the thread of an incident, None where there is none."""
        raw: Any = await self._redis.get(self._key(stream, incident_id))
        return None if raw is None else msgspec.json.decode(raw, type=Thread)

    async def write(self, stream: str, incident_id: str, thread: Thread) -> None:
        """Remember the thread of an incident."""
        await self._redis.set(self._key(stream, incident_id), msgspec.json.encode(thread), ex=KEEP_S)

    async def forget(self, stream: str, incident_id: str) -> None:
        """Somebody deleted the message: the next one begins a thread."""
        await self._redis.delete(self._key(stream, incident_id))

    async def first_time(self, what: str) -> bool:
        """Say whether this is delivered for the first time; from now on it is not."""
        return bool(await self._redis.set(_ONCE + what, "1", nx=True, ex=ONCE_S))

    async def orders(self) -> list[OpenOrder]:
        """Return the orders whose end nobody was told."""
        found: Any = await self._redis.hgetall(_ORDERS + self._sink)
        return [msgspec.json.decode(raw, type=OpenOrder) for raw in found.values()]

    async def keep_order(self, order: OpenOrder) -> None:
        """Remember an order, or how far it was told."""
        await self._redis.hset(_ORDERS + self._sink, order.command_id, msgspec.json.encode(order))

    async def end_order(self, command_id: str) -> None:
        """Its end was told."""
        await self._redis.hdel(_ORDERS + self._sink, command_id)

    def _key(self, stream: str, incident_id: str) -> str:
        return f"{stream}:told:{self._sink}:{incident_id}:thread"
