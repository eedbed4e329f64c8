"""Webhooks (v3) of PagerDuty: acknowledgements and notes of users there.

An acknowledgement or a resolution by a person there acknowledges here; an incident ends here when the data show it.
Actions of an integration, such as this server, are not applied.

Source: https://developer.pagerduty.com/docs/webhooks-overview and .../docs/verifying-signatures
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote

import httpx
import msgspec

from stabilityalerting.actions import ActionRefused, Actions
from stabilityalerting.errors import AlertingError
from stabilityalerting.sink import redact
from stabilityplugins.pagerduty.memory import EVENT_KEPT_S, MAX_SUMMARY_CHARS, Memory, OwnIncident

PAGERDUTY_API_URL = "https://api.pagerduty.com"
#: PagerDuty waits 5 s for the answer to its webhook: the look-up has to end before.
LOOK_UP_S = 2.5
#: Alerts of an incident in one look-up: PagerDuty's limit.
MAX_ALERTS = 100
#: An older event is ignored, seconds: the mark that it was applied before may be gone.
MAX_AGE_S = EVENT_KEPT_S / 2
#: Characters of a person's name, and of a note.
MAX_NAME_CHARS = 80
MAX_NOTE_CHARS = 500
#: Signatures in a header: one, and a second while a secret is rotated.
MAX_SIGNATURES = 8

_ACKNOWLEDGED = "incident.acknowledged"
_RESOLVED = "incident.resolved"
#: Event -> action in the audit log, and its text; "": the text of the note.
_NOTED = {
    "incident.reopened": ("incident.reopened_in_pagerduty", "It was opened again in PagerDuty."),
    "incident.unacknowledged": (
        "incident.unacknowledged_in_pagerduty",
        "It is acknowledged no more in PagerDuty, which pages on by its own rules; here it stays acknowledged.",
    ),
    "incident.annotated": ("incident.note_in_pagerduty", ""),
}

Outcome = Literal["acknowledged", "noted", "ignored", "repeated", "unknown"]

__all__ = ["PAGERDUTY_API_URL", "BadWebhook", "IncidentAlerts", "Outcome", "PagerDutyAnswer", "Webhooks"]

_log = logging.getLogger(__name__)


class BadWebhook(AlertingError):
    """A signed request that is no webhook of version 3."""


class PagerDutyAnswer(msgspec.Struct, frozen=True):
    """The outcome of a webhook.

    Attributes:
        outcome: ``acknowledged``; ``noted``: in the audit log; ``ignored``: of no use here; ``repeated``: applied
            before; ``unknown``: not an incident of this server.
        text: the same for display.
    """

    outcome: Outcome
    text: str


@dataclass(frozen=True, slots=True)
class _Event:
    """One webhook.

    Args:
        id, type, age_s: of the event.
        who: name of its author. agent: type of the author, "" for none.
        there: id of PagerDuty's incident. key: its ``incident_key``. title, url: its.
        note: text of a note.
    """

    id: str
    type: str
    age_s: float
    who: str
    agent: str
    there: str
    key: str
    title: str
    url: str
    note: str

    @property
    def by_person(self) -> bool:
        return self.agent in ("user_reference", "user")


class IncidentAlerts:
    """Looks up the alerts of an incident in PagerDuty's REST API: grouping and merging put several into one.

    Args:
        token: of the REST API, a secret; it only needs to read.

    Source: https://developer.pagerduty.com/api-reference (List alerts for an incident)
    """

    def __init__(self, token: str, url: str = PAGERDUTY_API_URL) -> None:
        self.secret = token
        self._url = url.rstrip("/")
        self._client: httpx.AsyncClient | None = None

    async def keys(self, incident: str) -> list[str]:
        """Return the dedup_keys of an incident of PagerDuty; none after a failure, which is logged."""
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=LOOK_UP_S, follow_redirects=False)
        headers = {
            "Authorization": f"Token token={self.secret}",
            "Accept": "application/vnd.pagerduty+json;version=2",
        }
        url = f"{self._url}/incidents/{quote(incident, safe='')}/alerts"
        try:
            answer = await self._client.get(url, params={"limit": MAX_ALERTS}, headers=headers)
            answer.raise_for_status()
            found: Any = answer.json()["alerts"]
            return [str(one["alert_key"]) for one in found if one.get("alert_key")]
        except (httpx.HTTPError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            why = redact(f"{type(error).__name__}: {error}", [self.secret])
            _log.warning("pagerduty: the alerts of an incident can't be looked up: %s", why)
            return []

    async def aclose(self) -> None:
        """Close its connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None


