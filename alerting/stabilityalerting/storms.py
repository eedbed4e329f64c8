"""Keeps one cause that breaks many runs from being many messages: a node, a data set, or a whole cluster in a minute.

The first incidents are sent at once. What comes after them, alike (of one kind and one cause) and from other runs, is
counted, and reported in a summary behind the first. Nothing gets lost by that: as soon as the first is over, each of
the others that is still open is sent for itself. Within one run the server names causes (``caused_by``) and trains.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import msgspec
from redis.asyncio import Redis

from .alert import SEVERITIES, Alert, Severity
from .notification_log import NotificationLog

__all__ = ["AGAIN_S", "SUMMARY", "SUMMARY_S", "Storm", "Storms"]

#: Stands for a stream in the list of what is due: it is the summary of a storm.
SUMMARY = "summary"

#: Seconds between two incidents of one kind in different runs that may still be one event, such as a switch that fails.
TOGETHER_S = 60.0
#: The same on one node, or in one data set: those stay sick.
SAME_PLACE_S = 600.0
#: Runs that are sent for themselves before a kind of incident counts as a storm.
SINGLE_RUNS = 2
#: The summary follows so long after the first incident that was held back, seconds; each further one takes twice as
#: long, up to eight times: in a large storm summaries of all its causes would hold up what is news.
SUMMARY_S, LONGEST_SUMMARIES = 20.0, 3
#: What was held back is looked at again so often, seconds.
AGAIN_S = 300.0
#: Names of runs in a summary, and runs and incidents that are remembered.
MAX_NAMES, MAX_MEMBERS = 8, 2_000
_KEEP_S = 86_400


class _Cause(NamedTuple):
    """What an incident may share with those of other runs.

    Attributes:
        words: for a summary. within_s: seconds between two of them. singles: runs that are sent for themselves.
    """

    key: str
    words: str
    within_s: float
    singles: int


class Storm(msgspec.Struct):
    """Incidents that may have one cause.

    Args:
        key: of the cause.
        cause: what they share, in words.
        singles: runs that were sent for themselves.
        stream, run_id, incident_id, severity: of the incident behind which the others are counted, the newest that was
            sent.
        last: when one more came, unix seconds.
        members: ids of incidents that were held back. runs: their runs, in the order in which they came.
        reported: how many were in the last summary. summaries: how many were sent.
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
        """How long after one more incident the next summary follows, seconds."""
        return SUMMARY_S * 2.0 ** min(self.summaries, LONGEST_SUMMARIES)

    def words(self) -> str:
        """Return what a summary says."""
        names = ", ".join(self.runs[:MAX_NAMES]) + (" ..." if len(self.runs) > MAX_NAMES else "")
        count, runs = len(self.members), len(self.runs)
        incidents = f"{count:,} more incident{'s' * (count != 1)} in {runs:,} run{'s' * (runs != 1)}"
        return f"{incidents} with {self.cause}: {names}. They are not sent one by one."


class Storms:
    """The storms of one receiver, in Redis, so that a restart goes on counting."""

    def __init__(self, redis: Redis, sink: str, notifications: NotificationLog) -> None:
        self._redis = redis
        self._prefix = f"sb:alerting:storm:{sink}"
        self._notifications = notifications

    async def join(self, stream: str, alert: Alert, now: float) -> Storm | None:
        """Return the storm that an incident is counted in, None where it is to be sent for itself."""
        for cause in _causes(alert):
            storm = await self.read(cause.key)
            if storm is None or alert.run_id in storm.singles or not _is_as_grave(storm, alert):
                continue  # of a run that is sent for itself, or graver than the first
            if not await self._leads(storm):
                continue
            if alert.incident_id in storm.members:
                return storm
            if now - storm.last <= cause.within_s and len(storm.singles) >= cause.singles:
                if len(storm.members) < MAX_MEMBERS:
                    storm.members.append(alert.incident_id)
                    storm.runs = list(dict.fromkeys([*storm.runs, alert.run_id]))
                storm.last = now
                await self._write(storm)
                return storm
        return None

    async def sent(self, stream: str, alert: Alert, now: float) -> None:
        """Note that an incident was sent for itself: others may be counted behind it."""
        for cause in _causes(alert):
            storm = await self.read(cause.key)
            before = storm.singles if storm is not None and now - storm.last <= cause.within_s else []
            singles = list(dict.fromkeys([*before, alert.run_id]))
            if storm is None or not storm.members or not await self._leads(storm):
                storm = Storm(
                    cause.key, cause.words, stream, alert.run_id, alert.incident_id, alert.severity, now, singles
                )
            storm.singles, storm.last = singles, now
            await self._write(storm)

    async def read(self, key: str) -> Storm | None:
        """Return a storm, None where there is none of this key."""
        raw: Any = await self._redis.get(f"{self._prefix}:{key}")
        return None if raw is None else msgspec.json.decode(raw, type=Storm)

    async def summary(self, key: str) -> Storm | None:
        """Return a storm of which there is more to report, None where there is not, or where its first one is over."""
        storm = await self.read(key)
        if storm is None or len(storm.members) <= storm.reported or not await self._leads(storm):
            return None
        return storm

    async def unreported(self, alert: Alert) -> list[Storm]:
        """Return the storms behind an incident of which there is more to report."""
        storms = [await self.summary(cause.key) for cause in _causes(alert)]
        return [storm for storm in storms if storm is not None and storm.incident_id == alert.incident_id]

    async def reported(self, storm: Storm) -> None:
        """Note that a summary of a storm was sent as it was."""
        now = await self.read(storm.key)
        if now is not None:
            now.reported = len(storm.members)
            now.summaries += 1
            await self._write(now)

    async def _leads(self, storm: Storm) -> bool:
        return (await self._notifications.read(storm.stream, storm.incident_id)).told == "open"

    async def _write(self, storm: Storm) -> None:
        await self._redis.set(f"{self._prefix}:{storm.key}", msgspec.json.encode(storm), ex=_KEEP_S)


def _causes(alert: Alert) -> list[_Cause]:
    """Return what an incident shares with those that are alike: always its kind, and its own cause."""
    found = []
    what = f"{alert.kind} {alert.cause}"
    if alert.node and alert.about in ("process", "gpu"):
        found.append(_Cause(f"node {alert.node} {what}", f"the same node {alert.node}", SAME_PLACE_S, 1))
    if alert.dataset:
        words = f"the same data set {alert.dataset}"
        found.append(_Cause(f"dataset {alert.project} {alert.dataset} {alert.kind}", words, SAME_PLACE_S, 1))
    # Machines are shared by all projects; what a model does is at most the doing of its project's data or code.
    shared = alert.about in ("process", "gpu")
    kind = f"the same kind ({alert.label or alert.kind})" + ("" if shared else f" in project {alert.project or '-'}")
    key = f"kind {what}" if shared else f"kind {what} {alert.project}"
    found.append(_Cause(key, kind, TOGETHER_S, SINGLE_RUNS))
    # Names of nodes and data sets may hold anything.
    return [one._replace(key=hashlib.sha256(one.key.encode()).hexdigest()[:24]) for one in found]


def _is_as_grave(storm: Storm, alert: Alert) -> bool:
    return SEVERITIES.index(storm.severity) >= SEVERITIES.index(alert.severity)
