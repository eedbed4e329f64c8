"""Slack's published limits of Block Kit, so that a message that Slack would refuse fails a test.

Source: https://docs.slack.dev/reference/block-kit (blocks, elements, composition objects), read in November 2026.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

__all__ = ["errors_of_message", "errors_of_view"]

_TEXT = {"header": 150, "section": 3_000}
_TYPES = {"header", "section", "context", "actions", "data_visualization", "input", "divider"}
_MENTION = re.compile(r"<(?!(?:@U[A-Z0-9]+>|!date\^\d+\^[^|>]*\|[^>]*>))")
_BIDI = re.compile("[\u202a-\u202e\u2066\u2067]")


def errors_of_message(body: dict[str, Any]) -> list[str]:
    """Return what Slack would not take in the body of chat.postMessage or chat.update."""
    blocks, text = body.get("blocks") or [], body.get("text") or ""
    found = [] if text else ["no text for those who see no blocks"]
    found += [] if len(text) <= 4_000 else ["text too long"]
    found += _blocks(blocks, 50)
    found += [] if len(json.dumps(blocks, ensure_ascii=False)) <= 13_000 else ["blocks too long"]
    found += _markup(text)
    if sum(block.get("type") == "data_visualization" for block in blocks) > 2:
        found.append("too many charts")
    actions = [e.get("action_id") for b in blocks if b.get("type") == "actions" for e in b.get("elements", ())]
    found += [] if len(actions) == len(set(actions)) else ["an action_id twice"]
    return found


def errors_of_view(view: dict[str, Any]) -> list[str]:
    """Return what Slack would not take in a modal."""
    found = [] if view.get("type") == "modal" else ["no modal"]
    for name in ("title", "submit", "close"):
        if name in view:
            found += _text(view[name], 24, name, ("plain_text",))
    found += [] if "title" in view else ["no title"]
    found += [] if len(view.get("private_metadata", "")) <= 3_000 else ["private_metadata too long"]
    found += [] if len(view.get("callback_id", "")) <= 255 else ["callback_id too long"]
    inputs = any(block.get("type") == "input" for block in view.get("blocks", ()))
    found += ["an input without submit"] if inputs and "submit" not in view else []
    return found + _blocks(view.get("blocks") or [], 100)


def _blocks(blocks: list[dict[str, Any]], most: int) -> list[str]:
    found = [] if len(blocks) <= most else ["too many blocks"]
    for block in blocks:
        kind = block.get("type")
        if kind not in _TYPES:
            found.append(f"unknown block {kind}")
        elif kind in _TEXT and "text" in block:
            kinds = ("plain_text",) if kind == "header" else ("plain_text", "mrkdwn")
            found += _text(block["text"], _TEXT[kind], kind, kinds)
        if kind == "section":
            found += _fields(block)
        if kind == "context":
            found += [] if 1 <= len(block["elements"]) <= 10 else ["context elements"]
            found += [error for one in block["elements"] for error in _text(one, 2_000, "context")]
        if kind == "actions":
            found += [] if 1 <= len(block["elements"]) <= 25 else ["action elements"]
            found += [error for one in block["elements"] for error in _button(one)]
        if kind == "input":
            found += _text(block["label"], 2_000, "label", ("plain_text",))
        if kind == "data_visualization":
            found += _chart(block)
    return found


def _fields(block: dict[str, Any]) -> list[str]:
    fields = block.get("fields")
    if fields is None:
        return [] if "text" in block else ["an empty section"]
    found = [] if 1 <= len(fields) <= 10 else ["fields"]
    return found + [error for one in fields for error in _text(one, 2_000, "field")]


def _text(text: dict[str, Any], most: int, where: str, kinds: tuple[str, ...] = ("plain_text", "mrkdwn")) -> list[str]:
    found = [] if text.get("type") in kinds else [f"{where}: type {text.get('type')}"]
    content = text.get("text", "")
    found += [] if 1 <= len(content) <= most else [f"{where}: {len(content)} characters"]
    if "emoji" in text and text["type"] != "plain_text":
        found.append(f"{where}: emoji in mrkdwn")
    found += _markup(content) if text.get("type") == "mrkdwn" else _turned(content)
    return found


def _markup(content: str) -> list[str]:
    """Return what of a run's text has become a mention or a link, or turns the text around it."""
    found = [f"markup: {content[one.start() : one.start() + 20]!r}" for one in _MENTION.finditer(content)]
    return found + _turned(content)


def _turned(content: str) -> list[str]:
    found = ["a control of direction"] if _BIDI.search(content) else []
    return found + ([] if content.count("\u2068") == content.count("\u2069") else ["an isolate that does not end"])


def _button(element: dict[str, Any]) -> list[str]:
    found = [] if element.get("type") == "button" else ["no button"]
    found += _text(element["text"], 75, "button", ("plain_text",))
    found += [] if len(element.get("value", "")) <= 2_000 else ["value too long"]
    found += [] if len(element.get("url", "")) <= 3_000 else ["url too long"]
    found += [] if 1 <= len(element.get("action_id", "")) <= 255 else ["action_id"]
    found += [] if element.get("style") in (None, "primary", "danger") else ["style"]
    return found


def _chart(block: dict[str, Any]) -> list[str]:
    found = [] if 1 <= len(block["title"]) <= 50 else ["chart title"]
    chart = block["chart"]
    axis, series = chart["axis_config"], chart["series"]
    categories = axis["categories"]
    found += [] if chart["type"] in ("line", "bar", "area") else ["chart type"]
    found += [] if 1 <= len(series) <= 6 and len({one["name"] for one in series}) == len(series) else ["series"]
    found += [] if 1 <= len(categories) <= 20 and len(set(categories)) == len(categories) else ["categories"]
    found += ["category"] if any(not 1 <= len(one) <= 20 for one in categories) else []
    found += [name for name in ("x_label", "y_label") if len(axis.get(name, "")) > 50]
    for one in series:
        found += [] if 1 <= len(one["name"]) <= 20 else ["series name"]
        found += [] if [point["label"] for point in one["data"]] == categories else ["labels are not the categories"]
        found += ["no finite value"] if any(not math.isfinite(point["value"]) for point in one["data"]) else []
    return found
