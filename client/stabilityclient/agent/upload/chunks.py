"""Finds the chunks of a spool."""

from __future__ import annotations

import os

__all__ = ["chunk_numbers"]


def chunk_numbers(folder: str) -> list[int]:
    """Return the numbers of the chunks in a source's folder, in order; none where it can't be read."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(name[:-6]) for name in names if name.endswith(".spool") and name[:-6].isdigit())
