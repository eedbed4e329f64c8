"""Which of the values that a script logs is the step of its training: one table for the tee and for imports of files.

W&B and Trackio count calls by themselves where a script gives no step, and scripts log the step of their training
among the other values.
"""

from __future__ import annotations

import re

__all__ = ["STEP_NAMES", "names_steps", "whole"]

#: Names under which trainers log their step, the surest first: Lightning's, Hugging Face's, then those of own loops.
STEP_NAMES = (
    "trainer/global_step", "train/global_step", "global_step", "train/step", "train/iter", "iteration", "iter", "step",
)  # fmt: skip
_COUNTS = re.compile(r"(^|[_/.])(steps?|iters?|iterations?|updates?)$")
_OTHERS = re.compile(r"(^|[_/.])(val|valid|validation|eval|test)[_/.]")


def names_steps(name: str) -> bool:
    """Return whether a metric's name is that of a count of training steps: ``custom_step``, and not ``val/step``."""
    return _COUNTS.search(name) is not None and _OTHERS.search(name) is None


def whole(value: object) -> int | None:
    """Return a step from 0 on as an int, None for other values. Reads nothing from a device."""
    if type(value) is int:
        return value if value >= 0 else None
    if isinstance(value, bool) or value is None or getattr(value, "is_cuda", False):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
        return int(number) if 0 <= number < 2**53 and number == int(number) else None
    except Exception:  # a text, an array of several numbers, a foreign class
        return None
