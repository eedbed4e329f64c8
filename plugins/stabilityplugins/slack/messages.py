"""Messages: of an incident's thread, and the replies in it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from stabilityalerting.actions import CommandNews, Facts, Proposed
from stabilityalerting.alert import Alert, Change, Notice, Severity
from stabilityplugins.slack.blocks import (
    MAX_BUTTON_VALUE,
    MAX_FIELD,
    MAX_URL,
    button,
    context,
    header,
    mrkdwn,
    plain,
    section,
)
from stabilityplugins.slack.curve import chart_of, values_of

#: Longest text and longest advice in a message, characters: Slack refuses some 13,000 in all.
MAX_TEXT = 1_500
#: Longest name of a run, a node or a data set.
MAX_NAME = 200
#: Longest line on a phone, characters.
MAX_LINE = 300
#: Length of a mute from a button, minutes.
MUTE_MINUTES = 60
#: Action ids of the buttons.
ACK = "stability_ack"
MUTE = "stability_mute"
ROLL_BACK = "stability_roll_back"
OPEN = "stability_open"
APPROVE = "stability_approve"
DECLINE = "stability_decline"
USEFUL = "stability_useful"
NOISE = "stability_noise"

_SIGNS: dict[Severity, str] = {"critical": "\U0001f6a8", "warning": "\u26a0\ufe0f", "info": "\u2139\ufe0f"}
_REPLIES: dict[Change, str] = {
    "escalated": "Now critical",
    "grouped": "More like this",
    "handed_over": "Left to people",
}
_DONE = "\u2705"
_SEEN = "\U0001f440"

__all__ = [
    "ACK",
    "APPROVE",
    "DECLINE",
    "MUTE",
    "MUTE_MINUTES",
    "NOISE",
    "OPEN",
    "ROLL_BACK",
    "USEFUL",
    "IncidentValue",
    "Message",
    "ProposalValue",
    "Shown",
    "command_text",
    "decided",
    "message",
    "metadata",
    "outcome_text",
    "proposal",
    "reply",
    "value_of",
]  # fmt: skip


class IncidentValue(msgspec.Struct, frozen=True):
    """Value of a button about an incident."""

    run: str
    incident: str


class ProposalValue(msgspec.Struct, frozen=True):
    """Value of a button about a proposal. ``by``: Slack user id of the proposer."""

    run: str
    proposal: str
    to_step: int
    by: str
    reason: str


_Value = TypeVar("_Value", IncidentValue, ProposalValue)


def value_of(value: object, kind: type[_Value]) -> _Value | None:
    """Return the value of a button that was pressed, None where it is of another kind."""
    try:
        return msgspec.json.decode(value, type=kind) if isinstance(value, str) else None
    except msgspec.MsgspecError:
        return None


@dataclass(frozen=True, slots=True)
class Message:
    """Blocks, and text for clients without them."""

    text: str
    blocks: Sequence[dict[str, Any]]

    def has_chart(self) -> bool:
        """Return whether it has a chart block."""
        return any(block["type"] == "data_visualization" for block in self.blocks)


@dataclass(frozen=True, slots=True)
class Shown:
    """The content of a thread's message.

    Args:
        url: page of the incident.
        chart: use Slack's chart block.
        buttons: the server obeys them. mute: that one included.
    """

    alert: Alert
    facts: Facts
    url: str
    chart: bool = True
    buttons: bool = True
    mute: bool = False


def message(shown: Shown) -> Message:
    """Return the message of an incident's thread in the incident's current state."""
    alert = shown.alert
    facts = shown.facts
    blocks: list[dict[str, Any]] = [header(f"{_sign(alert)} {_head(alert)}".lstrip())]
    if alert.text:
        blocks.append({"type": "section", "text": plain(alert.text, MAX_TEXT)})
    if facts.curve is not None and (text := values_of(facts.curve).text()):
        blocks.append(section(f"*{mrkdwn(facts.curve.metric, MAX_NAME)}:* {text}"))
    if alert.advice and alert.is_open:
        blocks.append(section(f"*What to do:* {mrkdwn(alert.advice, MAX_TEXT)}"))
    fields = _fields(alert, facts)
    blocks.append({"type": "section", "fields": [{"type": "mrkdwn", "text": text} for text in fields[:10]]})
    chart = chart_of(facts.curve) if shown.chart and facts.curve is not None else None
    if chart is not None:
        blocks.append(chart)
    if alert.acknowledged_by:
        blocks.append(context(f"{_SEEN} {mrkdwn(alert.acknowledged_by, MAX_NAME)} takes care of it"))
    blocks.append({"type": "actions", "elements": _buttons(shown)})
    can = shown.buttons and not facts.gone and len(_about(alert)) <= MAX_BUTTON_VALUE
    if can and (alert.acknowledged_by or not alert.is_open):  # ratings come after actions
        rated = [button("Useful", USEFUL, _about(alert)), button("Noise", NOISE, _about(alert))]
        blocks.append({"type": "actions", "elements": rated})
    return Message(_line(alert, facts), blocks)


def reply(notice: Notice) -> Message:
    """Return the reply about a change: opened again, escalated, grouped, handed over, or resolved."""
    alert = notice.alert
    change = notice.change
    if change == "resolved":
        line = f"{_sign(alert)} {_head(alert)}".lstrip()
    else:
        line = f"{_SIGNS[notice.severity]} {_REPLIES.get(change, 'Open again')}: {alert.headline}"
    blocks: list[dict[str, Any]] = [{"type": "section", "text": plain(line, MAX_TEXT)}]
    if notice.why:
        blocks.append({"type": "section", "text": plain(notice.why, MAX_TEXT)})
    if change not in ("resolved", "grouped", "handed_over") and alert.advice_line:
        blocks.append(section(f"*What to do:* {mrkdwn(alert.advice_line, MAX_TEXT)}"))
    if alert.text and change == "escalated":
        blocks.append({"type": "section", "text": plain(alert.text, MAX_TEXT)})
    if len(notice.url) <= MAX_URL:
        blocks.append({"type": "actions", "elements": [button("Open", OPEN, url=notice.url)]})
    return Message(mrkdwn(f"{line} (run {alert.run_id})", MAX_LINE), blocks)


def command_text(who: str, to_step: int, reason: str, news: CommandNews) -> str:
    """Return the reply about a command: its issuer, its states so far, and its progress.

    Args:
        who: Slack user id.
    """
    head = f"Rollback to step {to_step:,} ordered by <@{who}>"
    head += f": {mrkdwn(reason, MAX_NAME)}" if reason else ""
    states = ", ".join(f"{_STATES.get(state, state)} after {after_s:.1f} s" for state, after_s in news.passed[-12:])
    lines = [head, states, mrkdwn(news.line, MAX_LINE)]
    return "\n".join(line for line in lines if line)[:MAX_FIELD]


def proposal(who: str, proposed: Proposed, run_id: str, to_step: int, reason: str) -> Message:
    """Return the reply that asks another person to approve a command.

    Args:
        who: Slack user id of the proposer.
    """
    text = f"<@{who}> proposes: {mrkdwn(proposed.what, MAX_LINE)}" + (
        f" ({mrkdwn(reason, MAX_NAME)})" if reason else ""
    )
    value = msgspec.json.encode(ProposalValue(run_id, proposed.proposal_id, to_step, who, reason)).decode()
    ends = f"Nothing is sent before another person approves it, until {_when(proposed.expires)}."
    buttons = [button("Approve", APPROVE, value, style="primary"), button("Decline", DECLINE, value)]
    return Message(text, [section(text), context(ends), {"type": "actions", "elements": buttons}])


def decided(who: str, by: str, to_step: int, *, approved: bool) -> Message:
    """Return the message of a decided proposal. ``who``, ``by``: Slack user ids of the decider and the proposer."""
    text = (
        f"{'Approved' if approved else 'Declined'} by <@{who}>: the rollback to step {to_step:,} that <@{by}> proposed."
    )
    return Message(text, [section(text)])


def outcome_text(to_step: int, news: CommandNews) -> str:
    """Return the last reply about a command."""
    if news.failed:
        state = _STATES.get(news.state, news.state)
        why = f": {mrkdwn(news.problem, MAX_TEXT)}" if news.problem else ""
        return f"\u274c The rollback to step {to_step:,} was not carried out ({state}){why}"
    return f"{_DONE} {mrkdwn(news.line, MAX_TEXT)}"


#: State of a command -> its label.
_STATES = {
    "pending": "requested", "delivered": "sent", "ready": "ready on all ranks", "acted": "executed", "done": "done",
    "rejected": "refused",
}  # fmt: skip


def metadata(alert: Alert, key: str) -> dict[str, Any]:
    """Return the metadata by which a message is found again after a crash."""
    return {"event_type": "stability_incident", "event_payload": {"incident": alert.incident_id, "key": key}}


def _buttons(shown: Shown) -> list[dict[str, Any]]:
    alert = shown.alert
    value = _about(alert)
    found = []
    if shown.buttons and alert.is_open and not shown.facts.gone and len(value) <= MAX_BUTTON_VALUE:
        if not alert.acknowledged_by:
            found.append(button("Acknowledge", ACK, value, style="primary"))
        if shown.mute:
            found.append(button("Mute 1 h", MUTE, value))
        if shown.facts.can_roll_back:
            found.append(button("Roll back …", ROLL_BACK, value, style="danger"))
    if len(shown.url) <= MAX_URL:
        found.append(button("Open", OPEN, url=shown.url))
    return found


def _about(alert: Alert) -> str:
    return msgspec.json.encode(IncidentValue(alert.run_id, alert.incident_id)).decode()


def _fields(alert: Alert, facts: Facts) -> list[str]:
    """Return run, kind, onset and location, each with its name."""
    name = facts.run_name or alert.run_id
    run = mrkdwn(name, MAX_NAME) + (f"\n{mrkdwn(alert.run_id, MAX_NAME)}" if name != alert.run_id else "")
    fields = {"Run": run, "What": f"{mrkdwn(alert.label, MAX_NAME)}, {alert.severity}"}
    if alert.onset_step is not None:
        fields["Since"] = f"step {alert.onset_step:,}" if alert.onset_step >= 0 else "before the first step"
        fields["Since"] += f", {_when(alert.opened)}" if alert.opened else ""
    if facts.project:
        fields["Project"] = mrkdwn(facts.project, MAX_NAME)
    where = [f"rank {alert.rank}"] if alert.rank is not None else []
    if alert.node:
        where.append(f"node {mrkdwn(alert.node, MAX_NAME)}")
    if where:
        fields["Where"] = ", ".join(where)
    if alert.dataset:
        fields["Data set"] = mrkdwn(alert.dataset, MAX_NAME)
    return [f"*{title}*\n{text}"[:MAX_FIELD] for title, text in fields.items()]


def _when(unix_s: float) -> str:
    """Return a time, shown by Slack in the reader's time zone."""
    spelled = datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"<!date^{int(unix_s)}^{{date_short_pretty}} {{time}}|{spelled}>"


def _line(alert: Alert, facts: Facts) -> str:
    line = f"{_sign(alert)} {_head(alert)}".lstrip()
    if alert.is_open and alert.advice_line:
        line += f": {alert.advice_line}"
    return mrkdwn(f"{line} (run {facts.run_name or alert.run_id})", MAX_LINE)


def _head(alert: Alert) -> str:
    return alert.headline if alert.is_open else f"{alert.outcome}: {alert.headline}"


def _sign(alert: Alert) -> str:
    if not alert.is_open:
        return _DONE if alert.is_cured else ""
    return _SEEN if alert.acknowledged_by else _SIGNS[alert.severity]