class Webhooks:
    """Applies the webhooks of one receiver.

    Args:
        secrets: of the subscriptions in PagerDuty.
        clock: unix seconds now.
        look_up: asks for the alerts of an incident; None: its ``incident_key`` alone names them.
    """

    def __init__(
        self,
        secrets: Sequence[str],
        memory: Memory,
        actions: Actions,
        clock: Callable[[], float],
        look_up: IncidentAlerts | None = None,
    ) -> None:
        self._secrets = secrets
        self._memory = memory
        self._actions = actions
        self._clock = clock
        self._look_up = look_up

    def signed(self, header: str, body: bytes) -> bool:
        """Return whether one of the signatures ``v1=<hex>`` of a header is right for a body."""
        given = [one.strip().encode() for one in header.split(",")[:MAX_SIGNATURES]]
        right = [
            b"v1=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest().encode() for secret in self._secrets
        ]
        return any(hmac.compare_digest(one, mac) for one in given for mac in right)

    async def take(self, body: bytes) -> PagerDutyAnswer:
        """Apply a signed webhook.

        Raises:
            BadWebhook: no webhook.
            ActionRefused: with ``passing``: the same again can help. RedisError: Redis is away; the same.
        """
        event = _read(body, self._clock())
        if event.type == "pagey.ping":
            return PagerDutyAnswer("noted", "PagerDuty and this server know each other.")
        if event.age_s > MAX_AGE_S:
            return PagerDutyAnswer("ignored", f"It is {event.age_s / 3600:,.0f} h old.")
        if await self._memory.is_applied(event.id):
            return PagerDutyAnswer("repeated", "It came before.")
        incidents = await self._incidents(event)
        if not incidents:
            return PagerDutyAnswer("unknown", f"{event.type}: none of the incidents that this receiver sent is in it.")
        results = [await self._act(event, own) for own in incidents]
        await self._memory.applied(event.id)  # at the end: one that failed half way is repeated
        return next((one for one in results if one.outcome == "acknowledged"), results[0])

    async def _act(self, event: _Event, own: OwnIncident) -> PagerDutyAnswer:
        try:
            if event.type == _ACKNOWLEDGED:
                return await self._acknowledged(event, own)
            if event.type == _RESOLVED:
                return await self._resolved(event, own)
            if event.type not in _NOTED:
                return PagerDutyAnswer("ignored", f"{event.type} changes nothing here.")
            if event.type == "incident.reopened":
                await self._memory.reopened(own)
            action, text = _NOTED[event.type]
            await self._actions.note(*own, action, f"pagerduty:{event.who}", text or event.note)
            return PagerDutyAnswer("noted", text or "The note is in the audit log.")
        except ActionRefused as refused:
            if refused.passing:
                raise
            return PagerDutyAnswer("unknown", str(refused))

    async def _acknowledged(self, event: _Event, own: OwnIncident) -> PagerDutyAnswer:
        if not event.by_person:
            return PagerDutyAnswer("ignored", "No person acknowledged it.")
        who = f"pagerduty:{event.who}"
        await self._memory.acknowledged(own, who)
        holder = await self._actions.acknowledge(*own, who, f"in PagerDuty: {event.url}")
        if holder != who:
            return PagerDutyAnswer("noted", f"{holder} takes care of it already.")
        return PagerDutyAnswer("acknowledged", f"{who} takes care of it.")

    async def _resolved(self, event: _Event, own: OwnIncident) -> PagerDutyAnswer:
        if "integration" in event.agent:
            return PagerDutyAnswer("ignored", "An integration resolved it.")
        await self._memory.resolved(own)
        who = f"pagerduty:{event.who}"
        if event.by_person:
            await self._memory.acknowledged(own, who)
            await self._actions.acknowledge(*own, who, f"resolved in PagerDuty: {event.url}")
        note = "It was resolved in PagerDuty; here it ends when the data say so."
        await self._actions.note(*own, "incident.resolved_in_pagerduty", who, f"{note} {event.url}")
        return PagerDutyAnswer("acknowledged" if event.by_person else "noted", note)

    async def _incidents(self, event: _Event) -> list[OwnIncident]:
        """Return the own incidents in an incident of PagerDuty."""
        keys = [event.key] if event.key else []
        if self._look_up is not None and event.type in (_ACKNOWLEDGED, _RESOLVED, *_NOTED) and event.there:
            keys += await self._look_up.keys(event.there)
        if event.there:
            keys += await self._memory.keys_of(event.there)
        keys = list(dict.fromkeys(keys))
        found = {key: own for key in keys if (own := await self._memory.own(key)) is not None}
        # ``incident_key`` is null in the webhooks of many accounts; the title is that of the alert which opened it.
        if not found and event.title and (key := await self._memory.titled(event.title)) is not None:
            own = await self._memory.own(key)
            found = {} if own is None else {key: own}
        if found and event.there:
            await self._memory.learn(event.there, list(found))
        return list(found.values())


