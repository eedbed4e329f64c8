"""Prometheus' Alertmanager as a receiver: it is told again and again what is open, and of a watchdog that never stops.

Alertmanager keeps alerts in memory and ends each at its ``endsAt``: whoever sends alerts sends them again before that.
So a restart of it, or of us, is mended by the next round, and nothing is resolved because one of both was away.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
from redis.exceptions import RedisError

from .alert import Notice, Severity
from .errors import AlertingSettingsError, SendError
from .lease import pause
from .open_alerts import OpenAlert, OpenAlerts, TooMany
from .outcomes import WATCHDOG
from .sink import HTTP_TIMEOUT_S, MAX_ANSWER_CHARS, BeforeWrite, Sink, redact
from .surroundings import Surroundings
from .variables import EVERY_S, Variables

#: An open alert ends by itself so long after the last round, seconds: time to restart the server, or to mend a network.
HOLDS_S = 240.0
#: The watchdog ends so many rounds after the last one: one may be missed, and is tried again within seconds.
WATCHDOG_ROUNDS = 2
#: Alerts in one request.
BATCH = 200
#: A clock that differs by less is taken to be right, seconds: an answer's date has whole seconds, and takes its time.
MAX_SKEW_S = 5.0
#: Pause after each request, seconds: of a storm many go together.
GATHER_S = 0.2
#: Pauses after a failed request, doubled from the first to the longest, seconds: Alertmanager restarts in less.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 15.0
#: The same trouble is logged at most once in so many seconds.
LOG_EVERY_S = 60.0

__all__ = ["AlertmanagerSink"]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Target:
    """One Alertmanager, of a pair that shares its state both.

    Attributes:
        name: as people see it. date: of its last answer. round_at: when the next round is due, monotonic seconds.
        fresh: alerts that changed since the last request. news: set with them.
        ahead_s: how far its clock is ahead of ours, seconds: by its own clock it ends alerts.
    """

    name: str
    url: str = field(repr=False)
    round_at: float = 0.0
    fresh: list[OpenAlert] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    ahead_s: float = 0.0
    date: str = ""
    logged_at: float = float("-inf")


class AlertmanagerSink(Sink):
    """Tells one or several Alertmanagers what is open.

    A notice is taken when it is in Redis; from there each Alertmanager is told at once, and in every round until the
    incident is over. So one that is away holds up nothing, and hears everything that is still so when it is back.

    Args:
        urls: of the Alertmanagers, with the prefix of their path if they have one.
        token: bearer token. login: user name and password.
        watchdog: send an alert that fires as long as the server is well.
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
        self._headers = {"Content-Type": "application/json", "User-Agent": "stabilityalerting"}
        self.secrets = tuple(urls)
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
            self.secrets += (token,)
        elif login is not None:
            encoded = base64.b64encode(":".join(login).encode()).decode()
            self._headers["Authorization"] = f"Basic {encoded}"
            self.secrets += (encoded, login[1])
        names = [self.name] if len(urls) == 1 else [f"{self.name} {at + 1}" for at in range(len(urls))]
        self._targets = [_Target(name, f"{url}/api/v2/alerts") for name, url in zip(names, urls, strict=True)]
        self._watchdog = watchdog
        self._every_s = every_s

    @classmethod
    def from_variables(cls, variables: Variables) -> AlertmanagerSink | None:
        severity = variables.severity("STABILITY_ALERTMANAGER_MIN_SEVERITY")
        watchdog = variables.choice("STABILITY_ALERTMANAGER_WATCHDOG", ("on", "off")) == "on"
        token = variables.text("STABILITY_ALERTMANAGER_TOKEN")
        user, password = (variables.text(f"STABILITY_ALERTMANAGER_{name}") for name in ("USER", "PASSWORD"))
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
        return [target.name for target in self._targets] + ([WATCHDOG] if self._watchdog else [])

    def begin(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._alerts = OpenAlerts(surroundings.redis, self.name, surroundings.incidents_now)

    async def send(self, notice: Notice, before_write: BeforeWrite) -> None:
        await before_write()
        try:
            changed = await self._alerts.take(notice, self._around.clock())
        except TooMany:
            raise SendError(f"{self.name}: too many alerts are open", recoverable=False) from None
        for target in self._targets:
            target.fresh += changed
            target.news.set()

    async def serve(self, stop: asyncio.Event) -> None:
        async with (
            httpx.AsyncClient(timeout=HTTP_TIMEOUT_S, follow_redirects=False, headers=self._headers) as client,
            asyncio.TaskGroup() as tasks,
        ):
            for target in self._targets:
                tasks.create_task(self._serve(client, target, stop), name=f"alerting-{target.name}")

    async def _serve(self, client: httpx.AsyncClient, target: _Target, stop: asyncio.Event) -> None:
        """Send what changed at once and everything in each round; after a failure everything, soon."""
        pause_s = FIRST_PAUSE_S
        while not stop.is_set():
            if not self._around.may_send():
                target.round_at = 0.0  # what another process sent meanwhile is in Redis
                await pause(stop, 0.05)
                continue
            due_s = target.round_at - time.monotonic()
            if due_s > 0 and not target.fresh:
                await _first_of(stop, target.news, due_s)
                continue
            try:
                await self._tell(client, target, whole=due_s <= 0)
            except (SendError, RedisError, OSError) as error:
                await self._note_trouble(target, error)
                target.round_at = 0.0
                await pause(stop, pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                pause_s = FIRST_PAUSE_S
                await pause(stop, GATHER_S)

    async def _tell(self, client: httpx.AsyncClient, target: _Target, *, whole: bool) -> None:
        began = time.monotonic()
        alerts, target.fresh = target.fresh, []
        target.news.clear()
        now = self._around.clock()
        if whole:
            alerts = await self._alerts.all(now)
        payload = [_alert(one, now, target.ahead_s) for one in alerts]
        watchdog = whole and self._watchdog and self._around.trouble is not None and not self._around.trouble()
        if watchdog:
            payload.append(_watchdog(self._around.base_url, now + target.ahead_s, WATCHDOG_ROUNDS * self._every_s))
        for at in range(0, len(payload), BATCH):
            await self._post(client, target, payload[at : at + BATCH])
        if alerts:
            await self._around.outcomes.accepted(target.name)
        if watchdog:
            await self._around.outcomes.accepted(WATCHDOG)
        if whole:
            target.round_at = began + self._every_s
        self._read_clock(target)

    async def _post(self, client: httpx.AsyncClient, target: _Target, payload: list[dict[str, Any]]) -> None:
        try:
            answer = await client.post(target.url, content=msgspec.json.encode(payload))
            target.date = answer.headers.get("Date", "")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            why = redact(str(error), self.secrets)
            text = f"{target.name}: no answer ({type(error).__name__}: {why})"
            raise SendError(text, recoverable=True) from None
        if not answer.is_success:
            text = redact(answer.text[:MAX_ANSWER_CHARS], self.secrets)
            status = answer.status_code
            raise SendError(f"{target.name} answered {status}: {text}", recoverable=True, status=status)

    def _read_clock(self, target: _Target) -> None:
        """Find out how far its clock is ahead, from the date of its last answer; send all again if that is news."""
        try:
            ahead_s = parsedate_to_datetime(target.date).timestamp() - self._around.clock()
        except ValueError:
            return
        if abs(ahead_s) <= MAX_SKEW_S:
            ahead_s = 0.0
        if abs(ahead_s - target.ahead_s) > MAX_SKEW_S:
            _log.warning("the clock of %s differs from ours by %.0f s; its alerts end by its own", target.name, ahead_s)
            target.ahead_s, target.round_at = ahead_s, 0.0

    async def _note_trouble(self, target: _Target, error: Exception) -> None:
        if isinstance(error, SendError):
            await self._around.outcomes.refused(target.name, error)
        if time.monotonic() - target.logged_at >= LOG_EVERY_S:
            target.logged_at = time.monotonic()
            _log.warning("alerts to %s wait, trying again: %s", target.name, error)


def _alert(one: OpenAlert, now: float, ahead_s: float) -> dict[str, Any]:
    ends = now + HOLDS_S if one.ends is None else max(one.ends, one.starts + 1.0)  # it has to end after it starts
    return {
        "labels": one.labels,
        "annotations": one.annotations,
        "startsAt": _iso(one.starts + ahead_s),
        "endsAt": _iso(ends + ahead_s),
        "generatorURL": one.url,
    }


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
