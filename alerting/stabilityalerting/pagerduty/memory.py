"""What is remembered of an incident's life in PagerDuty. In Redis, so that no restart forgets it."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import msgspec
from redis.asyncio import Redis

from stabilityalerting.notification_log import KEEP_S

#: How long an event that was acted on is known, seconds: PagerDuty repeats one for some 20 minutes.
EVENT_KEPT_S = 86_400
#: How long it is known which changes were sent, seconds.
SENT_KEPT_S = 86_400

#: Characters of a title that have to be the same: where PagerDuty cuts one off is nowhere said.
TITLE_CHARS = 200

__all__ = ["EVENT_KEPT_S", "Memory", "Ours"]


class Ours(NamedTuple):
    """An incident of ours."""

    run_id: str
    incident_id: str


class Memory:
    """Of one receiver: another one may be another service in PagerDuty, which knows nothing of the first.

    Args:
        receiver: its name.
    """

    def __init__(self, redis: Redis, receiver: str) -> None:
        self._redis = redis
        self._prefix = f"sb:alerting:pagerduty:{receiver}"

    # --- incidents -----------------------------------------------------------------------------------------------

    async def triggered(self, key: str, title: str, ours: Ours) -> None:
        """Note an incident under its dedup_key and its title, before it is triggered: it is open there from now on."""
        await self._redis.set(f"{self._prefix}:of:{key}", msgspec.json.encode(ours), ex=KEEP_S)
        await self._redis.set(self._of_title(title), key, ex=KEEP_S)
        await self._redis.delete(f"{self._prefix}:over:{ours.incident_id}")

    async def ours(self, key: str) -> Ours | None:
        """Return the incident of a dedup_key, None where it is none of ours."""
        raw: Any = await self._redis.get(f"{self._prefix}:of:{key}")
        return None if raw is None else msgspec.json.decode(raw, type=Ours)

    async def titled(self, title: str) -> str | None:
        """Return the dedup_key of the newest incident that was triggered with this title, None where none was."""
        raw: Any = await self._redis.get(self._of_title(title))
        return None if raw is None else raw.decode()

    async def learn(self, there: str, keys: list[str]) -> None:
        """Note which of our alerts an incident of PagerDuty has: its notes don't say it."""
        await self._redis.set(f"{self._prefix}:there:{there}", msgspec.json.encode(keys), ex=KEEP_S)

    async def keys_of(self, there: str) -> list[str]:
        """Return what ``learn`` noted of an incident of PagerDuty."""
        raw: Any = await self._redis.get(f"{self._prefix}:there:{there}")
        return [] if raw is None else msgspec.json.decode(raw, type=list[str])

    async def acknowledged(self, ours: Ours, who: str) -> None:
        """Note that somebody acknowledged it there, before it is acknowledged here: it is not told back."""
        await self._redis.set(f"{self._prefix}:who:{ours.incident_id}", who, ex=KEEP_S)

    async def acknowledged_by(self, incident_id: str) -> str:
        """Return who acknowledged it there, "" for nobody."""
        raw: Any = await self._redis.get(f"{self._prefix}:who:{incident_id}")
        return "" if raw is None else raw.decode()

    async def resolved(self, ours: Ours) -> None:
        """Note that it was resolved there: one more trigger would page again."""
        await self._redis.set(f"{self._prefix}:over:{ours.incident_id}", "1", ex=KEEP_S)

    async def reopened(self, ours: Ours) -> None:
        """Note that it is open there again."""
        await self._redis.delete(f"{self._prefix}:over:{ours.incident_id}")

    async def is_resolved(self, incident_id: str) -> bool:
        """Return whether it was resolved there, and not triggered since."""
        return bool(await self._redis.exists(f"{self._prefix}:over:{incident_id}"))

    # --- once ----------------------------------------------------------------------------------------------------

    async def is_known(self, event: str) -> bool:
        """Return whether an event of PagerDuty was acted on before."""
        return bool(await self._redis.exists(f"{self._prefix}:event:{event}"))

    async def know(self, event: str) -> None:
        """Note that an event was acted on."""
        await self._redis.set(f"{self._prefix}:event:{event}", "1", ex=EVENT_KEPT_S)

    async def was_sent(self, change: str) -> bool:
        """Return whether a change was sent, or may have been."""
        return bool(await self._redis.exists(f"{self._prefix}:sent:{change}"))

    async def sending(self, change: str) -> None:
        """Note that a change is on its way."""
        await self._redis.set(f"{self._prefix}:sent:{change}", "1", ex=SENT_KEPT_S)

    def _of_title(self, title: str) -> str:
        begin = " ".join(title.split())[:TITLE_CHARS]
        return f"{self._prefix}:titled:{hashlib.sha256(begin.encode()).hexdigest()}"

    async def cursors(self) -> dict[str, str]:
        """Return how far each stream of changes was read."""
        found: Any = await self._redis.hgetall(f"{self._prefix}:cursors")
        return {stream.decode(): entry.decode() for stream, entry in found.items()}

    async def read_to(self, cursors: dict[str, str]) -> None:
        """Note how far each stream was read, in place of what was noted before."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.delete(f"{self._prefix}:cursors")
        if cursors:
            pipe.hset(f"{self._prefix}:cursors", mapping=cursors)  # type: ignore[arg-type]
        await pipe.execute()
