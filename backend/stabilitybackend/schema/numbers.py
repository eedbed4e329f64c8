"""Numbers as JSON has them: it knows no NaN and no infinity, so these travel as words."""

from __future__ import annotations

import math
from typing import Literal

__all__ = ["Number", "json_number"]

#: A logged value: a number, or the name of one that is none.
Number = float | Literal["NaN", "Infinity", "-Infinity"]


def json_number(value: float) -> Number:
    """Return a value as JSON has it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
