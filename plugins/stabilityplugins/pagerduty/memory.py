"""State of incidents in PagerDuty, in Redis, so that it outlives restarts."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import msgspec
from redis.asyncio import Redis

from stabilityalerting.notification_log import KEEP_S

#: PagerDuty's limits: characters of a summary and of a dedup_key.
MAX_SUMMARY_CHARS = 1_024
MAX_KEY_CHARS = 255
#: Life of the mark of an applied event, seconds: PagerDuty repeats one for some 20 minutes.
EVENT_KEPT_S = 86_400
#: Life of the mark of a sent change, seconds.
SENT_KEPT_S = 86_400
#: Characters by which titles are compared: PagerDuty does not document where it cuts them.
TITLE_CHARS = 200

__all__ = ["EVENT_KEPT_S", "MAX_SUMMARY_CHARS", "Memory", "OwnIncident", "dedup_key"]


def dedup_key(incident_id: str) -> str:
    """Return the key of an incident in PagerDuty: its id, or the digest of one that is too long."""
    return incident_id if len(incident_id) <= MAX_KEY_CHARS else hashlib.sha256(incident_id.encode()).hexdigest()


class OwnIncident(NamedTuple):
    """An incident of this server."""

    run_id: str
    incident_id: str


class Memory:
    """Of one receiver: another one may be another service in PagerDuty.

    Args:
        receiver: its name.
    """

    def __init__(self, redis: Redis, receiver: str) -> None:
        self._redis = redis
        self._prefix = f"sb:alerting:pagerduty:{receiver}"

    # --- incidents -----------------------------------------------------------------------------------------------

    async def triggered(self, key: str, title: str, own: OwnIncident) -> None:
        """Note an incident under its dedup_key and its title, before it is triggered and so opens there."""
        await self._redis.set(f"{self._prefix}:of:{key}", msgspec.json.encode(own), ex=KEEP_S)
        await self._redis.set(self._of_title(title), key, ex=KEEP_S)
        await self._redis.delete(f"{self._prefix}:over:{own.incident_id}")

    async def own(self, key: str) -> OwnIncident | None:
        """Return the incident of a dedup_key, None for one of another service."""
        raw: Any = await self._redis.get(f"{self._prefix}:of:{key}")
        return None if raw is None else msgspec.json.decode(raw, type=OwnIncident)

    async def titled(self, title: str) -> str | None:
        """Return the dedup_key of the newest incident triggered with this title, None for none."""
        raw: Any = await self._redis.get(self._of_title(title))
        return None if raw is None else raw.decode()

    async def learn(self, there: str, keys: list[str]) -> None:
        """Note the dedup_keys in an incident of PagerDuty: webhooks of its notes don't have them."""
        await self._redis.set(f"{self._prefix}:there:{there}", msgspec.json.encode(keys), ex=KEEP_S)

    async def keys_of(self, there: str) -> list[str]:
        """Return the dedup_keys noted by ``learn``."""
        raw: Any = await self._redis.get(f"{self._prefix}:there:{there}")
        return [] if raw is None else msgspec.json.decode(raw, type=list[str])

    async def acknowledged(self, own: OwnIncident, who: str) -> None:
        """Note an acknowledgement there, before it is applied here: it is not sent back."""
        await self._redis.set(f"{self._prefix}:who:{own.incident_id}", who, ex=KEEP_S)

    async def acknowledged_by(self, incident_id: str) -> str:
        """Return the person who acknowledged it there, "" for none."""
        raw: Any = await self._redis.get(f"{self._prefix}:who:{incident_id}")
        return "" if raw is None else raw.decode()

    async def resolved(self, own: OwnIncident) -> None:
        """Note that it was resolved there: one more trigger would page again."""
        await self._redis.set(f"{self._prefix}:over:{own.incident_id}", "1", ex=KEEP_S)

    async def reopened(self, own: OwnIncident) -> None:
        """Note that it is open there again."""
        await self._redis.delete(f"{self._prefix}:over:{own.incident_id}")

    async def is_resolved(self, incident_id: str) -> bool:
        """Return whether it was resolved there, and not triggered since."""
        return bool(await self._redis.exists(f"{self._prefix}:over:{incident_id}"))

    def _of_title(self, title: str) -> str:
        begin = " ".join(title.split())[:TITLE_CHARS]
        return f"{self._prefix}:titled:{hashlib.sha256(begin.encode()).hexdigest()}"

    # --- once ----------------------------------------------------------------------------------------------------

    async def is_applied(self, event: str) -> bool:
        """Return whether an event of PagerDuty was applied before."""
        return bool(await self._redis.exists(f"{self._prefix}:event:{event}"))

    async def applied(self, event: str) -> None:
        """Note that an event was applied."""
        await self._redis.set(f"{self._prefix}:event:{event}", "1", ex=EVENT_KEPT_S)

    async def was_sent(self, change: str) -> bool:
        """Return whether a change was sent, or may have been."""
        return bool(await self._redis.exists(f"{self._prefix}:sent:{change}"))

    async def sending(self, change: str) -> None:
        """Note that a change is in flight."""
        await self._redis.set(f"{self._prefix}:sent:{change}", "1", ex=SENT_KEPT_S)

    async def cursors(self) -> dict[str, str]:
        """Return the position in each stream of changes."""
        found: Any = await self._redis.hgetall(f"{self._prefix}:cursors")
        return {stream.decode(): entry.decode() for stream, entry in found.items()}

    async def read_to(self, cursors: dict[str, str]) -> None:
        """Replace the positions in the streams."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.delete(f"{self._prefix}:cursors")
        if cursors:
            pipe.hset(f"{self._prefix}:cursors", mapping=cursors)  # type: ignore[arg-type]
        await pipe.execute()
