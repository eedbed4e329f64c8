"""Slack by an incoming webhook."""

from __future__ import annotations

from typing import Any

import msgspec

from .alert import Notice, Severity
from .sink import HttpSink, Outgoing
from .variables import Variables

#: Slack's limits for a header and for a section, characters.
MAX_HEADER_CHARS = 150
MAX_SECTION_CHARS = 2_900

_SIGNS = {"critical": ":rotating_light:", "warning": ":warning:", "info": ":information_source:"}

_NEWS = {"grouped": "More like this: ", "handed_over": "Left to people: ", "escalated": "Escalated: "}

__all__ = ["SlackSink"]


class SlackSink(HttpSink):
    """Posts one message for each change. Incoming webhooks have no threads, edits or keys.

    So a message whose fate a crash left open is not sent again: it has most probably arrived.

    Args:
        url: the webhook's address, which is all that is needed to post: a secret.

    Source: https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks
    """

    name = "slack"
    idempotent = False

    def __init__(self, url: str, min_severity: Severity = "info") -> None:
        super().__init__(min_severity, [url])
        self._url = url

    @classmethod
    def from_variables(cls, variables: Variables) -> SlackSink | None:
        severity = variables.severity("STABILITY_SLACK_MIN_SEVERITY")
        url = variables.url("STABILITY_SLACK_WEBHOOK_URL")
        return None if url is None else cls(url, severity)

    def outgoing(self, notice: Notice) -> Outgoing:
        return Outgoing(self._url, msgspec.json.encode(_message(notice)))


def _message(notice: Notice) -> dict[str, Any]:
    alert = notice.alert
    if notice.change == "resolved":
        heading = f"{':white_check_mark: ' if alert.is_cured else ''}{alert.outcome}: {alert.headline}"
    else:
        heading = f"{_SIGNS[notice.severity]} {_NEWS.get(notice.change, '')}{alert.headline}"
    where = [f"run *{_escape(alert.run_id)}*", _escape(alert.label), alert.severity]
    if alert.onset_step is not None and alert.onset_step >= 0:  # -1: before the first step
        where.append(f"step {alert.onset_step:,}")
    if alert.dataset:
        where.append(f"data set {_escape(alert.dataset)}")
    if alert.rank is not None:
        where.append(f"rank {alert.rank}")
    if alert.node:
        where.append(_escape(alert.node))
    text = f"{notice.why} {alert.text}" if notice.why else alert.text
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": heading[:MAX_HEADER_CHARS], "emoji": True}},
        {"type": "section", "text": {"type": "mrkdwn", "text": _escape(text)[:MAX_SECTION_CHARS] or " "}},
    ]
    if alert.advice and notice.change not in ("resolved", "handed_over"):  # there it is part of the text
        advice = f"*What to do:* {_escape(alert.advice)}"[:MAX_SECTION_CHARS]
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": advice}})
    blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": " · ".join(where)}]})
    blocks.append({"type": "actions", "elements": _links(notice)})
    # Shown by a phone: everything in one line.
    line = heading.removesuffix(alert.headline) + alert.line
    return {"text": f"{_escape(line)} (run {_escape(alert.run_id)})", "blocks": blocks}


def _links(notice: Notice) -> list[dict[str, Any]]:
    """Return buttons that open pages, the only ones that a webhook's message can have."""
    links = [("Open the incident", notice.url)]
    if notice.change != "resolved":
        links.append(("Fewer of these", f"{notice.url}#incident-rating"))
    return [{"type": "button", "text": {"type": "plain_text", "text": text}, "url": url} for text, url in links]


def _escape(text: str) -> str:
    """Escape mentions and links."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
