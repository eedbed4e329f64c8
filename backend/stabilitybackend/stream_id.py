"""Ids of entries in Redis streams, as something that sorts."""

from __future__ import annotations

__all__ = ["stream_order"]


def stream_order(cursor: str) -> tuple[int, int]:
    """Return a stream id ``ms-n`` as something that sorts; anything else sorts first."""
    left, _, right = cursor.partition("-")
    try:
        return int(left), int(right or 0)
    except ValueError:
        return -1, 0
