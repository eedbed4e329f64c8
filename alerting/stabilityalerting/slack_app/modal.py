"""The question before a rollback: what is true now, what will happen; and whether that still holds. Pure."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from stabilityalerting.actions import RollbackNow

from .texts import MAX_MODAL_TITLE, button, context, cut, duration, mrkdwn, plain, section

#: An answer to a question older than this is refused, seconds: the job has gone on since.
MAX_AGE_S = 15 * 60.0
#: Our name of the question.
CALLBACK = "stability_roll_back"
#: Longest reason, characters.
MAX_REASON = 200
_REASON, _REASON_TEXT = "reason", "text"

__all__ = ["CALLBACK", "MAX_AGE_S", "Asked", "notice", "question", "reason_of"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person was shown, as the question carries it.

    Args:
        channel, thread: where the answer is told.
        head, to_step, checkpoint: see ``Order``. at: when it was shown, unix seconds.
    """

    run_id: str
    incident_id: str
    channel: str
    thread: str
    head: str
    to_step: int
    checkpoint: str
    at: float

    def sealed(self, secret: str) -> str:
        """Return it as text that only we can have written."""
        text = msgspec.json.encode(self).decode()
        return f"{_seal(secret, text)}{text}"

    @classmethod
    def opened(cls, sealed: object, secret: str) -> Asked | None:
        """Return what ``sealed`` made a text of; None where we did not write it."""
        if not isinstance(sealed, str) or len(sealed) <= 64:
            return None
        seal, text = sealed[:64], sealed[64:]
        if not hmac.compare_digest(seal.encode(), _seal(secret, text).encode()):
            return None
        return msgspec.json.decode(text, type=cls)


def question(
    now: RollbackNow, run_name: str, url: str, sealed: str, *, unix_s: float, may_order: bool
) -> dict[str, Any]:
    """Return the view that asks.

    Args:
        sealed: what ``Asked.sealed`` gives. may_order: the person may order it; without, there is nothing to press.
        unix_s: now.
    """
    blocks = [*_facts(now, run_name, unix_s)]
    can = may_order and not now.refused and now.to_step is not None
    if now.two_persons and can:
        blocks.append(
            section("*Two persons:* you propose it. It is sent when another person approves it in the thread.")
        )
    if now.warning and not now.refused:
        blocks.append(section(f"*Know first:* {mrkdwn(now.warning, 1_500)}"))
    if now.refused:
        blocks.append(section(f"*It can't be ordered now:* {mrkdwn(now.refused, 1_500)}"))
    elif not may_order:
        blocks.append(section("You may look. Ordering needs the role `command` (STABILITY_SLACK_USERS)."))
    if can:
        blocks.append(
            {
                "type": "input",
                "block_id": _REASON,
                "optional": True,
                "label": plain("Reason, for the record", 100),
                "element": {"type": "plain_text_input", "action_id": _REASON_TEXT, "max_length": MAX_REASON},
            }
        )
    blocks.append({"type": "actions", "elements": [button("Choose another checkpoint on the page", "open", url=url)]})
    view = _view("Roll back", blocks)
    if can:
        view["submit"] = plain("Propose" if now.two_persons else "Roll back", MAX_MODAL_TITLE)
        view["private_metadata"] = sealed
    return view


def notice(title: str, text: str) -> dict[str, Any]:
    """Return a view that only says something."""
    return _view(title, [section(mrkdwn(text, 2_900))])


def reason_of(view: dict[str, Any]) -> str:
    """Return the reason that was given, "" for none."""
    try:
        found = view["state"]["values"][_REASON][_REASON_TEXT]["value"]
    except (KeyError, TypeError):
        return ""
    return cut(found, MAX_REASON) if isinstance(found, str) else ""


def _view(title: str, blocks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "type": "modal",
        "callback_id": CALLBACK,
        "title": plain(title, MAX_MODAL_TITLE),
        "close": plain("Close", MAX_MODAL_TITLE),
        "blocks": list(blocks),
    }


def _facts(now: RollbackNow, run_name: str, unix_s: float) -> list[dict[str, Any]]:
    step = "has not begun a step" if now.step is None else f"is at step {now.step:,}"
    lines = [f"*Now:* run {mrkdwn(run_name, 200)} {step}, in segment {now.head}."]
    if now.to_step is None:
        return [section("\n".join(lines)), section(f"*No checkpoint is suggested.* {mrkdwn(now.text, 1_500)}")]
    age = "" if now.saved is None else f", saved {duration(unix_s - now.saved)} ago"
    lines.append(f"*Checkpoint:* step {now.to_step:,}{age}. {mrkdwn(now.text, 1_000)}")
    if now.checkpoint:
        lines.append(f"`{mrkdwn(now.checkpoint, 600).replace('`', chr(39))}`")
    if now.step is not None:
        lost = now.step - now.to_step
        lines.append(f"*Lost:* {lost:,} {'step' if lost == 1 else 'steps'} of training.")
    ranks = "Its rank stops" if now.ranks == 1 else f"All {now.ranks:,} ranks stop"
    will = f"*What will happen:* {ranks} at one step boundary, or none does. "
    will += f"Training goes on from step {now.to_step + 1:,}"
    if now.changes:
        will += ", with " + ", ".join(mrkdwn(change, 200) for change in now.changes)
    blocks = [section("\n".join(lines)), section(will + ".")]
    if now.cannot:
        blocks.append(context("Not changed: " + "; ".join(mrkdwn(why, 300) for why in now.cannot)))
    return blocks


def _seal(secret: str, text: str) -> str:
    key = hashlib.sha256(b"stability rollback question " + secret.encode()).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
