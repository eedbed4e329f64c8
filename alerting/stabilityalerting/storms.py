"""Storms: incidents of many runs with one cause, such as a node or a data set, in few messages.

The first incidents are sent without delay. Similar ones (of one kind and one cause) from other runs are counted after
that, and reported in a summary behind the first. Nothing gets lost: once the first has ended, each of the others that
is still open is sent for itself. Within one run the server names causes (``caused_by``) and trains.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace
from redis.asyncio import Redis

from .alert import SEVERITIES, Alert, Severity
from .notification_log import NotificationLog

__all__ = ["AGAIN_S", "SUMMARY", "SUMMARY_S", "Storm", "Storms"]

#: In place of a stream in the list of due incidents: the summary of a storm.
SUMMARY = "summary"

#: Longest time between two incidents of one kind in different runs with one cause, such as a failing switch, seconds.
TOGETHER_S = 60.0
#: The same on one node or in one data set, whose faults last.
SAME_SOURCE_S = 600.0
#: Runs whose incidents are sent for themselves before their kind counts as a storm.
SINGLE_RUNS = 2
#: Delay of the summary after the first incident held back, seconds; doubled with each further one, up to eight times:
#: in a large storm the summaries of all its causes would delay news.
SUMMARY_S = 20.0
LONGEST_SUMMARIES = 3
#: An incident held back is judged again so often, seconds.
AGAIN_S = 300.0
#: Names of runs in a summary, and stored runs and incidents.
MAX_NAMES = 8
MAX_MEMBERS = 2_000
_KEEP_S = 86_400


class _Cause(NamedTuple):
    """A property that an incident may share with those of other runs.

    Attributes:
        label: for a summary. within_s: longest time between two of them, seconds. singles: runs sent for themselves.
    """

    key: str
    label: str
    within_s: float
    singles: int


class Storm(msgspec.Struct, frozen=True):
    """Incidents that may have one cause.

    Args:
        key: of the cause. cause: for display.
        singles: runs sent for themselves.
        stream, run_id, incident_id, severity: of the incident with the summaries, the newest that was sent.
        last: time of the newest member, unix seconds.
        members: ids of the incidents held back. runs: their runs, in order of arrival.
        reported: members in the last summary. summaries: how many were sent.
    """

    key: str
    cause: str
    stream: str
    run_id: str
    incident_id: str
    severity: Severity
    last: float
    singles: list[str]
    members: list[str] = []
    runs: list[str] = []
    reported: int = 0
    summaries: int = 0

    @property
    def summary_s(self) -> float:
        """Delay of the next summary after one more incident, seconds."""
        return SUMMARY_S * 2.0 ** min(self.summaries, LONGEST_SUMMARIES)

    def text(self) -> str:
        """Return the text of a summary."""
        names = ", ".join(self.runs[:MAX_NAMES]) + (" ..." if len(self.runs) > MAX_NAMES else "")
        count = len(self.members)
        runs = len(self.runs)
        incidents = f"{count:,} more incident{'s' * (count != 1)} in {runs:,} run{'s' * (runs != 1)}"
        return f"{incidents} with {self.cause}: {names}. They are not sent one by one."


class Storms:
    """The storms of one receiver, in Redis, so that a restart continues to count."""

    def __init__(self, redis: Redis, sink: str, notifications: NotificationLog) -> None:
        self._redis = redis
        self._prefix = f"sb:alerting:storm:{sink}"
        self._notifications = notifications

    async def join(self, stream: str, alert: Alert, now: float) -> Storm | None:
        """Count an incident in a storm and return that, None where the incident is to be sent for itself."""
        for cause in _causes(alert):
            storm = await self.read(cause.key)
            if storm is None or alert.run_id in storm.singles or not _is_as_grave(storm, alert):
                continue  # from a run sent for itself, or graver than the first
            if not await self._leads(storm):
                continue
            if alert.incident_id in storm.members:
                return storm
            if now - storm.last <= cause.within_s and len(storm.singles) >= cause.singles:
                storm = replace(storm, last=now)
                if len(storm.members) < MAX_MEMBERS:
                    runs = list(dict.fromkeys([*storm.runs, alert.run_id]))
                    storm = replace(storm, members=[*storm.members, alert.incident_id], runs=runs)
                await self._write(storm)
                return storm
        return None

    async def sent(self, stream: str, alert: Alert, now: float) -> None:
        """Note that an incident was sent for itself: similar ones may be counted behind it."""
        for cause in _causes(alert):
            storm = await self.read(cause.key)
            before = storm.singles if storm is not None and now - storm.last <= cause.within_s else []
            singles = list(dict.fromkeys([*before, alert.run_id]))
            if storm is None or not storm.members or not await self._leads(storm):
                storm = Storm(
                    cause.key, cause.label, stream, alert.run_id, alert.incident_id, alert.severity, now, singles
                )
            await self._write(replace(storm, singles=singles, last=now))

    async def read(self, key: str) -> Storm | None:
        """Return the storm of a cause, None where there is none."""
        raw: Any = await self._redis.get(f"{self._prefix}:{key}")
        return None if raw is None else msgspec.json.decode(raw, type=Storm)

    async def summary(self, key: str) -> Storm | None:
        """Return a storm with unreported members, None for one without, or whose first incident has ended."""
        storm = await self.read(key)
        if storm is None or len(storm.members) <= storm.reported or not await self._leads(storm):
            return None
        return storm

    async def unreported(self, alert: Alert) -> list[Storm]:
        """Return the storms with unreported members behind an incident."""
        storms = [await self.summary(cause.key) for cause in _causes(alert)]
        return [storm for storm in storms if storm is not None and storm.incident_id == alert.incident_id]

    async def reported(self, storm: Storm) -> None:
        """Note that the summary of a storm in this state was sent."""
        newest = await self.read(storm.key)
        if newest is not None:
            await self._write(replace(newest, reported=len(storm.members), summaries=newest.summaries + 1))

    async def _leads(self, storm: Storm) -> bool:
        return (await self._notifications.read(storm.stream, storm.incident_id)).state == "open"

    async def _write(self, storm: Storm) -> None:
        await self._redis.set(f"{self._prefix}:{storm.key}", msgspec.json.encode(storm), ex=_KEEP_S)


def _causes(alert: Alert) -> list[_Cause]:
    """Return the properties that an incident shares with similar ones: its kind always, and its node or data set."""
    found = []
    kind = f"{alert.kind} {alert.cause}"
    if alert.node and alert.about in ("process", "gpu"):
        found.append(_Cause(f"node {alert.node} {kind}", f"the same node {alert.node}", SAME_SOURCE_S, 1))
    if alert.dataset:
        label = f"the same data set {alert.dataset}"
        found.append(_Cause(f"dataset {alert.project} {alert.dataset} {alert.kind}", label, SAME_SOURCE_S, 1))
    # All projects share machines; faults of a model come from the data or the code of its project.
    shared = alert.about in ("process", "gpu")
    label = f"the same kind ({alert.label})" + ("" if shared else f" in project {alert.project or '-'}")
    key = f"kind {kind}" if shared else f"kind {kind} {alert.project}"
    found.append(_Cause(key, label, TOGETHER_S, SINGLE_RUNS))
    # Names of nodes and data sets may hold anything.
    return [one._replace(key=hashlib.sha256(one.key.encode()).hexdigest()[:24]) for one in found]


def _is_as_grave(storm: Storm, alert: Alert) -> bool:
    return SEVERITIES.index(storm.severity) >= SEVERITIES.index(alert.severity)
