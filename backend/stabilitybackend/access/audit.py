"""Actions of users and programs, with author and time; only ever appended to.

Each action of a call is here, and outlives its run. What is stored with a run
(``RunKeys.command_audit``) goes with the run: it has every change of its commands and settings whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from redis.asyncio import Redis

from stabilitybackend.base.keys import AUDIT, RunKeys
from stabilitybackend.schema.server import AuditEntry
from stabilitybackend.storage.redis_link import InRedis, redis_errors

__all__ = ["MAX_ENTRIES", "AuditLog", "AuditQuery"]

#: Entries kept, newest ones: about 15 MB. A caller without a key adds none.
MAX_ENTRIES = 50_000
#: Entries of one read from Redis.
_READ = 1_000
#: Entries of a run's own record that are read, newest ones: each command is there whole with each change.
_READ_OF_RUN = 300
#: That the same person sees the same thing of a run again is noted this often, seconds.
SEEN_EVERY_S = 3600.0
#: Remembered times of reads; the oldest is dropped.
MAX_SEEN = 10_000
#: The same thing in both records is at most so far apart, seconds.
_SAME_S = 2.0


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """A search; None and "" match anything.

    Attributes:
        count: newest entries. before: unix seconds; only older entries.
        who: a name. action: one, or its begin up to a dot: ``key`` finds ``key.create``. run: a run's id.
    """

    count: int = 100
    who: str = ""
    action: str = ""
    run: str = ""
    before: float | None = None

    def fits(self, entry: AuditEntry) -> bool:
        """Return whether an entry is looked for."""
        return (
            (not self.who or entry.who == self.who)
            and (not self.action or entry.action == self.action or entry.action.startswith(f"{self.action}."))
            and (not self.run or self.run in (entry.run, entry.target))
            and (self.before is None or entry.time < self.before)
        )


class AuditLog(InRedis):
    """The audit stream."""

    def __init__(self, redis: Redis, clock: Callable[[], float] = time.time) -> None:
        super().__init__(redis, clock)
        #: Who, key, action, run -> when that was noted last.
        self._seen: dict[tuple[str, str | None, str, str], float] = {}

    async def add(
        self, who: str, key_id: str | None, action: str, target: str = "", detail: str = "", run: str = ""
    ) -> None:
        """Append an entry. Raises Unavailable when Redis is away."""
        entry = AuditEntry(self._clock(), who, key_id, action, target, detail, run)
        with redis_errors():
            await self._redis.xadd(AUDIT, {"e": msgspec.json.encode(entry)}, maxlen=MAX_ENTRIES, approximate=True)

    async def saw(self, who: str, key_id: str | None, action: str, run: str, detail: str) -> None:
        """Append a read of restricted data, once in SEEN_EVERY_S: pages ask every few seconds."""
        now, key = self._clock(), (who, key_id, action, run)
        if now - self._seen.get(key, float("-inf")) < SEEN_EVERY_S:
            return
        await self.add(who, key_id, action, "", detail, run)
        self._seen.pop(key, None)
        self._seen[key] = now
        while len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]

    async def newest(self, count: int) -> list[AuditEntry]:
        """Return the newest ``count`` entries, newest first. Raises Unavailable when Redis is away."""
        return await self.find(AuditQuery(count))

    async def find(self, query: AuditQuery) -> list[AuditEntry]:
        """Return the found entries, newest first; of one run with its own record. Raises Unavailable."""
        found: list[AuditEntry] = []
        end = "+"
        while len(found) < query.count:
            with redis_errors():
                read: Any = await self._redis.xrevrange(AUDIT, max=end, count=_READ)
            entries = (msgspec.json.decode(fields[b"e"], type=AuditEntry) for _, fields in read)
            found += [entry for entry in entries if query.fits(entry)]
            if len(read) < _READ:
                break
            end = f"({read[-1][0].decode()}"
        if query.run:
            found = _merged(found, [entry for entry in await self._of_run(query.run) if query.fits(entry)])
        return found[: query.count]

    async def _of_run(self, run_id: str) -> list[AuditEntry]:
        with redis_errors():
            read: Any = await self._redis.xrevrange(RunKeys(run_id).command_audit, count=_READ_OF_RUN)
        return [entry for _, fields in read for entry in _read(run_id, fields)]


def _merged(called: list[AuditEntry], kept: list[AuditEntry]) -> list[AuditEntry]:
    """Return both records of a run merged, newest first, without duplicates."""
    known: dict[tuple[str, str], list[float]] = {}
    for entry in called:
        known.setdefault((entry.action, entry.who), []).append(entry.time)
    more = [
        entry for entry in kept
        if not any(abs(entry.time - at) < _SAME_S for at in known.get((entry.action, entry.who), ()))
    ]  # fmt: skip
    return sorted([*called, *more], key=lambda entry: entry.time, reverse=True)


def _read(run_id: str, fields: Mapping[bytes, bytes]) -> Iterator[AuditEntry]:
    """Yield the entries in a run's own record."""
    for kind, data in fields.items():
        make = _KINDS.get(kind)
        if make is not None:
            made = make(msgspec.json.decode(data))
            yield msgspec.structs.replace(made, run=run_id)


def _command(one: Any) -> AuditEntry:
    line = one["history"][-1] if one["history"] else {"time": one["issued"], "detail": ""}
    state = one["state"]
    what = "command.order" if state == "pending" else f"command.{state}"
    key = None
    return AuditEntry(line["time"], one["issuer"], key, what, one["command_id"], f"{one['kind']}: {line['detail']}")


def _proposal(one: Any) -> AuditEntry:
    by, when = one.get("decided_by"), one.get("decided")
    made = one["state"] == "proposed"
    return AuditEntry(
        one["proposed"] if made or when is None else when, one["proposer"] if made or by is None else by, None,
        f"proposal.{'made' if made else one['state']}", one["proposal_id"], one["what"],
    )  # fmt: skip


def _settings(one: Any) -> AuditEntry:
    return AuditEntry(
        one["time"], one["who"], None, "settings.detectors", "", msgspec.json.encode(one["settings"]).decode()
    )


def _category(one: Any) -> AuditEntry:
    return AuditEntry(
        one["time"], one["who"], None, "interruption.category", one["interruption"], one["category"] or ""
    )


def _annotation(one: Any) -> AuditEntry:
    noted = one["annotation"]
    return AuditEntry(
        one["time"], one["who"], None, f"annotation.{one['what']}", noted["annotation_id"], noted["text"][:200]
    )


def _about(one: Any) -> AuditEntry:
    given = {name: value for name, value in one.items() if name not in ("who", "time") and value is not None}
    return AuditEntry(one["time"], one["who"], None, "run.edit", "", msgspec.json.encode(given).decode()[:300])


def _policy(one: Any) -> AuditEntry:
    ended = one["text"] is None
    return AuditEntry(one["time"], one["who"], None, f"autopilot.{'off' if ended else 'policy'}", "", one["text"] or "")


def _piloted(one: Any) -> AuditEntry:
    dry = " (dry run)" if one["dry_run"] else ""
    what = f"autopilot.{one['action']}"
    return AuditEntry(one.get("time", 0.0), "autopilot", None, what, one["incident_id"], f"{one['text']}{dry}")


#: Field of a run's own record -> its reader.
_KINDS: Mapping[bytes, Callable[[Any], AuditEntry]] = {
    b"c": _command, b"q": _proposal, b"p": _policy, b"o": _piloted, b"d": _settings, b"i": _category,
    b"a": _annotation, b"n": _about,
}  # fmt: skip
