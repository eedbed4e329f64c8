"""Prometheus' Alertmanager as a receiver: regular rounds of all open alerts, and a watchdog that always fires.

Alertmanager keeps alerts in memory and ends each at its ``endsAt``; a client repeats them before that. So the next
round mends a restart of either side, and no outage of one resolves an alert.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from .alert import Alert, Notice, Severity
from .errors import AlertingSettingsError, BadAlert, SendError
from .lease import pause
from .outcomes import WATCHDOG
from .server import IncidentsNow, SinkContext
from .sink import HTTP_TIMEOUT_S, MAX_ANSWER_CHARS, BeforeWrite, Sink, redact
from .variables import EVERY_S, Variables

#: An open alert ends by itself so long after the last round, seconds: time for a restart of the server.
HOLDS_S = 240.0
#: The watchdog ends so many rounds after the last one: one may be missed.
WATCHDOG_ROUNDS = 2
#: A resolved alert is repeated for so long, seconds, as by Prometheus: an Alertmanager that was away gets it too.
RESOLVED_KEPT_S = 900.0
#: Alerts of one receiver, some KiB each; further ones are refused.
MAX_ALERTS = 10_000
#: Alerts in one request.
BATCH = 200
#: Clocks that differ by less count as equal, seconds: an answer's date has whole seconds, and takes its time.
MAX_SKEW_S = 5.0
#: Pause after each request, seconds, to batch the alerts of a storm.
GATHER_S = 0.2
#: Pauses after a failed request, doubled from the first to the longest, seconds: Alertmanager restarts in less.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 15.0
#: The same problem is logged at most once in so many seconds.
LOG_EVERY_S = 60.0

__all__ = ["AlertmanagerSink"]

_log = logging.getLogger(__name__)


class TooMany(Exception):
    """The limit of stored alerts is reached."""


@dataclass(frozen=True, slots=True)
class OpenAlert:
    """One alert as the receiver knows it.

    Args:
        labels: its identity: another value makes another alert.
        annotations: for display.
        url: page of the incident.
        starts: opening of the incident. ends: its end, None while it is open; unix seconds.
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

    def as_json(self, now: float, ahead_s: float) -> dict[str, Any]:
        """Return it in Alertmanager's format. ``ahead_s``: of the receiver's clock."""
        ends = (
            now + HOLDS_S if self.ends is None else max(self.ends, self.starts + 1.0)
        )  # it has to end after it starts
        return {
            "labels": self.labels,
            "annotations": self.annotations,
            "startsAt": _iso(self.starts + ahead_s),
            "endsAt": _iso(ends + ahead_s),
            "generatorURL": self.url,
        }


