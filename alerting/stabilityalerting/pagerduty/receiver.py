"""Pages through PagerDuty's Events API v2, and hears through its webhooks what people do there."""

from __future__ import annotations

import asyncio

from redis.exceptions import RedisError

from stabilityalerting.alert import Notice, Severity
from stabilityalerting.errors import SendError
from stabilityalerting.server import SinkContext
from stabilityalerting.sink import BeforeWrite, HttpSink, Outgoing
from stabilityalerting.variables import Variables

from .change_events import ChangeEvents
from .events import alert_event, dedup_key, summary
from .memory import Memory, Ours
from .rest_api import PAGERDUTY_API_URL, IncidentAlerts
from .webhooks import Webhooks

PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"

__all__ = ["PAGERDUTY_URL", "PagerDutySink"]


class PagerDutySink(HttpSink):
    """Triggers, acknowledges and resolves one PagerDuty alert per incident.

    The incident's id is the ``dedup_key``: the same trigger twice is one alert, so a message whose fate a crash left
    open is sent again. An escalation is a trigger with the same key and the higher severity.

    Args:
        routing_key: the integration key of the service, a secret.
        url: where to post; another address is for tests and for the EU region.
        webhook_secrets: of subscriptions that post to ``POST /api/v1/pagerduty``; none: nothing is taken from there.
        look_up: asks which alerts an incident of PagerDuty has; None: only its ``incident_key`` says it.
        changes: rollbacks, restarts and changed settings are put on the service's timeline.

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
        #: Checks and takes what PagerDuty posts; None without a secret.
        self.webhooks: Webhooks | None = None

    @classmethod
    def from_variables(cls, variables: Variables) -> PagerDutySink | None:
        severity = variables.severity("STABILITY_PAGERDUTY_MIN_SEVERITY", "warning")
        url = variables.url("STABILITY_PAGERDUTY_URL") or PAGERDUTY_URL
        api_url = variables.url("STABILITY_PAGERDUTY_API_URL") or PAGERDUTY_API_URL
        changes = variables.choice("STABILITY_PAGERDUTY_CHANGES", ("on", "off")) == "on"
        key, token = variables.text("STABILITY_PAGERDUTY_ROUTING_KEY"), variables.text("STABILITY_PAGERDUTY_API_TOKEN")
        secret = variables.text("STABILITY_PAGERDUTY_WEBHOOK_SECRET")
        if key is None:
            variables.need_nothing(
                "STABILITY_PAGERDUTY_ROUTING_KEY",
                ["STABILITY_PAGERDUTY_WEBHOOK_SECRET", "STABILITY_PAGERDUTY_API_TOKEN"],
            )
            return None
        secrets = tuple(one.strip() for one in (secret or "").split(",") if one.strip())
        look_up = None if token is None else IncidentAlerts(token, api_url)
        return cls(key, url, severity, webhook_secrets=secrets, look_up=look_up, changes=changes)

    def begin(self, context: SinkContext) -> None:
        self._memory = Memory(context.redis, self.name)
        if self._webhook_secrets and context.server.actions is not None:
            self.webhooks = Webhooks(
                self._webhook_secrets, self._memory, context.server.actions, context.server.clock, self._look_up
            )
        if self._sends_changes and context.server.changes_since is not None:
            self._changes = ChangeEvents(self.post, self._memory, context, self._url, self._routing_key)

    def outgoing(self, notice: Notice) -> Outgoing:
        return Outgoing(self._url, alert_event(notice, self._routing_key))

    async def knows(self, notice: Notice) -> bool:
        """Return whether PagerDuty said it itself, or somebody resolved it there: a summary would be a new page."""
        alert, memory = notice.alert, self._memory
        if memory is None or notice.change not in ("acknowledged", "grouped"):
            return False
        if notice.change == "grouped":
            return await memory.is_resolved(alert.incident_id)
        return bool(alert.acknowledged_by) and alert.acknowledged_by == await memory.acknowledged_by(alert.incident_id)

    async def send(self, notice: Notice, before_write: BeforeWrite) -> None:
        if self._memory is not None and notice.change in ("opened", "escalated"):
            ours = Ours(notice.alert.run_id, notice.alert.incident_id)
            try:
                await self._memory.triggered(dedup_key(ours.incident_id), summary(notice), ours)
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
