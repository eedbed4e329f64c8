"""Alerts and changes to PagerDuty's Events API v2, within its limits.

Source: https://developer.pagerduty.com/docs/events-api-v2-overview
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec
from redis.exceptions import RedisError

from stabilityalerting.alert import Change, Notice, Severity
from stabilityalerting.errors import SendError
from stabilityalerting.lease import pause
from stabilityalerting.server import BoardChange, SinkContext
from stabilityalerting.sink import BeforeWrite, HttpSink, Outgoing
from stabilityalerting.variables import Variables
from stabilityplugins.pagerduty.memory import MAX_SUMMARY_CHARS, Memory, OwnIncident, dedup_key
from stabilityplugins.pagerduty.webhooks import PAGERDUTY_API_URL, IncidentAlerts, Webhooks

PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"
#: PagerDuty's limit of a whole body, bytes (512 KB).
MAX_BODY_BYTES = 512_000
#: Characters of a detail where the whole would be too long.
SHORT_CHARS = 1_000
#: The streams of changes are read so often, seconds.
EVERY_S = 5.0
#: Pause after each change, seconds: PagerDuty takes some 120 events a minute by one key, alerts included.
BETWEEN_S = 2.0
#: A change is tried for so long, seconds, 1 s to 60 s apart; then the next one gets its turn.
GIVE_UP_S = 600.0
LONGEST_PAUSE_S = 60.0

_ACTIONS: dict[Change, str] = {"acknowledged": "acknowledge", "resolved": "resolve"}

__all__ = ["MAX_BODY_BYTES", "PAGERDUTY_URL", "ChangeEvents", "PagerDutySink", "alert_event", "change_event"]

_log = logging.getLogger(__name__)


class PagerDutySink(HttpSink):
    """Triggers, acknowledges and resolves one PagerDuty alert per incident.

    The incident's id is the ``dedup_key``: the same trigger twice is one alert, so a message whose fate a crash left
    open is sent again. An escalation is a trigger with the same key and the higher severity.

    Args:
        routing_key: the integration key of the service, a secret.
        url: where to post; another address is for tests and for the EU region.
        webhook_secrets: of subscriptions that post to ``POST /api/v1/pagerduty``; without any none is accepted.
        look_up: asks for the alerts of an incident of PagerDuty; None: its ``incident_key`` alone names them.
        changes: put rollbacks, restarts and changed settings on the service's timeline.

    Attributes:
        webhooks: checks and applies webhooks; None without a secret.

    Source: https://developer.pagerduty.com/docs/send-alert-event
    """

    name = "pagerduty"
    idempotent = True
    acknowledges = True

    def __init__(
        self,
        routing_key: str,
        url: str = PAGERDUTY_URL,
        min_severity: Severity = "warning",
        *,
        webhook_secrets: tuple[str, ...] = (),
        look_up: IncidentAlerts | None = None,
        changes: bool = True,
    ) -> None:
        super().__init__(min_severity, [routing_key, *webhook_secrets, *([look_up.secret] if look_up else [])])
        self._routing_key = routing_key
        self._url = url
        self._webhook_secrets = webhook_secrets
        self._look_up = look_up
        self._sends_changes = changes
        self._memory: Memory | None = None
        self._changes: ChangeEvents | None = None
        self.webhooks: Webhooks | None = None

    @classmethod
    def from_variables(cls, variables: Variables) -> PagerDutySink | None:
        severity = variables.severity("STABILITY_PAGERDUTY_MIN_SEVERITY", "warning")
        url = variables.url("STABILITY_PAGERDUTY_URL") or PAGERDUTY_URL
        api_url = variables.url("STABILITY_PAGERDUTY_API_URL") or PAGERDUTY_API_URL
        changes = variables.choice("STABILITY_PAGERDUTY_CHANGES", ("on", "off")) == "on"
        key = variables.text("STABILITY_PAGERDUTY_ROUTING_KEY")
        if key is None:
            variables.need_nothing(
                "STABILITY_PAGERDUTY_ROUTING_KEY",
                ["STABILITY_PAGERDUTY_WEBHOOK_SECRET", "STABILITY_PAGERDUTY_API_TOKEN"],
            )
            return None
        token = variables.text("STABILITY_PAGERDUTY_API_TOKEN")
        secret = variables.text("STABILITY_PAGERDUTY_WEBHOOK_SECRET") or ""
        secrets = tuple(one.strip() for one in secret.split(",") if one.strip())
        look_up = None if token is None else IncidentAlerts(token, api_url)
        return cls(key, url, severity, webhook_secrets=secrets, look_up=look_up, changes=changes)

    def begin(self, context: SinkContext) -> None:
        server = context.server
        self._memory = Memory(context.redis, self.name)
        if self._webhook_secrets and server.actions is not None:
            self.webhooks = Webhooks(self._webhook_secrets, self._memory, server.actions, server.clock, self._look_up)
        if self._sends_changes and server.changes_since is not None:
            self._changes = ChangeEvents(self.post, self._memory, context, self._url, self._routing_key)

    def outgoing(self, notice: Notice) -> Outgoing:
        return Outgoing(self._url, alert_event(notice, self._routing_key))

    async def knows(self, notice: Notice) -> bool:
        """Return whether PagerDuty sent an acknowledgement, or it was resolved there: a summary would page."""
        alert = notice.alert
        if self._memory is None or notice.change not in ("acknowledged", "grouped"):
            return False
        if notice.change == "grouped":
            return await self._memory.is_resolved(alert.incident_id)
        by = await self._memory.acknowledged_by(alert.incident_id)
        return bool(alert.acknowledged_by) and alert.acknowledged_by == by

    async def send(self, notice: Notice, before_write: BeforeWrite) -> None:
        if self._memory is not None and notice.change in ("opened", "escalated"):
            own = OwnIncident(notice.alert.run_id, notice.alert.incident_id)
            try:
                await self._memory.triggered(dedup_key(own.incident_id), _summary(notice), own)
            except (RedisError, OSError) as error:
                raise SendError(f"{self.name}: Redis is away ({type(error).__name__})", recoverable=True) from None
        await super().send(notice, before_write)

    async def serve(self, stop: asyncio.Event) -> None:
        if self._changes is not None:
            await self._changes.run(stop)

    async def aclose(self) -> None:
        await super().aclose()
        if self._look_up is not None:
            await self._look_up.aclose()


class ChangeEvents:
    """Puts changes of users on the timeline of PagerDuty's service, as context of an incident. Pages no one.

    Each change is sent at most once, since PagerDuty has no key for it: the mark in Redis is written at the last moment
    before its body leaves.

    Args:
        post: sends one request; raises SendError.
        url: of the alert events; changes have another path there.

    Source: https://developer.pagerduty.com/docs/send-change-events
    """

    def __init__(
        self,
        post: Callable[[Outgoing, BeforeWrite], Awaitable[None]],
        memory: Memory,
        context: SinkContext,
        url: str,
        routing_key: str,
    ) -> None:
        self._post = post
        self._memory = memory
        self._context = context
        self._url = f"{url.rstrip('/').removesuffix('/enqueue')}/change/enqueue"
        self._routing_key = routing_key

    async def run(self, stop: asyncio.Event) -> None:
        """Send changes until ``stop`` is set."""
        if self._routing_key.startswith("R"):
            # https://developer.pagerduty.com/docs/events-api-v2-overview: such a key is one of a ruleset.
            _log.info("pagerduty: the key is one of a ruleset, which takes no change events; none is sent")
            return
        while not stop.is_set():
            if self._context.may_send():
                try:
                    await self._once(stop)
                except (RedisError, OSError) as error:
                    _log.debug("pagerduty: changes wait, Redis is away: %s", error)
                except Exception:
                    _log.exception("pagerduty: changes are not sent for a while")
                    await pause(stop, LONGEST_PAUSE_S)
            await pause(stop, EVERY_S)

    async def _once(self, stop: asyncio.Event) -> None:
        assert self._context.server.changes_since is not None
        changes, cursors = await self._context.server.changes_since(await self._memory.cursors())
        for change in changes:
            if not await self._memory.was_sent(change.key):
                await self._send(change, stop)
            if stop.is_set() or not self._context.may_send():
                return  # the next process reads them again, and finds the marks
        await self._memory.read_to(cursors)

    async def _send(self, change: BoardChange, stop: asyncio.Event) -> None:
        outgoing = Outgoing(self._url, change_event(change, self._routing_key, self._context.server.base_url))
        began = time.monotonic()
        pause_s = 1.0
        while self._context.may_send() and not stop.is_set():
            try:
                await self._post(outgoing, lambda: self._memory.sending(change.key))
            except SendError as error:
                if not error.recoverable or time.monotonic() - began >= GIVE_UP_S:
                    _log.warning("pagerduty: a change is left out: %s", error)
                    return
                await pause(stop, min(max(pause_s, error.retry_after_s or 0.0), LONGEST_PAUSE_S))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                await pause(stop, BETWEEN_S)
                return


def alert_event(notice: Notice, routing_key: str) -> bytes:
    """Return the body that triggers, acknowledges or resolves the alert of an incident.

    An escalation, the summary of a storm behind an incident, and a handover are triggers with the same key:
    PagerDuty adds them to the open alert and pages no one anew. Where a service notifies by severity, a higher one
    raises the incident's urgency (https://support.pagerduty.com/main/docs/dynamic-notifications).
    """
    alert = notice.alert
    event: dict[str, Any] = {"routing_key": routing_key, "dedup_key": dedup_key(alert.incident_id)}
    action = _ACTIONS.get(notice.change)
    if action is not None:
        return msgspec.json.encode({**event, "event_action": action})
    run_url = notice.url.removesuffix(f"/incidents/{quote(alert.incident_id, safe='')}")
    details = {name: value for name, value in msgspec.to_builtins(alert).items() if value not in (None, "")}
    payload = {
        "summary": _summary(notice),
        "source": alert.node or alert.run_id,
        "severity": notice.severity,
        "component": alert.run_id,
        "class": alert.kind,
        "custom_details": details | ({"why": notice.why} if notice.why else {}),
    }
    if alert.project:
        payload["group"] = alert.project
    if alert.opened > 0:
        payload["timestamp"] = _iso(alert.opened)
    event |= {
        "event_action": "trigger",
        "client": "Stabilityboard",
        "client_url": notice.url,
        "links": [
            {"href": notice.url, "text": f"Incident of run {alert.run_id}"},
            {"href": run_url, "text": f"Run {alert.run_id}"},
        ],
        "payload": payload,
    }
    body = msgspec.json.encode(event)
    if len(body) > MAX_BODY_BYTES:
        # A verdict names every suspect of a job of any size: the page has them all.
        payload["custom_details"] = {
            name: value[:SHORT_CHARS] if isinstance(value, str) else value
            for name, value in details.items()
            if not isinstance(value, dict | list)
        } | {"left_out": "the verdict is too long for PagerDuty: see the incident's page"}
        body = msgspec.json.encode(event)
    return body


def change_event(change: BoardChange, routing_key: str, base_url: str) -> bytes:
    """Return the body that puts a change on the timeline of PagerDuty's service."""
    path = f"/runs/{quote(change.run_id, safe='')}" if change.run_id else "/alerting"
    text = f"Run {change.run_id}" if change.run_id else "Alerting"
    return msgspec.json.encode(
        {
            "routing_key": routing_key,
            "payload": {
                "summary": change.summary[:MAX_SUMMARY_CHARS],
                "source": change.run_id or "Stabilityboard",
                "timestamp": _iso(change.time),
                "custom_details": {name: value[:SHORT_CHARS] for name, value in change.details.items() if value},
            },
            "links": [{"href": f"{base_url.rstrip('/')}{path}", "text": text}],
        }
    )


def _summary(notice: Notice) -> str:
    """Return the title of PagerDuty's incident where this opens one."""
    return f"{notice.line} (run {notice.alert.run_id}): {notice.alert.text}"[:MAX_SUMMARY_CHARS]


def _iso(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat()