class OpenAlerts:
    """All open alerts of one receiver and those resolved a moment ago, in Redis, so that a crash loses none.

    Args:
        name: of the receiver.
        incidents_now: current states of incidents.
    """

    def __init__(self, redis: Redis, name: str, incidents_now: IncidentsNow | None) -> None:
        self._redis = redis
        self._key = f"sb:alerting:open:{name}"
        self._incidents_now = incidents_now
        self._changing = asyncio.Lock()

    async def take(self, notice: Notice, now: float) -> list[OpenAlert]:
        """Store the changes of a notice and return the alerts to send.

        Raises:
            TooMany: an opened one, beyond the limit.
        """
        alert = notice.alert
        async with self._changing:
            stored = await self._of_incident(alert.incident_id)
            ended = [replace(one, ends=now) for one in stored if one.ends is None]
            if notice.change == "resolved":
                changed = ended
            else:
                if not stored and await self._redis.hlen(self._key) >= MAX_ALERTS:
                    raise TooMany
                # The labels of the first notice stay: a node that is named later would make another alert.
                labels = {**(stored[0].labels if stored else _labels(alert)), "severity": alert.severity}
                starts = min(alert.opened or now, now)
                annotations = _annotations(alert, notice.url)
                fresh = OpenAlert(alert.run_id, alert.incident_id, labels, annotations, notice.url, starts)
                changed = [one for one in ended if one.field != fresh.field] + [fresh]
            await self._write(changed)
            return changed

    async def all(self, now: float) -> list[OpenAlert]:
        """Return all alerts in the current states of their incidents; drop those that ended long ago."""
        async with self._changing:
            found: Any = await self._redis.hgetall(self._key)
            stored = [_read(data) for data in found.values()]
            current = [one for one in stored if one.ends is None or now - one.ends < RESOLVED_KEPT_S]
            if len(current) < len(stored):
                gone = {one.field for one in stored} - {one.field for one in current}
                await self._redis.hdel(self._key, *gone)
            if self._incidents_now is None:
                return current
            by_run = defaultdict(list)
            for one in current:
                if one.ends is None:
                    by_run[one.run_id].append(one)
            changed: dict[str, OpenAlert] = {}
            for run_id, alerts in by_run.items():
                states = await self._incidents_now(run_id, [one.incident_id for one in alerts])
                changed |= {one.field: _updated(one, data, now) for one, data in zip(alerts, states, strict=True)}
            await self._write(one for one in changed.values() if one.ends is not None)
            return [changed.get(one.field, one) for one in current]

    async def _of_incident(self, incident_id: str) -> list[OpenAlert]:
        fields = [f"{incident_id}:{severity}" for severity in ("critical", "warning", "info")]
        found: Any = await self._redis.hmget(self._key, fields)
        return [_read(data) for data in found if data is not None]

    async def _write(self, alerts: Iterable[OpenAlert]) -> None:
        mapping: dict[Any, Any] = {one.field: msgspec.json.encode(one) for one in alerts}
        if mapping:
            await self._redis.hset(self._key, mapping=mapping)


