"""Changes of users, for the timeline of a pager: commands with their outcomes, settings, routes.

They are read from the audit stream of the server and those of the runs, except imported ones.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from redis.asyncio import Redis

from stabilityalerting import BoardChange
from stabilitybackend.acting.commands.progress import progress_of
from stabilitybackend.base.keys import AUDIT, RunKeys
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.schema.commands import END_STATES, WORDS, Command, Restart, Rollback, Stop, read_command
from stabilitybackend.schema.server import AuditEntry

__all__ = ["RecordedChanges"]

#: Entries read from a stream at the first reading, seconds back.
LOOKBACK_S = 600.0
#: Runs with a report within this time are read, seconds.
ACTIVE_S = 86_400.0
#: Entries of a stream, and streams, in one read.
READ_COUNT = 100
STREAMS_PER_READ = 512
#: Kinds of commands that change the job, for display.
_KINDS: Mapping[type[Command], str] = {Rollback: "Rollback", Restart: "Restart", Stop: "Stop"}

_log = logging.getLogger(__name__)


class RecordedChanges:
    """Reads new entries of the records."""

    def __init__(self, redis: Redis, clock: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._index = RunIndex(redis)
        self._clock = clock
        self._imported: dict[str, bool] = {}

    async def since(self, cursors: Mapping[str, str]) -> tuple[list[BoardChange], dict[str, str]]:
        """Return the changes after ``cursors`` (stream -> entry), and the cursors behind them.

        Raises:
            RedisError: Redis is away.
        """
        begin = f"{max(0, int(1000 * (self._clock() - LOOKBACK_S)))}-0"
        runs = {RunKeys(run_id).command_audit: run_id for run_id in await self._runs()}
        read_to = {stream: cursors.get(stream, begin) for stream in [AUDIT, *runs]}
        changes: list[BoardChange] = []
        streams = list(read_to)
        for at in range(0, len(streams), STREAMS_PER_READ):
            some: Any = {stream: read_to[stream] for stream in streams[at : at + STREAMS_PER_READ]}
            pipe = self._redis.pipeline(transaction=False)  # one stream each: on a cluster they are of several slots
            for stream, cursor in some.items():
                pipe.xread({stream: cursor}, count=READ_COUNT)
            for name, entries in [one for found in await pipe.execute() for one in found or ()]:
                stream = name.decode()
                for entry_id, fields in entries:
                    entry = entry_id.decode()
                    read_to[stream] = entry
                    run_id = runs.get(stream, "")
                    changes += _readable(run_id, f"{run_id}:{entry}", fields)
        return changes, read_to

    async def _runs(self) -> list[str]:
        ids = await self._index.active_since(self._clock() - ACTIVE_S)
        for gone in self._imported.keys() - set(ids):
            del self._imported[gone]
        for run in await self._index.stored_all([run_id for run_id in ids if run_id not in self._imported]):
            self._imported[run.run_id] = "imported_from" in run.config
        return [run_id for run_id in ids if not self._imported[run_id]]


def _readable(run_id: str, key: str, fields: Mapping[bytes, bytes]) -> list[BoardChange]:
    try:
        return [change for kind, data in fields.items() for change in _READERS.get(kind, _nothing)(run_id, key, data)]
    except (ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
        _log.debug("an entry %s of what was changed is passed over: %s", key, error)
        return []


def _nothing(run_id: str, key: str, data: bytes) -> Iterator[BoardChange]:
    yield from ()


def _command(run_id: str, key: str, data: bytes) -> Iterator[BoardChange]:
    """Yield the request and the end of a command that changes the job, not the answer of each rank."""
    command = read_command(msgspec.json.decode(data))
    name = _KINDS.get(type(command))
    if name is None:
        return
    if command.to_step is not None:
        name += f" to step {command.to_step:,}"
    details = {"command": command.command_id, "ordered by": command.issuer, "reason": command.reason}
    if command.state == "pending" and len(command.history) <= 1:
        summary = f"{name} of run {run_id} ordered by {command.issuer}"
        yield BoardChange(f"{command.command_id}:ordered", command.issued, run_id, summary, details)
    elif command.state in END_STATES:
        ended = max((line.time for line in command.history), default=command.issued)
        progress = progress_of(command)
        summary = f"{name} of run {run_id}: {WORDS[command.state].lower()}" + (
            f": {progress.trouble}" if progress.trouble else ""
        )
        details["outcome"] = progress.trouble or progress.line
        yield BoardChange(f"{command.command_id}:{command.state}", ended, run_id, summary, details)


def _settings(run_id: str, key: str, data: bytes) -> Iterator[BoardChange]:
    found = msgspec.json.decode(data)
    given = found["settings"]
    names = ", ".join(sorted(given)) or "all back to their defaults"
    summary = f"Detectors of run {run_id} changed by {found['who']}: {names}"
    yield BoardChange(key, found["time"], run_id, summary, {"settings": msgspec.json.encode(given).decode()})


def _policy(run_id: str, key: str, data: bytes) -> Iterator[BoardChange]:
    found = msgspec.json.decode(data)
    change = "turned off" if found["text"] is None else "given a policy"
    summary = f"Autopilot of run {run_id} {change} by {found['who']}"
    yield BoardChange(key, found["time"], run_id, summary, {"policy": found["text"] or ""})


def _audited(run_id: str, key: str, data: bytes) -> Iterator[BoardChange]:
    entry = msgspec.json.decode(data, type=AuditEntry)
    if entry.action == "alerting.routes":
        yield BoardChange(key, entry.time, "", f"Routes of alerts changed by {entry.who}", {"routes": entry.target})


#: Field of a record -> reader of its changes. The shapes of records are in audit.py.
_READERS: Mapping[bytes, Callable[[str, str, bytes], Iterator[BoardChange]]] = {
    b"c": _command, b"d": _settings, b"p": _policy, b"e": _audited,
}  # fmt: skip
