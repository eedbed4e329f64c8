"""Incidents that a receiver may hear of later: at the end of a mute, or without acknowledgement. In Redis."""

from __future__ import annotations

from typing import Any

import msgspec
from redis.asyncio import Redis

__all__ = ["DueLater"]

#: Prefix of the sorted sets, one a receiver: incident -> unix seconds.
_KEY = "sb:alerting:due:"
#: Entries in one read; the rest follows.
MAX_AT_ONCE = 64


class DueLater:
    """The list of one receiver. An incident in it is judged again at its time, in its state of then."""

    def __init__(self, redis: Redis, sink: str) -> None:
        self._redis = redis
        self._key = f"{_KEY}{sink}"

    async def put(self, stream: str, run_id: str, incident_id: str, at: float, *, sooner: bool = False) -> None:
        """Note an incident for a time, unix seconds. It replaces an earlier entry, with ``sooner`` only a later one."""
        await self._redis.zadd(self._key, {_member(stream, run_id, incident_id): at}, lt=sooner)

    async def drop(self, stream: str, run_id: str, incident_id: str) -> None:
        """Remove an incident from the list."""
        await self._redis.zrem(self._key, _member(stream, run_id, incident_id))

    async def all_at(self, now: float) -> None:
        """Make every entry due: a mute was ended early, or the routes have changed."""
        found: Any = await self._redis.zrange(self._key, 0, -1)
        for member in found:
            await self._redis.zadd(self._key, {member: now}, xx=True)

    async def ripe(self, now: float) -> list[tuple[str, str, str]]:
        """Return stream, run and incident of the due entries, the longest due first."""
        found: Any = await self._redis.zrangebyscore(self._key, "-inf", now, start=0, num=MAX_AT_ONCE)
        return [msgspec.json.decode(member, type=tuple[str, str, str]) for member in found]


def _member(stream: str, run_id: str, incident_id: str) -> str:
    # With spaces, as the members of earlier versions: another spelling would leave those in the set for ever.
    return msgspec.json.format(msgspec.json.encode((stream, run_id, incident_id)), indent=0).decode()
