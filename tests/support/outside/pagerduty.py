"""PagerDuty's side of the wire: takes what its documentation says that it takes, and signs webhooks as it does.

One service, in a thread of its own, on a real port.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import re
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import httpx

from support.outside.rate_limit import RateLimit

__all__ = ["API_TOKEN", "OTHER_KEY", "PERSON", "ROUTING_KEY", "WEBHOOK_SECRET", "FakePagerDuty"]

ROUTING_KEY, OTHER_KEY = "r0uting-key-of-32-characters-xxx", "an0ther-key-of-32-characters-xxx"
WEBHOOK_SECRET, API_TOKEN = "wh-secret-of-the-subscription", "t0ken-of-the-rest-api"
_SEVERITIES = ("critical", "error", "warning", "info")
#: Who acts there.
PERSON = "Ada Lovelace"
_NOTES = ("incident.annotated",)


@dataclass
class Alert:
    """An alert of the service; ``pages``: how often somebody was paged for it."""

    key: str
    incident: str
    status: str = "triggered"
    pages: int = 1
    events: list[dict[str, Any]] = field(default_factory=list)


class FakePagerDuty:
    """Runs while the context lasts. What breaks a published rule is answered with 400, as PagerDuty does.

    Attributes:
        script: answers of the next requests instead of the right ones: status, headers, body.
        alerts: those of each routing key, oldest first. changes: change events that were taken.
        refused: what was wrong with those that were not.
    """

    def __init__(self) -> None:
        self.script: list[tuple[int, dict[str, str], bytes]] = []
        self.alerts: dict[str, list[Alert]] = {ROUTING_KEY: [], OTHER_KEY: []}
        self.changes: list[dict[str, Any]] = []
        self.refused: list[str] = []
        #: Events a minute of one key; None: any number. What is more is answered 429.
        self.limit: RateLimit | None = None
        #: Every body of an alert event that came, taken or not.
        self.events: list[dict[str, Any]] = []
        #: Incident -> keys of alerts that were merged into it.
        self.merged: dict[str, list[str]] = {}
        self._ids = itertools.count(1)
        # No TLS here: a context takes 40 ms. A server would end an idle connection.
        self._client = httpx.Client(verify=False, limits=httpx.Limits(keepalive_expiry=2.0))
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, headers, answer = fake.script.pop(0) if fake.script else fake.answer(self.path, body)
                self.reply(status, headers, answer)

            def do_GET(self) -> None:
                self.reply(*fake.look_up(self.path, dict(self.headers)))

            def reply(self, status: int, headers: dict[str, str], answer: bytes) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(answer)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="pagerduty")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def variables(self, **more: str) -> dict[str, str]:
        """Return the environment of a server that pages here."""
        return {
            "STABILITY_PAGERDUTY_ROUTING_KEY": ROUTING_KEY,
            "STABILITY_PAGERDUTY_URL": f"{self.url}/v2/enqueue",
            "STABILITY_PAGERDUTY_WEBHOOK_SECRET": WEBHOOK_SECRET,
        } | more

    def pages(self, routing_key: str = ROUTING_KEY) -> int:
        """Return how often somebody was paged."""
        return sum(alert.pages for alert in self.alerts[routing_key])

    def actions(self, key: str) -> list[str]:
        """Return what was sent of an alert."""
        return [event["event_action"] for event in self.events if event["dedup_key"] == key]

    # --- the Events API ------------------------------------------------------------------------------------------

    def answer(self, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body for a request."""
        try:
            event = json.loads(body)
        except ValueError:
            return _answer(400, status="invalid event", message="Invalid JSON", errors=["Invalid JSON"])
        if self.limit is not None and self.limit.wait_s(time.monotonic()) > 0:
            return _answer(429, status="throttle exceeded", message="Requests for this service are arriving too fast")
        change = path == "/v2/change/enqueue"
        wrong = list(_wrong(event, len(body), change=change)) if path.endswith("/enqueue") else [f"no {path}"]
        if not wrong and event["routing_key"] not in self.alerts:
            wrong = ["Invalid routing key"]
        if not change:
            self.events.append(event)
        if wrong:
            self.refused += wrong
            return _answer(400, status="invalid event", message="Event object is invalid", errors=wrong)
        if change:
            self.changes.append(event)
            return _answer(202, status="success", message="Change event processed")
        self._take(event)
        return _answer(202, status="success", message="Event processed", dedup_key=event["dedup_key"])

    def _take(self, event: dict[str, Any]) -> None:
        alerts = self.alerts[event["routing_key"]]
        alert = next((one for one in alerts if one.key == event["dedup_key"] and one.status != "resolved"), None)
        if event["event_action"] == "trigger":
            if alert is None:
                alert = Alert(event["dedup_key"], f"P{next(self._ids):06}")
                alerts.append(alert)
        elif alert is None:
            return  # dropped
        else:
            alert.status = {"acknowledge": "acknowledged", "resolve": "resolved"}[event["event_action"]]
        alert.events.append(event)

    # --- the REST API --------------------------------------------------------------------------------------------

    def look_up(self, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Return the answer to GET /incidents/{id}/alerts."""
        if headers.get("Authorization") != f"Token token={API_TOKEN}":
            return _answer(401, error={"message": "Unauthorized", "code": 2006})
        found = re.fullmatch(r"/incidents/(\w+)/alerts\?limit=100", path)
        incident = found[1] if found else ""
        every = [alert for alerts in self.alerts.values() for alert in alerts]
        keys = self.merged.get(incident) or [alert.key for alert in every if alert.incident == incident]
        if not keys:
            return _answer(404, error={"message": "Not Found", "code": 2100})
        alerts = [{"id": f"A{at}", "type": "alert", "alert_key": key} for at, key in enumerate(keys)]
        return _answer(200, alerts=alerts, limit=100, offset=0, more=False)

    # --- webhooks ------------------------------------------------------------------------------------------------

    def webhook(
        self, event_type: str, alert: Alert, *, key: str | None = None, incident: str | None = None, **changes: Any
    ) -> bytes:
        """Return the body of a webhook; ``key``: its ``incident_key``. ``changes``: of the event."""
        there = {
            "id": incident or alert.incident, "html_url": f"https://acme.pagerduty.com/incidents/{alert.incident}",
            "self": f"https://api.pagerduty.com/incidents/{alert.incident}",
        }  # fmt: skip
        title = alert.events[0]["payload"]["summary"] if alert.events else "A spike"
        if event_type in _NOTES:
            data = {
                "incident": {**there, "summary": title, "type": "incident_reference"}, "id": "P2LA89X",
                "content": changes.pop("note", "It is the learning rate."), "trimmed": False, "type": "incident_note",
            }  # fmt: skip
        else:
            data = {
                **there, "type": "incident", "number": 2, "status": event_type.partition(".")[2], "title": title,
                "incident_key": alert.key if key is None else key or None, "created_at": _now(), "urgency": "high",
                "service": {"id": "PF9KMXH", "summary": "Training", "type": "service_reference"}, "priority": None,
                "resolve_reason": None,
            }  # fmt: skip
        event = {
            "id": f"01E{next(self._ids):023}", "event_type": event_type, "resource_type": "incident",
            "occurred_at": _now(), "client": {"name": "PagerDuty"}, "data": data,
            "agent": {"id": "PLH1HKV", "summary": PERSON, "type": "user_reference",
                      "html_url": "https://acme.pagerduty.com/users/PLH1HKV"},
        }  # fmt: skip
        return json.dumps({"event": event | changes}, ensure_ascii=False).encode()

    def sign(self, body: bytes, *secrets: str) -> str:
        """Return the header for a body: a signature by each secret."""
        macs = [hmac.new(secret.encode(), body, hashlib.sha256).hexdigest() for secret in secrets or (WEBHOOK_SECRET,)]
        return ",".join(f"v1={mac}" for mac in macs)

    def post(self, address: str, body: bytes, signature: str | None = None) -> httpx.Response:
        """Deliver a webhook."""
        headers = {
            "Content-Type": "application/json", "User-Agent": "PagerDuty-Webhook/V3.0",
            "X-PagerDuty-Signature": self.sign(body) if signature is None else signature,
            "X-Webhook-Id": f"w{next(self._ids)}", "X-Webhook-Subscription": "PIJ90N7",
        }  # fmt: skip
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        return self._client.post(address, content=body, headers=encoded)

    def __enter__(self) -> FakePagerDuty:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _answer(code: int, **content: Any) -> tuple[int, dict[str, str], bytes]:
    return code, {"Content-Type": "application/json"}, json.dumps(content).encode()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _wrong(event: Any, size: int, *, change: bool) -> Any:
    """Yield what breaks a rule of https://developer.pagerduty.com/docs/events-api-v2-overview."""
    if size > 512 * 1000:
        yield f"the body has {size} bytes"
    if not isinstance(event, dict) or len(str(event.get("routing_key", ""))) != 32:
        yield "'routing_key' is missing or invalid"
        return
    known = {"routing_key", "payload", "links"}
    if not change:
        known |= {"event_action", "dedup_key", "images", "client", "client_url"}
        if event.get("event_action") not in ("trigger", "acknowledge", "resolve"):
            yield "'event_action' is missing or invalid"
        if not 0 < len(event.get("dedup_key", "x")) <= 255:
            yield "'dedup_key' is too long"
    if unknown := event.keys() - known:
        yield f"unknown: {unknown}"
    for link in event.get("links", []):
        if not str(link.get("href", "")).startswith(("http://", "https://")):
            yield "a link without 'href'"
    if any(not str(one.get("src", "")).startswith("https://") for one in event.get("images", [])):
        yield "an image without https"
    if not change and event.get("event_action") != "trigger":
        return
    payload = event.get("payload")
    if not isinstance(payload, dict):
        yield "'payload' is missing"
        return
    if not 0 < len(payload.get("summary", "")) <= 1024:
        yield "'payload.summary' is missing or too long"
    if not payload.get("source") and not change:
        yield "'payload.source' is missing"
    if not change and payload.get("severity") not in _SEVERITIES:
        yield "'payload.severity' is invalid"
    if not isinstance(payload.get("custom_details", {}), dict):
        yield "'payload.custom_details' is no object"
    if "timestamp" in payload:
        try:
            datetime.fromisoformat(payload["timestamp"])
        except ValueError:
            yield "'payload.timestamp' is no time"
    if extra := payload.keys() - {
        "summary",
        "source",
        "severity",
        "timestamp",
        "component",
        "group",
        "class",
        "custom_details",
    }:
        yield f"unknown in payload: {extra}"
