"""Which data set carries a spike of the loss: a first, plain answer from the per-dataset losses. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

__all__ = ["BASELINE_STEPS", "culprit"]

#: Steps before the onset whose median counts as the usual level.
BASELINE_STEPS = 32
#: Share of all rises, each relative to its own level, that one data set must carry to be named alone.
MIN_SHARE = 0.6


def culprit(losses: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> str | None:
    """Return the data set that carries most of the rise, None where none does or there is only one.

    Args:
        losses: data set -> (values of the steps before the onset, values from the onset to where it was seen).
    """
    rises: dict[str, float] = {}
    for name, (before, since) in losses.items():
        usual = [v for v in before if math.isfinite(v)]
        peak = [v for v in since if math.isfinite(v)]
        if usual and peak:
            level = statistics.median(usual)
            rises[name] = max(0.0, max(peak) - level) / max(abs(level), 1e-9)
    total = sum(rises.values())
    if len(rises) < 2 or total <= 0:
        return None
    name, rise = max(rises.items(), key=lambda item: item[1])
    return name if rise / total >= MIN_SHARE else None
