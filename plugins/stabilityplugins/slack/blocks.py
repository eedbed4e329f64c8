"""Slack's blocks of texts of runs: without markup, within Slack's limits. Pure."""

from __future__ import annotations

import math
import re
from typing import Any

__all__ = [
    "MAX_BUTTON", "MAX_BUTTON_VALUE", "MAX_FIELD", "MAX_HEADER", "MAX_MODAL_TITLE", "MAX_SECTION", "MAX_URL", "button",
    "context", "cut", "duration", "header", "isolated", "mrkdwn", "number", "plain", "section",
]  # fmt: skip

#: Slack's limits, characters and counts. Source: https://docs.slack.dev/reference/block-kit
MAX_HEADER = 150
MAX_SECTION = 3_000
MAX_FIELD = 2_000
MAX_BUTTON = 75
MAX_BUTTON_VALUE = 2_000
MAX_URL = 3_000
MAX_MODAL_TITLE = 24

#: Controls of bidirectional text and of terminals, which would change or hide the text around them.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
#: Letters of right-to-left scripts.
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]")
_HALF_ENTITY = re.compile(r"&[a-z]{0,3}$")


def cut(text: str, most: int) -> str:
    """Return ``text``, shortened with an ellipsis to ``most`` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def isolated(text: str) -> str:
    """Return a text without controls; a right-to-left one isolated from the text around it."""
    clean = _CONTROLS.sub("", text)
    return f"\u2068{clean}\u2069" if _RIGHT_TO_LEFT.search(clean) else clean


def mrkdwn(text: str, most: int) -> str:
    """Return a text of a run for a ``mrkdwn`` field: no mention, no link, at most ``most`` characters."""
    # Cut first: an isolate has to end. It adds two characters, and each may grow to five.
    escaped = isolated(cut(text, most - 2)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    if len(escaped) <= most:
        return escaped
    return _HALF_ENTITY.sub("", escaped[: most - 2]) + "…" + ("\u2069" if escaped.startswith("\u2068") else "")


def plain(text: str, most: int) -> dict[str, Any]:
    """Return a ``plain_text`` object, without markup or emoji names."""
    return {"type": "plain_text", "text": isolated(cut(text, most - 2)) or " ", "emoji": False}


def header(text: str) -> dict[str, Any]:
    """Return a header block."""
    return {"type": "header", "text": plain(text, MAX_HEADER)}


def section(text: str, *, most: int = MAX_SECTION) -> dict[str, Any]:
    """Return a section of Slack's markup. Texts of runs in it have passed ``mrkdwn``."""
    return {"type": "section", "text": {"type": "mrkdwn", "text": cut(text, most) or " "}}


def context(text: str) -> dict[str, Any]:
    """Return a small grey line of Slack's markup."""
    return {"type": "context", "elements": [{"type": "mrkdwn", "text": cut(text, MAX_FIELD) or " "}]}


def button(label: str, action: str, value: str = "", *, style: str = "", url: str = "") -> dict[str, Any]:
    """Return a button. One with ``url`` opens a page; the caller leaves out one with too long an address."""
    found: dict[str, Any] = {"type": "button", "action_id": action, "text": plain(label, MAX_BUTTON)}
    if value:
        found["value"] = value
    if style:
        found["style"] = style
    if url:
        found["url"] = url
    return found


def number(value: float | None) -> str:
    """Return a value for display; missing and non-finite ones by name."""
    if value is None:
        return "unknown"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinite"
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    seconds = max(0, int(seconds))
    for name, size, smaller, small in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            rest = seconds % size // small
            return f"{seconds // size} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds} s"
