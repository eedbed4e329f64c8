"""What people do in PagerDuty, as its webhooks (v3) tell it.

A person who acknowledges there acknowledges here. Who resolves there does too: here an incident ends when the data say
so. What an integration did, ours for one, is not told back.

Source: https://developer.pagerduty.com/docs/webhooks-overview and .../docs/verifying-signatures
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import msgspec

from stabilityalerting.actions import ActionRefused, Actions
from stabilityalerting.errors import AlertingError

from .events import MAX_SUMMARY_CHARS
from .memory import EVENT_KEPT_S, Memory, Ours
from .rest_api import IncidentAlerts

#: An event from longer ago is not acted on, seconds: by then it may be forgotten that it was acted on before.
MAX_AGE_S = EVENT_KEPT_S / 2
#: Characters of a person's name, and of a note, that are kept.
MAX_NAME_CHARS, MAX_NOTE_CHARS = 80, 500
#: Signatures that are looked at: one, and a second while a secret is rotated.
MAX_SIGNATURES = 8

Outcome = Literal["acknowledged", "noted", "ignored", "repeated", "unknown"]

__all__ = ["MAX_AGE_S", "BadWebhook", "Outcome", "WebhookResult", "Webhooks"]


class BadWebhook(AlertingError):
    """What came is signed, and no webhook of the version 3; the text says why."""


@dataclass(frozen=True, slots=True)
class WebhookResult:
    """What became of a webhook.

    Args:
        outcome: ``acknowledged``; ``noted``: it is in the audit log; ``ignored``: it says nothing that is of use here;
            ``repeated``: it came before; ``unknown``: none of our incidents.
        text: the same for people.
    """

    outcome: Outcome
    text: str


@dataclass(frozen=True, slots=True)
class _Event:
    """One webhook.

    Args:
        id, type: of the event. age_s: how long ago it was.
        who: name of who did it. agent: what kind of who that is, "" for nobody.
        there: id of PagerDuty's incident. key: its ``incident_key``. title, url: of it.
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