def _read(body: bytes, now: float) -> _Event:
    try:
        raw: Any = msgspec.json.decode(body)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise BadWebhook(f"the body is no JSON: {error}") from None
    event = _part(raw, "event")
    if not event:
        raise BadWebhook("there is no object 'event': expected a webhook of PagerDuty, version 3")
    event_id = event.get("id")
    kind = event.get("event_type")
    if not isinstance(event_id, str) or not isinstance(kind, str) or not 0 < len(event_id) <= 200:
        raise BadWebhook("event.id or event.event_type is no text: expected a webhook of PagerDuty, version 3")
    data = _part(event, "data")
    agent = _part(event, "agent")
    incident = data if data.get("type") == "incident" else _part(data, "incident")
    return _Event(
        id=event_id,
        type=kind,
        age_s=_age(event.get("occurred_at"), now),
        who=_text(agent.get("summary"), MAX_NAME_CHARS) or "nobody",
        agent=_text(agent.get("type"), MAX_NAME_CHARS),
        there=_text(incident.get("id"), MAX_NAME_CHARS),
        key=_text(incident.get("incident_key"), 255),
        title=_text(incident.get("title") or incident.get("summary"), MAX_SUMMARY_CHARS),
        url=_text(incident.get("html_url"), MAX_NOTE_CHARS),
        note=_text(data.get("content"), MAX_NOTE_CHARS),
    )


def _part(raw: Any, name: str) -> dict[str, Any]:
    found = raw.get(name) if isinstance(raw, dict) else None
    return found if isinstance(found, dict) else {}


def _text(value: object, most: int) -> str:
    """Return a text without control characters, "" for another type."""
    text = value if isinstance(value, str) else ""
    return "".join(one if one.isprintable() else " " for one in text)[:most].strip()


def _age(occurred_at: object, now: float) -> float:
    """Return the age of an event, seconds; 0 without a time."""
    if not isinstance(occurred_at, str):
        return 0.0
    try:
        then = datetime.fromisoformat(occurred_at)
    except ValueError:
        raise BadWebhook("event.occurred_at is no time: expected one of ISO 8601") from None
    if then.tzinfo is None:
        raise BadWebhook("event.occurred_at has no time zone: expected one of ISO 8601")
    return now - then.timestamp()
