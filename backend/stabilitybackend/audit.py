"""What was done to the server and its runs, by whom and when; only ever appended to.

What people do to one run (commands, settings) is stored with the run (``RunKeys.command_audit``) and goes with it. Here
is what outlives a run: its removal, keys, logins.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stabilitybackend.keys import AUDIT
from stabilitybackend.redis_link import InRedis, redis_errors
from stabilitybackend.schema.server import AuditEntry

__all__ = ["AuditLog"]

#: Entries kept, newest ones. Whoever has no key can't add any.
MAX_ENTRIES = 10_000


class AuditLog(InRedis):
    """The audit stream."""

    async def add(self, who: str, key_id: str | None, action: str, target: str = "", detail: str = "") -> None:
        """Append an entry. Raises Unavailable when Redis is away."""
        entry = AuditEntry(self._clock(), who, key_id, action, target, detail)
        with redis_errors():
            await self._redis.xadd(AUDIT, {"e": msgspec.json.encode(entry)}, maxlen=MAX_ENTRIES, approximate=True)

    async def newest(self, count: int) -> list[AuditEntry]:
        """Return the newest ``count`` entries, newest first. Raises Unavailable when Redis is away."""
        with redis_errors():
            found: Any = await self._redis.xrevrange(AUDIT, count=count)
        return [msgspec.json.decode(fields[b"e"], type=AuditEntry) for _, fields in found]
