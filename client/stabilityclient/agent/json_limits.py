"""Makes event data what the server takes: one text that is too long or too deep would hold up all that follows it."""

from __future__ import annotations

from typing import Any

__all__ = ["MAX_TEXT_CHARS", "within_limits"]

#: Longest text, characters: stacks have 60,000; the server takes 100,000.
MAX_TEXT_CHARS = 60_000
#: Deepest nesting; the server takes 20 levels.
MAX_DEPTH = 16
#: Longest text and list of an event that is too long as a whole.
SHORT_CHARS, SHORT_ITEMS = 15_000, 100


def within_limits(value: Any, *, short: bool = False, depth: int = MAX_DEPTH) -> Any:
    """Return ``value`` as JSON and MessagePack can hold it; what is too much of it is cut.

    Args:
        short: cut long texts at their beginning and long lists at their end. depth: levels that are left.
    """
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)[:40]
    if isinstance(value, str):
        # Of stacks the end matters. Half a surrogate pair comes from file names that are no UTF-8.
        return value[-(SHORT_CHARS if short else MAX_TEXT_CHARS) :].encode("utf-8", "replace").decode()
    if depth <= 0 or not isinstance(value, dict | list | tuple):
        return str(value)[:200].encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {
            within_limits(str(key)[:200]): within_limits(each, short=short, depth=depth - 1)
            for key, each in value.items()
        }
    return [within_limits(each, short=short, depth=depth - 1) for each in (value[:SHORT_ITEMS] if short else value)]
