"""Noisy metrics, as opposed to counters, constants, flags and schedules."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["is_noisy"]

#: Around a line through so many points independent noise turns at two of three (turning point test, Kendall 1973), a
#: schedule or a counter at one of six at most, at a bend.
LINE_POINTS = 8
TURNS = 0.25
#: Least noise as a fraction of the level: float32 rounding of a schedule.
LEAST_NOISE = 1e-4


def is_noisy(values: NDArray[np.float64]) -> bool:
    """Return whether finite values, float64 (n,), have noise of their own; n is a multiple of LINE_POINTS.

    Example:
        >>> rng = np.random.default_rng(1)
        >>> is_noisy(rng.normal(2, 0.1, 64)), is_noisy(np.arange(64.0)), is_noisy(np.cos(np.arange(64) / 40))
        (True, False, False)
    """
    if len(np.unique(values)) <= len(values) // 2:
        return False
    parts = values.reshape(-1, LINE_POINTS)
    at = np.arange(LINE_POINTS) - 0.5 * (LINE_POINTS - 1)
    around = parts - parts.mean(axis=1, keepdims=True) - np.outer(parts @ at / (at @ at), at)
    moves = np.diff(around, axis=1)
    turns = float(np.mean(moves[:, 1:] * moves[:, :-1] < 0))
    return turns >= TURNS and float(np.median(np.abs(around))) > LEAST_NOISE * abs(float(np.median(values)))
