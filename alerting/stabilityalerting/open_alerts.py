"""The alerts that a receiver which forgets is told again and again: kept in Redis, so that a kill loses none."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from redis.asyncio import Redis

from .alert import Alert, Notice
from .errors import BadAlert
from .surroundings import IncidentsNow

__all__ = ["MAX_ALERTS", "RESOLVED_KEPT_S", "OpenAlert", "OpenAlerts", "TooMany"]

#: One that is over is told so for so long, seconds, as Prometheus does: also who was away meanwhile hears of it.
RESOLVED_KEPT_S = 900.0
#: Alerts kept for one receiver, some KiB each; further ones are refused.
MAX_ALERTS = 10_000


class TooMany(Exception):
    """No further alert is kept."""


@dataclass(frozen=True, slots=True)
class OpenAlert:
    """One alert as the receiver knows it.

    Args:
        labels: who it is: another value makes another alert.
        annotations: what people read.
        url: page of the incident.
        starts: when it opened. ends: when it was over, None while it is open; unix seconds.
    """

    run_id: str
    incident_id: str
    labels: dict[str, str]
    annotations: dict[str, str]
    url: str
    starts: float
    ends: float | None = None

    @property
    def field(self) -> str:
        """Its name in the hash: the severity is the one label that changes over an incident's life."""
        return f"{self.incident_id}:{self.labels['severity']}"


def labels_of(alert: Alert) -> dict[str, str]:
    """Return what Alertmanager routes, groups and silences an alert by; only what it has."""
    kind = "".join(word.capitalize() for word in alert.kind.split("_"))
    found = {
        "alertname": f"Stabilityboard{kind}",
        "run": alert.run_id,
        "project": alert.project,
        "kind": alert.kind,
        "severity": alert.severity,
        "node": alert.node,
        "rank": alert.rank,
        "dataset": alert.dataset,
        "incident": alert.incident_id,  # two spikes of one run must not be one alert: the first to end would end both
    }
    return {label: str(value) for label, value in found.items() if value not in (None, "")}


def annotations_of(alert: Alert, url: str) -> dict[str, str]:
    """Return what people read of an alert."""
    found = {
        "summary": f"{alert.line} (run {alert.run_id})",
        "description": alert.text,
        "what_to_do": alert.advice,
        "url": url,
    }
    return {name: value for name, value in found.items() if value}


class OpenAlerts:
    """What one receiver is to know: all that is open, and what was until a moment ago.

    Args:
        name: of the receiver.
        incidents_now: asks for incidents as they are now.
    """

    def __init__(self, redis: Redis, name: str, incidents_now: IncidentsNow | None) -> None:
        self._redis = redis
        self._key = f"sb:alerting:open:{name}"
        self._incidents_now = incidents_now
        self._changing = asyncio.Lock()

    async def take(self, notice: Notice, now: float) -> list[OpenAlert]:
        """Note what a notice changes and return the alerts that the receiver has to be told.

        Raises:
            TooMany: it opened, and no further one is kept.
        """
        alert = notice.alert
        async with self._changing:
            known = await self._of_incident(alert.incident_id)
            ended = [replace(one, ends=now) for one in known if one.ends is None]
            if notice.change == "resolved":
                changed = ended
            else:
                if not known and await self._redis.hlen(self._key) >= MAX_ALERTS:
                    raise TooMany
                # The labels of the first notice stay: a node that is named later would make another alert.
                labels = {**(known[0].labels if known else labels_of(alert)), "severity": alert.severity}
                starts = min(alert.opened or now, now)
                annotations = annotations_of(alert, notice.url)
                fresh = OpenAlert(alert.run_id, alert.incident_id, labels, annotations, notice.url, starts)
                changed = [one for one in ended if one.field != fresh.field] + [fresh]
            await self._write(changed)
            return changed

    async def all(self, now: float) -> list[OpenAlert]:
        """Return everything that the receiver is to know, as the incidents are now; what ended long ago goes."""
        async with self._changing:
            found: Any = await self._redis.hgetall(self._key)
            stored = [_read(data) for data in found.values()]
            kept = [one for one in stored if one.ends is None or now - one.ends < RESOLVED_KEPT_S]
            if len(kept) < len(stored):
                gone = {one.field for one in stored} - {one.field for one in kept}
                await self._redis.hdel(self._key, *gone)
            if self._incidents_now is None:
                return kept
            by_run = defaultdict(list)
            for one in kept:
                if one.ends is None:
                    by_run[one.run_id].append(one)
            changed: dict[str, OpenAlert] = {}
            for run_id, alerts in by_run.items():
                now_is = await self._incidents_now(run_id, [one.incident_id for one in alerts])
                changed |= {one.field: _as_it_is(one, data, now) for one, data in zip(alerts, now_is, strict=True)}
            await self._write(one for one in changed.values() if one.ends is not None)
            return [changed.get(one.field, one) for one in kept]

    async def _of_incident(self, incident_id: str) -> list[OpenAlert]:
        fields = [f"{incident_id}:{severity}" for severity in ("critical", "warning", "info")]
        found: Any = await self._redis.hmget(self._key, fields)
        return [_read(data) for data in found if data is not None]

    async def _write(self, alerts: Iterable[OpenAlert]) -> None:
        mapping: dict[Any, Any] = {one.field: msgspec.json.encode(one) for one in alerts}
        if mapping:
            await self._redis.hset(self._key, mapping=mapping)


def _as_it_is(one: OpenAlert, data: bytes | None, now: float) -> OpenAlert:
    """Return an open alert with the words of its incident as it is now; one whose incident is gone or over, ended."""
    try:
        alert = None if data is None else Alert.from_json(data)
    except BadAlert:
        return one
    if alert is None or not alert.is_open:
        return replace(one, ends=now)
    return replace(one, annotations=annotations_of(alert, one.url))


def _read(data: bytes) -> OpenAlert:
    return msgspec.json.decode(data, type=OpenAlert)  # a field of a newer version is passed over
