"""What ``chaos_rank.py`` logs: a value that tells its attempt and step, and now and then a NaN."""

from __future__ import annotations

import math
import zlib

__all__ = ["value_of"]


def value_of(run_id: str, attempt: int, step: int) -> float:
    """Return the loss of a step of an attempt; three steps in about a hundred and fifty are NaN."""
    if step > 50 and zlib.crc32(f"{run_id} {attempt} {step // 3}".encode()) % 50 == 0:
        return math.nan
    return 2.0 + attempt / 64 + (zlib.crc32(f"{run_id} {step}".encode()) % 1024) / 2**20
