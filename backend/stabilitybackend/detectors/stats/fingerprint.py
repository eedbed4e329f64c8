"""Recognises batches by the loss alone: what the loss misses its own trend by is a fingerprint of the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import mul

from .robust import MEDIAN_ERROR, median

#: Points whose residuals are taken at once, from the line between the medians of the blocks before and after.
BLOCK_POINTS = 16
#: Residuals that are remembered, one byte each: further back nothing is recognised.
HISTORY_POINTS = 2_048
#: Residuals that are compared. Two runs on the same data order agree at r >= 0.96 over 50 points, on others below 0.35.
WINDOW_POINTS = 48
#: The same data: correlation above this.
SAME = 0.8
#: A shorter lag is the structure of the job (alternating sources), not data that comes back.
LEAST_LAG = 64
#: Bytes of a residual: 0 is -4 sigmas, 128 is none, 255 just below 4 sigmas.
STEPS_PER_SIGMA = 32.0
#: Smallest sigma, as a fraction of the loss: below it there is no noise to recognise anything by.
NOISE_FLOOR = 5e-4
#: Part of the window's residuals above 0 that must be above 0 in the past as well, to be looked at closely. At r = 0.9
#: it is 0.86, by chance 0.5.
COINCIDENCES = 0.77
#: Places looked at closely in one search; a curve that agrees with itself at more of them is periodic.
MAX_PLACES = 12

_ABOVE = bytes(1 if byte > 128 else 0 for byte in range(256))
_ENOUGH = [bytes(1 if byte >= least else 0 for byte in range(256)) for least in range(WINDOW_POINTS + 1)]

__all__ = ["BLOCK_POINTS", "SAME", "WINDOW_POINTS", "Fingerprints", "correlation", "residuals"]


@dataclass(slots=True)
class Fingerprints:
    """The residuals of the newest points of one loss, and the search for the newest of them in the past.

    The search compares signs at all lags at once: signs packed into bytes of two large integers, whose product holds
    the number of coincidences of every lag in a byte of its own. What remains is compared exactly.
    """

    #: The newest block, which has no residuals yet, and the medians of the three newest ones.
    _newest: list[float] = field(default_factory=list)
    _medians: list[float] = field(default_factory=list)
    _history: bytes = b""
    #: Noise of the residuals, a mean over some blocks.
    _sigma: float = 0.0
    #: First step of each remembered block, oldest first.
    _steps: list[int] = field(default_factory=list)

    def add(self, step: int, block: Sequence[float]) -> None:
        """Take BLOCK_POINTS finite losses that begin at ``step``."""
        before, self._newest = self._newest, list(block)
        medians = self._medians = [*self._medians[-2:], median(block)]
        self._steps.append(step)
        if len(medians) < 3:
            return
        missed = residuals(before, medians[0], medians[2])
        sigma = MEDIAN_ERROR * sum(map(abs, missed)) / BLOCK_POINTS
        self._sigma = 0.75 * self._sigma + 0.25 * sigma if self._sigma else sigma
        self._history += self._bytes(missed, medians[1])
        if len(self._history) > HISTORY_POINTS:
            self._history = self._history[BLOCK_POINTS:]
            del self._steps[0]

    def repeated(self) -> tuple[int, float, int, int] | None:
        """Return (lag in points, r, first step of the newest window, first step where it was met before), or None."""
        history = self._history
        points = len(history)
        if points < WINDOW_POINTS + LEAST_LAG:
            return None
        window = history[-WINDOW_POINTS:]
        bits = window.translate(_ABOVE)
        ones = bits.count(1)
        if not WINDOW_POINTS // 4 <= ones <= 3 * WINDOW_POINTS // 4:
            return None
        product = int.from_bytes(history.translate(_ABOVE), "little") * int.from_bytes(bits, "big")
        counts = product.to_bytes(points + WINDOW_POINTS, "little")[WINDOW_POINTS - 1 : points]
        places = counts.translate(_ENOUGH[math.ceil(COINCIDENCES * ones)])
        place, looked, best, best_r = places.find(1), 0, -1, SAME
        own = points - WINDOW_POINTS
        while 0 <= place < own:
            looked += 1
            r = correlation(window, history[place : place + WINDOW_POINTS])
            if (r > 0.5 and own - place < LEAST_LAG) or looked > MAX_PLACES:
                return None
            if r > best_r:
                best, best_r = place, r
            place = places.find(1, place + 1)
        if best < 0:
            return None
        return own - best, best_r, self._step_at(own), self._step_at(best)

    def _bytes(self, missed: Sequence[float], level: float) -> bytes:
        if self._sigma <= NOISE_FLOOR * abs(level):
            return b"\x80" * BLOCK_POINTS
        scale = STEPS_PER_SIGMA / self._sigma
        return bytes([128 + int(max(-128.0, min(127.0, miss * scale))) for miss in missed])

    def _step_at(self, place: int) -> int:
        """Return about the step of a residual: the first step of its block."""
        blocks = len(self._history) // BLOCK_POINTS
        # The newest block has no residuals yet: its trend is not known.
        return self._steps[max(0, len(self._steps) - 1 - blocks + place // BLOCK_POINTS)]


def residuals(block: Sequence[float], before: float, after: float) -> list[float]:
    """Return what the values of a block miss the line by that joins the medians of the blocks before and after it."""
    slope = (after - before) / (2 * BLOCK_POINTS)
    first = 0.5 * (before + after) - slope * (BLOCK_POINTS - 1) / 2
    return [value - first - slope * i for i, value in enumerate(block)]


def correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Pearson's r of two equally long series, 0.0 where one of them does not move.

    Example:
        >>> correlation([1, 2, 3], [2, 4, 6]), correlation([1, 1, 1], [1, 2, 3])
        (1.0, 0.0)
    """
    count = len(one)
    sum_one, sum_other = sum(one), sum(other)
    both = sum(map(mul, one, other)) - sum_one * sum_other / count
    square_one = sum(map(mul, one, one)) - sum_one * sum_one / count
    square_other = sum(map(mul, other, other)) - sum_other * sum_other / count
    return both / math.sqrt(square_one * square_other) if square_one > 0 and square_other > 0 else 0.0