class Webhooks:
    """Takes the webhooks of one receiver.

    Args:
        secrets: of the subscriptions in PagerDuty.
        clock: unix seconds now.
        look_up: asks which alerts an incident has; None: only its ``incident_key`` says it.
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

    async def take(self, body: bytes) -> WebhookResult:
        """Do what a signed webhook is about.

        Raises:
            BadWebhook: it is none.
            ActionRefused: with ``passing``, where the same again can help. RedisError: Redis is away; the same.
        """
        event = _read(body, self._clock())
        if event.type == "pagey.ping":
            return WebhookResult("noted", "PagerDuty and this server know each other.")
        if event.age_s > MAX_AGE_S:
            return WebhookResult("ignored", f"It is {event.age_s / 3600:,.0f} h old.")
        if await self._memory.is_known(event.id):
            return WebhookResult("repeated", "It came before.")
        incidents = await self._incidents(event)
        if not incidents:
            return WebhookResult("unknown", f"{event.type}: none of the incidents that this receiver sent is in it.")
        results = [await self._act(event, ours) for ours in incidents]
        await self._memory.know(event.id)  # after it was acted on: one that failed half way comes again
        return next((one for one in results if one.outcome == "acknowledged"), results[0])

    async def _act(self, event: _Event, ours: Ours) -> WebhookResult:
        act = _ACTS.get(event.type)
        if act is None:
            return WebhookResult("ignored", f"{event.type} changes nothing here.")
        try:
            return await act(self, event, ours)
        except ActionRefused as refused:
            if refused.passing:
                raise
            return WebhookResult("unknown", str(refused))

    async def _acknowledged(self, event: _Event, ours: Ours) -> WebhookResult:
        if not event.by_person:
            return WebhookResult("ignored", "No person acknowledged it.")
        who = f"pagerduty:{event.who}"
        await self._memory.acknowledged(ours, who)
        holder = await self._actions.acknowledge(*ours, who, f"in PagerDuty: {event.url}")
        if holder != who:
            return WebhookResult("noted", f"{holder} takes care of it already.")
        return WebhookResult("acknowledged", f"{who} takes care of it.")

    async def _resolved(self, event: _Event, ours: Ours) -> WebhookResult:
        if "integration" in event.agent:
            return WebhookResult("ignored", "An integration resolved it.")
        await self._memory.resolved(ours)
        who = f"pagerduty:{event.who}"
        if event.by_person:
            await self._memory.acknowledged(ours, who)
            await self._actions.acknowledge(*ours, who, f"resolved in PagerDuty: {event.url}")
        note = "It was resolved in PagerDuty; here it ends when the data say so."
        await self._actions.note(*ours, "incident.resolved_in_pagerduty", who, f"{note} {event.url}")
        return WebhookResult("acknowledged" if event.by_person else "noted", note)

    async def _reopened(self, event: _Event, ours: Ours) -> WebhookResult:
        await self._memory.reopened(ours)
        note = "It was opened again in PagerDuty."
        await self._actions.note(*ours, "incident.reopened_in_pagerduty", f"pagerduty:{event.who}", note)
        return WebhookResult("noted", note)

    async def _unacknowledged(self, event: _Event, ours: Ours) -> WebhookResult:
        note = "It is acknowledged no more in PagerDuty, which pages on by its own rules; here it stays acknowledged."
        await self._actions.note(*ours, "incident.unacknowledged_in_pagerduty", f"pagerduty:{event.who}", note)
        return WebhookResult("noted", note)

    async def _annotated(self, event: _Event, ours: Ours) -> WebhookResult:
        await self._actions.note(*ours, "incident.note_in_pagerduty", f"pagerduty:{event.who}", event.note)
        return WebhookResult("noted", "The note is in the audit log.")

    async def _incidents(self, event: _Event) -> list[Ours]:
        """Return which of our incidents an incident of PagerDuty has."""
        keys = [event.key] if event.key else []
        if self._look_up is not None and event.type in _ACTS and event.there:
            keys += await self._look_up.keys(event.there)
        if event.there:
            keys += await self._memory.keys_of(event.there)
        keys = list(dict.fromkeys(keys))
        found = {key: ours for key in keys if (ours := await self._memory.ours(key)) is not None}
        # In webhooks of many accounts ``incident_key`` is null; its title is that of the alert which made it.
        if not found and event.title and (key := await self._memory.titled(event.title)) is not None:
            ours = await self._memory.ours(key)
            found = {} if ours is None else {key: ours}
        if found and event.there:
            await self._memory.learn(event.there, list(found))
        return list(found.values())


_ACTS = {
    "incident.acknowledged": Webhooks._acknowledged,
    "incident.resolved": Webhooks._resolved,
    "incident.reopened": Webhooks._reopened,
    "incident.unacknowledged": Webhooks._unacknowledged,
    "incident.annotated": Webhooks._annotated,
}


def _read(body: bytes, now: float) -> _Event:
    try:
        raw: Any = msgspec.json.decode(body)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise BadWebhook(f"the body is no JSON: {error}") from None
    event = _part(raw, "event")
    if not event:
        raise BadWebhook("there is no object 'event': expected a webhook of PagerDuty, version 3")
    event_id, kind = event.get("id"), event.get("event_type")
    if not isinstance(event_id, str) or not isinstance(kind, str) or not 0 < len(event_id) <= 200:
        raise BadWebhook("event.id or event.event_type is no text: expected a webhook of PagerDuty, version 3")
    data, agent = _part(event, "data"), _part(event, "agent")
    incident = data if data.get("type") == "incident" else _part(data, "incident")
    return _Event(
        id=event_id,
        type=kind,
        age_s=_age(event.get("occurred_at"), now),
        who=_words(agent.get("summary"), MAX_NAME_CHARS) or "nobody",
        agent=_words(agent.get("type"), MAX_NAME_CHARS),
        there=_words(incident.get("id"), MAX_NAME_CHARS),
        key=_words(incident.get("incident_key"), 255),
        title=_words(incident.get("title") or incident.get("summary"), MAX_SUMMARY_CHARS),
        url=_words(incident.get("html_url"), MAX_NOTE_CHARS),
        note=_words(data.get("content"), MAX_NOTE_CHARS),
    )


def _part(raw: Any, name: str) -> dict[str, Any]:
    found = raw.get(name) if isinstance(raw, dict) else None
    return found if isinstance(found, dict) else {}


def _words(value: object, most: int) -> str:
    """Return a text without control characters, "" where it is none."""
    text = value if isinstance(value, str) else ""
    return "".join(one if one.isprintable() else " " for one in text)[:most].strip()


def _age(occurred_at: object, now: float) -> float:
    """Return how long ago an event was, seconds; 0 where it does not say it."""
    if not isinstance(occurred_at, str):
        return 0.0
    try:
        then = datetime.fromisoformat(occurred_at)
    except ValueError:
        raise BadWebhook("event.occurred_at is no time: expected one as in ISO 8601") from None
    if then.tzinfo is None:
        raise BadWebhook("event.occurred_at has no time zone: expected one as in ISO 8601")
    return now - then.timestamp()
