"""Pages through PagerDuty's Events API v2."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from .alert import Notice, Severity
from .sink import HttpSink, Outgoing
from .variables import Variables

PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"
#: PagerDuty's limit for a summary, characters.
MAX_SUMMARY_CHARS = 1_024

_ACTIONS = {"acknowledged": "acknowledge", "resolved": "resolve"}

__all__ = ["PAGERDUTY_URL", "PagerDutySink"]


class PagerDutySink(HttpSink):
    """Triggers, acknowledges and resolves one PagerDuty alert per incident.

    The incident's id is the ``dedup_key``: the same trigger twice is one alert, so a message whose fate a crash left
    open is sent again. An escalation is a trigger with the same key and the higher severity.

    Args:
        routing_key: the integration key of the service, a secret.
        url: where to post; another address is for tests and for the EU region.

    Source: https://developer.pagerduty.com/docs/send-alert-event
    """

    name = "pagerduty"
    idempotent = True
    acknowledges = True

    def __init__(self, routing_key: str, url: str = PAGERDUTY_URL, min_severity: Severity = "warning") -> None:
        super().__init__(min_severity, [routing_key])
        self._routing_key = routing_key
        self._url = url

    @classmethod
    def from_variables(cls, variables: Variables) -> PagerDutySink | None:
        severity = variables.severity("STABILITY_PAGERDUTY_MIN_SEVERITY", "warning")
        url = variables.url("STABILITY_PAGERDUTY_URL") or PAGERDUTY_URL
        key = variables.text("STABILITY_PAGERDUTY_ROUTING_KEY")
        return None if key is None else cls(key, url, severity)

    def outgoing(self, notice: Notice) -> Outgoing:
        return Outgoing(self._url, json.dumps(self._event(notice)).encode())

    def _event(self, notice: Notice) -> dict[str, Any]:
        alert = notice.alert
        event: dict[str, Any] = {"routing_key": self._routing_key, "dedup_key": alert.incident_id}
        if notice.change in ("acknowledged", "resolved"):
            return {**event, "event_action": _ACTIONS[notice.change]}
        return {
            **event,
            "event_action": "trigger",
            "client": "Stabilityboard",
            "client_url": notice.url,
            "links": [{"href": notice.url, "text": f"Incident of run {alert.run_id}"}],
            "payload": {
                "summary": f"{notice.line} (run {alert.run_id}): {alert.text}"[:MAX_SUMMARY_CHARS],
                "source": alert.node or alert.run_id,
                "severity": alert.severity,
                "timestamp": datetime.fromtimestamp(alert.opened, UTC).isoformat(),
                "component": alert.run_id,
                "class": alert.kind,
                "custom_details": asdict(alert),
            },
        }
