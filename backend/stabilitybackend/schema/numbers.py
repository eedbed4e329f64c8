"""Numbers as JSON has them: it knows no NaN and no infinity, so these travel as words."""

from __future__ import annotations

from typing import Literal

__all__ = ["Number"]

#: A logged value: a number, or the name of one that is none.
Number = float | Literal["NaN", "Infinity", "-Infinity"]
