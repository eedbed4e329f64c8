"""Remembers in Redis what each receiver was sent of each incident, so that nothing is sent twice."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from .alert import Change, Notice
from .sink import BeforeWrite

#: How long the memory of an incident is kept after its last message, seconds: 30 days. A later change starts again.
KEEP_S = 30 * 86_400

__all__ = ["NotificationLog", "Record"]


@dataclass(frozen=True, slots=True)
class Record:
    """What one receiver knows of one incident.

    Args:
        told: ``""`` nothing, ``open``, ``over``, or ``with_cause``: it was said behind the message about its cause.
        severity, version: of the incident as it was reported last, ``""`` and 0 for none.
        acknowledged: the receiver knows that somebody looks after it.
        sending: change that is on its way: written right before the first byte leaves, cleared when the fate is known.
            Found after a crash it means that the message may have arrived.
        sending_version, sending_severity: of the incident in that message. sending_serial: which of several summaries.
    """

    told: str = ""
    severity: str = ""
    version: int = 0
    acknowledged: bool = False
    sending: Change | None = None
    sending_version: int = 0
    sending_severity: str = ""
    sending_serial: int = 0

    def with_sending(self, notice: Notice) -> Record:
        """Return the record while ``notice`` is on its way."""
        alert = notice.source
        return replace(
            self, sending=notice.change, sending_version=alert.version, sending_severity=alert.severity,
            sending_serial=notice.serial,
        )  # fmt: skip

    def after_sending(self) -> Record:
        """Return the record when what was on its way has arrived, or must be taken to have."""
        told = {"resolved": "over", "handed_over": "with_cause"}.get(self.sending or "", "open")
        acknowledged = told == "open" and (self.acknowledged or self.sending == "acknowledged")
        return Record(told, self.sending_severity, self.sending_version, acknowledged)

    def without_sending(self) -> Record:
        """Return the record when what was on its way has certainly not arrived."""
        return replace(self, sending=None, sending_version=0, sending_severity="", sending_serial=0)


class NotificationLog:
    """The records of one receiver.

    The keys lie beside the stream they belong to, and so in its hash slot: ``<stream>:told:<sink>:<incident id>``.
    """

    def __init__(self, redis: Redis, sink: str) -> None:
        self._redis = redis
        self._sink = sink

    async def read(self, stream: str, incident_id: str) -> Record:
        """Return what the receiver knows of an incident."""
        raw: Any = await self._redis.get(self._key(stream, incident_id))
        # A field of a newer version, which ran before this one, is passed over.
        return Record() if raw is None else msgspec.json.decode(raw, type=Record)

    async def write(self, stream: str, incident_id: str, record: Record) -> None:
        """Store what the receiver knows of an incident."""
        await self._redis.set(self._key(stream, incident_id), json.dumps(asdict(record)), ex=KEEP_S)

    @asynccontextmanager
    async def mark(self, stream: str, incident_id: str, record: Record) -> AsyncIterator[BeforeWrite]:
        """Give a function that stores a record and does not wait for the answer.

        The mark and the message should leave together: a kill between the two is the one moment in which a message to a
        receiver that is not idempotent can be lost. So the command goes out on a connection that is open already, the
        message follows in the next turn of the event loop, and the answer is read afterwards. Whether the mark was
        stored matters only after a crash: whoever lives on writes what became of the message.
        """
        pool: Any = self._redis.connection_pool
        connection = await pool.get_connection()
        sent = False

        async def store() -> None:
            nonlocal sent
            key, value = self._key(stream, incident_id), json.dumps(asdict(record))
            await connection.send_command("SET", key, value, "EX", KEEP_S)
            sent = True

        try:
            yield store
        finally:
            try:
                if sent:
                    await connection.read_response()
            except (RedisError, OSError):
                await connection.disconnect()
            except BaseException:
                await connection.disconnect()  # an answer that was not read must not meet the next command
                raise
            finally:
                await pool.release(connection)

    def _key(self, stream: str, incident_id: str) -> str:
        return f"{stream}:told:{self._sink}:{incident_id}"
