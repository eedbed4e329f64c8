"""Interruptions in numbers, for what is worked out from them."""

from __future__ import annotations

from stabilitybackend.schema.fleet import InterruptionNumbers

__all__ = ["NO_STOPS", "stops"]


def stops(count: int, running_s: float, ranks: int = 1) -> InterruptionNumbers:
    """Return the numbers of so many interruptions in so long a time on so many GPUs."""
    return InterruptionNumbers(
        count=count,
        time_lost_s=0.0,
        running_s=running_s,
        rank_s=running_s * ranks,
        gpu_hours=running_s * ranks / 3600,
        mtbi_s=running_s / count if count else None,
        per_1000_gpu_hours=None,
    )


#: Of a run, and of all: nothing was ever interrupted.
NO_STOPS = (stops(0, 0.0), stops(0, 0.0))
