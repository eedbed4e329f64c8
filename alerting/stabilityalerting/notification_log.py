"""The log of notices sent to each receiver about each incident, in Redis, so that nothing is sent twice."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace
from redis.asyncio import Redis

from .alert import Change, Notice
from .lease import Interrupted, Lease

#: Life of a record after the last message about its incident, seconds: 30 days. A later change starts again.
KEEP_S = 30 * 86_400

#: KEYS: a record, the newest holder of the lease in this slot.  ARGV: own number and name, seconds to keep, the
#: record to store (none: read it).  Answers {number of a newer holder} or {0, the record}.
_AS_HOLDER = """
local last = redis.call('hmget', KEYS[2], 'number', 'name')
local number, own = tonumber(last[1] or '0'), tonumber(ARGV[1])
if number > own or (number == own and last[2] ~= ARGV[2]) then return {number} end
if number < own then
  redis.call('hset', KEYS[2], 'number', ARGV[1], 'name', ARGV[2])
  redis.call('expire', KEYS[2], ARGV[3])
end
if not ARGV[4] then return {0, redis.call('get', KEYS[1])} end
redis.call('set', KEYS[1], ARGV[4], 'ex', ARGV[3])
return {0, ARGV[4]}
"""

__all__ = ["NotificationLog", "Record"]


class Record(msgspec.Struct, frozen=True):
    """One incident as one receiver knows it.

    Args:
        state: ``""`` not notified, ``open``, ``over``, or ``with_cause``: reported behind the message about its cause.
        severity, version: of the incident in the last message, ``""`` and 0 for none.
        acknowledged: the acknowledgement was reported.
        sending: the change in flight: written right before the first byte leaves, cleared after it.
            Found after a crash it means that the message may have arrived.
        sending_version, sending_severity: of the incident in that message. sending_serial: of a summary.
    """

    state: str = msgspec.field(name="told", default="")
    severity: str = ""
    version: int = 0
    acknowledged: bool = False
    sending: Change | None = None
    sending_version: int = 0
    sending_severity: str = ""
    sending_serial: int = 0

    def with_sending(self, notice: Notice) -> Record:
        """Return the record while ``notice`` is in flight."""
        alert = notice.source
        return replace(
            self,
            sending=notice.change,
            sending_version=notice.version or alert.version,
            sending_severity=alert.severity,
            sending_serial=notice.serial,
        )

    def after_sending(self) -> Record:
        """Return the record after the arrival of the message in flight."""
        state = {"resolved": "over", "handed_over": "with_cause"}.get(self.sending or "", "open")
        acknowledged = state == "open" and (self.acknowledged or self.sending == "acknowledged")
        return Record(state, self.sending_severity, self.sending_version, acknowledged)

    def without_sending(self) -> Record:
        """Return the record after the loss of the message in flight."""
        return replace(self, sending=None, sending_version=0, sending_severity="", sending_serial=0)


class NotificationLog:
    """The records of one receiver.

    The keys are in the hash slot of their stream: ``<stream>:told:<sink>:<incident id>``, and
    ``<stream>:teller`` with the token of the newest holder of the lease that has read there. From then on an older
    holder, stalled and unaware of that, can't write there, and so sends nothing.

    Args:
        lease: of the sending process; None: read only.
    """

    def __init__(self, redis: Redis, sink: str, lease: Lease | None = None) -> None:
        self._redis = redis
        self._sink = sink
        self._lease = lease

    async def read(self, stream: str, incident_id: str) -> Record:
        """Return the record of an incident. Raises Interrupted: another process may send now."""
        key = f"{stream}:told:{self._sink}:{incident_id}"
        raw: Any = await (self._redis.get(key) if self._lease is None else self._as_holder(self._lease, stream, key))
        # A field of a newer version, which ran before this one, is skipped.
        return Record() if raw is None else msgspec.json.decode(raw, type=Record)

    async def write(self, stream: str, incident_id: str, record: Record) -> None:
        """Store the record of an incident. Raises Interrupted: another process may send now."""
        assert self._lease is not None, "only the holder of the lease writes"
        key = f"{stream}:told:{self._sink}:{incident_id}"
        await self._as_holder(self._lease, stream, key, msgspec.json.encode(record))

    async def _as_holder(self, lease: Lease, stream: str, key: str, *record: bytes) -> bytes | None:
        answer: Any = await self._redis.eval(_AS_HOLDER, 2, key, f"{stream}:teller", *lease.token, KEEP_S, *record)
        if answer[0]:
            lease.overtaken(answer[0])
            raise Interrupted
        found: bytes | None = answer[1]
        return found
