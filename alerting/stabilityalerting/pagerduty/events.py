"""What is posted to PagerDuty's Events API v2, within its limits. Pure.

Source: https://developer.pagerduty.com/docs/send-alert-event and .../docs/events-api-v2-overview
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec

from stabilityalerting.alert import Alert, Change, Notice
from stabilityalerting.server import BoardChange

#: PagerDuty's limits: characters of a summary and of a dedup_key, bytes of a whole body (512 KB).
MAX_SUMMARY_CHARS, MAX_KEY_CHARS, MAX_BODY_BYTES = 1_024, 255, 512_000
#: Characters of a detail where the whole would be too long.
SHORT_CHARS = 1_000

_ACTIONS: dict[Change, str] = {"acknowledged": "acknowledge", "resolved": "resolve"}

__all__ = [
    "MAX_BODY_BYTES",
    "MAX_KEY_CHARS",
    "MAX_SUMMARY_CHARS",
    "alert_event",
    "change_event",
    "dedup_key",
    "summary",
]


def dedup_key(incident_id: str) -> str:
    """Return by what PagerDuty knows an incident: its id, or what stands for one that is too long."""
    if len(incident_id) <= MAX_KEY_CHARS:
        return incident_id
    return hashlib.sha256(incident_id.encode()).hexdigest()


def summary(notice: Notice) -> str:
    """Return what becomes the title of PagerDuty's incident where this opens one."""
    return f"{notice.line} (run {notice.alert.run_id}): {notice.alert.text}"[:MAX_SUMMARY_CHARS]


def alert_event(notice: Notice, routing_key: str) -> bytes:
    """Return the body that triggers, acknowledges or resolves the alert of an incident.

    An escalation, the summary of a storm behind an incident, and that it is left to people, is a trigger with the same
    key: PagerDuty adds it to the open alert and pages nobody anew. Where a service notifies by severity, a higher one
    raises the incident's urgency (https://support.pagerduty.com/main/docs/dynamic-notifications).
    """
    alert = notice.alert
    event: dict[str, Any] = {"routing_key": routing_key, "dedup_key": dedup_key(alert.incident_id)}
    action = _ACTIONS.get(notice.change)
    if action is not None:
        return msgspec.json.encode({**event, "event_action": action})
    details = {name: value for name, value in msgspec.to_builtins(alert).items() if value not in (None, "")}
    event |= {
        "event_action": "trigger",
        "client": "Stabilityboard",
        "client_url": notice.url,
        "links": [
            {"href": notice.url, "text": f"Incident of run {alert.run_id}"},
            {"href": _run_url(notice, alert), "text": f"Run {alert.run_id}"},
        ],
        "payload": {
            "summary": summary(notice),
            "source": alert.node or alert.run_id,
            "severity": notice.severity,
            "component": alert.run_id,
            "class": alert.kind,
            "custom_details": details | ({"why": notice.why} if notice.why else {}),
        },
    }
    if alert.project:
        event["payload"]["group"] = alert.project
    if alert.opened > 0:
        event["payload"]["timestamp"] = _iso(alert.opened)
    body = msgspec.json.encode(event)
    if len(body) > MAX_BODY_BYTES:
        # A verdict names every suspect of a job of any size: the page has them all.
        event["payload"]["custom_details"] = {
            name: value[:SHORT_CHARS] if isinstance(value, str) else value
            for name, value in details.items()
            if not isinstance(value, dict | list)
        } | {"left_out": "the verdict is too long for PagerDuty: see the incident's page"}
        body = msgspec.json.encode(event)
    return body


def change_event(change: BoardChange, routing_key: str, base_url: str) -> bytes:
    """Return the body that puts a change on the timeline of PagerDuty's service; it pages nobody."""
    base = base_url.rstrip("/")
    where, text = (f"{base}/runs/{quote(change.run_id, safe='')}", f"Run {change.run_id}")
    if not change.run_id:
        where, text = f"{base}/alerting", "Alerting"
    details = {name: value[:SHORT_CHARS] for name, value in change.details.items() if value}
    return msgspec.json.encode(
        {
            "routing_key": routing_key,
            "payload": {
                "summary": change.summary[:MAX_SUMMARY_CHARS],
                "source": change.run_id or "Stabilityboard",
                "timestamp": _iso(change.time),
                "custom_details": details,
            },
            "links": [{"href": where, "text": text}],
        }
    )


def _run_url(notice: Notice, alert: Alert) -> str:
    return notice.url.removesuffix(f"/incidents/{quote(alert.incident_id, safe='')}")


def _iso(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat()