class _Target:
    """One Alertmanager, of a pair that shares its state both.

    Args:
        name: for display.
        every_s: seconds between two rounds.
        watchdog: send an alert that fires while the server is healthy.
        secrets: hidden in errors.
    """

    def __init__(
        self,
        name: str,
        url: str,
        alerts: OpenAlerts,
        context: SinkContext,
        *,
        every_s: float,
        watchdog: bool,
        secrets: Sequence[str],
    ) -> None:
        self.name = name
        self._url = f"{url}/api/v2/alerts"
        self._alerts = alerts
        self._context = context
        self._server = context.server
        self._every_s = every_s
        self._watchdog = watchdog
        self._secrets = secrets
        #: Alerts that changed since the last request.
        self._fresh: list[OpenAlert] = []
        self._news = asyncio.Event()
        #: Time of the next round, monotonic seconds.
        self._round_at = 0.0
        #: Lead of its clock over the own one, seconds: by its own clock it ends alerts.
        self._ahead_s = 0.0
        self._logged_at = float("-inf")

    def changed(self, alerts: Iterable[OpenAlert]) -> None:
        """Send these alerts with the next request."""
        self._fresh += alerts
        self._news.set()

    async def serve(self, client: httpx.AsyncClient, stop: asyncio.Event) -> None:
        """Send changes without delay and everything in each round; after a failure everything, soon."""
        pause_s = FIRST_PAUSE_S
        while not stop.is_set():
            if not self._context.may_send():
                self._round_at = 0.0  # another process may change the alerts in Redis
                await pause(stop, 0.05)
                continue
            due_s = self._round_at - time.monotonic()
            if due_s > 0 and not self._fresh:
                await _first_of(stop, self._news, due_s)
                continue
            try:
                await self._send(client, whole=due_s <= 0)
            except (SendError, RedisError, OSError) as error:
                await self._note(error)
                self._round_at = 0.0
                await pause(stop, pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                pause_s = FIRST_PAUSE_S
                await pause(stop, GATHER_S)

    async def _send(self, client: httpx.AsyncClient, *, whole: bool) -> None:
        began = time.monotonic()
        alerts = self._fresh
        self._fresh = []
        self._news.clear()
        now = self._server.clock()
        if whole:
            alerts = await self._alerts.all(now)
        payload = [one.as_json(now, self._ahead_s) for one in alerts]
        watchdog = whole and self._watchdog and self._server.problem is not None and not self._server.problem()
        if watchdog:
            payload.append(_watchdog(self._server.base_url, now + self._ahead_s, WATCHDOG_ROUNDS * self._every_s))
        date = ""
        for at in range(0, len(payload), BATCH):
            date = await self._post(client, payload[at : at + BATCH])
        if alerts:
            await self._context.outcomes.accepted(self.name)
        if watchdog:
            await self._context.outcomes.accepted(WATCHDOG)
        if whole:
            self._round_at = began + self._every_s
        self._read_clock(date)

    async def _post(self, client: httpx.AsyncClient, payload: list[dict[str, Any]]) -> str:
        """Send one request and return the date of the answer. Raises SendError."""
        try:
            answer = await client.post(self._url, content=msgspec.json.encode(payload))
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            why = redact(str(error), self._secrets)
            text = f"{self.name}: no answer ({type(error).__name__}: {why})"
            raise SendError(text, recoverable=True) from None
        if not answer.is_success:
            text = redact(answer.text[:MAX_ANSWER_CHARS], self._secrets)
            status = answer.status_code
            raise SendError(f"{self.name} answered {status}: {text}", recoverable=True, status=status)
        return str(answer.headers.get("Date", ""))

    def _read_clock(self, date: str) -> None:
        """Learn the lead of its clock from the date of an answer; send everything again if it has changed."""
        try:
            ahead_s = parsedate_to_datetime(date).timestamp() - self._server.clock()
        except ValueError:
            return
        if abs(ahead_s) <= MAX_SKEW_S:
            ahead_s = 0.0
        if abs(ahead_s - self._ahead_s) > MAX_SKEW_S:
            _log.warning("the clock of %s differs from ours by %.0f s; its alerts end by its own", self.name, ahead_s)
            self._ahead_s = ahead_s
            self._round_at = 0.0

    async def _note(self, error: Exception) -> None:
        if isinstance(error, SendError):
            await self._context.outcomes.refused(self.name, error)
        if time.monotonic() - self._logged_at >= LOG_EVERY_S:
            self._logged_at = time.monotonic()
            _log.warning("alerts to %s wait, trying again: %s", self.name, error)


class AlertmanagerSink(Sink):
    """Sends all open alerts to one or several Alertmanagers.

    A notice counts as delivered once it is in Redis; from there each Alertmanager gets it without delay, and in every
    round until the incident ends. So one that is away holds up nothing, and catches up when it is back.

    Args:
        urls: of the Alertmanagers, with the prefix of their path if they have one.
        token: bearer token. login: user name and password.
        watchdog: send an alert that fires while the server is healthy.
        every_s: seconds between two rounds.

    Source: https://prometheus.io/docs/alerting/latest/clients/
    """

    name = "alertmanager"
    idempotent = True
    rate_bound = False

    def __init__(
        self,
        urls: Sequence[str],
        *,
        token: str | None = None,
        login: tuple[str, str] | None = None,
        min_severity: Severity = "info",
        watchdog: bool = True,
        every_s: float = EVERY_S,
    ) -> None:
        self.min_severity = min_severity
        self._urls = urls
        self._headers = {"Content-Type": "application/json", "User-Agent": "stabilityalerting"}
        self.secrets = tuple(urls)
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
            self.secrets += (token,)
        elif login is not None:
            encoded = base64.b64encode(":".join(login).encode()).decode()
            self._headers["Authorization"] = f"Basic {encoded}"
            self.secrets += (encoded, login[1])
        self._watchdog = watchdog
        self._every_s = every_s
        self._context: SinkContext
        self._alerts: OpenAlerts
        self._targets: list[_Target] = []

    @classmethod
    def from_variables(cls, variables: Variables) -> AlertmanagerSink | None:
        severity = variables.severity("STABILITY_ALERTMANAGER_MIN_SEVERITY")
        watchdog = variables.choice("STABILITY_ALERTMANAGER_WATCHDOG", ("on", "off")) == "on"
        token = variables.text("STABILITY_ALERTMANAGER_TOKEN")
        user = variables.text("STABILITY_ALERTMANAGER_USER")
        password = variables.text("STABILITY_ALERTMANAGER_PASSWORD")
        if token is not None and user is not None:
            raise AlertingSettingsError("STABILITY_ALERTMANAGER_TOKEN and STABILITY_ALERTMANAGER_USER are both set")
        if (user is None) != (password is None):
            raise AlertingSettingsError("set both STABILITY_ALERTMANAGER_USER and STABILITY_ALERTMANAGER_PASSWORD")
        urls = variables.urls("STABILITY_ALERTMANAGER_URL")
        login = None if user is None or password is None else (user, password)
        if not urls:
            return None
        every_s = variables.every_s()
        return cls(urls, token=token, login=login, min_severity=severity, watchdog=watchdog, every_s=every_s)

    def outcome_names(self) -> list[str]:
        return self._names() + ([WATCHDOG] if self._watchdog else [])

    def begin(self, context: SinkContext) -> None:
        self._context = context
        self._alerts = OpenAlerts(context.redis, self.name, context.server.incidents_now)
        self._targets = [
            _Target(
                name,
                url,
                self._alerts,
                context,
                every_s=self._every_s,
                watchdog=self._watchdog,
                secrets=self.secrets,
            )
            for name, url in zip(self._names(), self._urls, strict=True)
        ]

    async def send(self, notice: Notice, before_write: BeforeWrite) -> None:
        await before_write()
        try:
            changed = await self._alerts.take(notice, self._context.server.clock())
        except TooMany:
            raise SendError(f"{self.name}: too many alerts are open", recoverable=False) from None
        for target in self._targets:
            target.changed(changed)

    async def serve(self, stop: asyncio.Event) -> None:
        async with (
            httpx.AsyncClient(timeout=HTTP_TIMEOUT_S, follow_redirects=False, headers=self._headers) as client,
            asyncio.TaskGroup() as tasks,
        ):
            for target in self._targets:
                tasks.create_task(target.serve(client, stop), name=f"alerting-{target.name}")

    def _names(self) -> list[str]:
        count = len(self._urls)
        return [self.name] if count == 1 else [f"{self.name} {at}" for at in range(1, count + 1)]


def _labels(alert: Alert) -> dict[str, str]:
    """Return the labels by which Alertmanager routes, groups and silences an alert; only those that it has."""
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


def _annotations(alert: Alert, url: str) -> dict[str, str]:
    """Return the texts of an alert."""
    found = {
        "summary": f"{alert.line} (run {alert.run_id})",
        "description": alert.text,
        "what_to_do": alert.advice,
        "url": url,
    }
    return {name: value for name, value in found.items() if value}


def _updated(one: OpenAlert, data: bytes | None, now: float) -> OpenAlert:
    """Return an open alert with the current texts of its incident; ended, where that has ended or is gone."""
    try:
        alert = None if data is None else Alert.from_json(data)
    except BadAlert:
        return one
    if alert is None or not alert.is_open:
        return replace(one, ends=now)
    return replace(one, annotations=_annotations(alert, one.url))


def _read(data: bytes) -> OpenAlert:
    return msgspec.json.decode(data, type=OpenAlert)  # a field of a newer version is skipped


def _watchdog(base_url: str, now: float, holds_s: float) -> dict[str, Any]:
    parts = urlsplit(base_url)
    instance = parts.netloc + parts.path.rstrip("/")  # behind one hub each user has one
    return {
        "labels": {"alertname": "StabilityboardWatchdog", "severity": "none", "instance": instance},
        "annotations": {
            "summary": f"Stabilityboard at {instance} is well",
            "description": "Always firing. When it stops, the server, the network or Alertmanager is down.",
        },
        "startsAt": _iso(now),  # Alertmanager keeps the first one of those that overlap
        "endsAt": _iso(now + holds_s),
        "generatorURL": base_url,
    }


def _iso(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")


async def _first_of(stop: asyncio.Event, news: asyncio.Event, timeout_s: float) -> None:
    waiting: Iterable[asyncio.Task[Any]] = [asyncio.create_task(event.wait()) for event in (stop, news)]
    try:
        await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
