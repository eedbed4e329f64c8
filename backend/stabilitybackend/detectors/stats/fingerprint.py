"""Recognises data by the loss alone: what is new in each value of the loss is a fingerprint of its batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.detectors.engine.long_past import PAST_BLOCK, LongPast
from stabilitybackend.stateful import Stateful, fresh

from .innovations import STEPS_PER_SIGMA, ZERO, Innovations

#: Points whose signs are compared with those of the whole past: a word of the machine. By chance half of them agree,
#: at r = 0.8 four fifths. So many must that by chance one place is left, which is looked at closely.
WORD_POINTS = 64
#: A shorter lag is the structure of the job (alternating sources), not data that comes back; and two windows that
#: overlap say less than they seem to.
LEAST_LAG = WORD_POINTS
#: Chance that a search in a healthy run finds anything: 10,000 runs of 100,000 points would see half a hit together.
FALSE_HITS = 1e-8
#: Places looked at closely in one search, those with the most equal signs.
MAX_PLACES = 32
#: Points whose own correlations say how many of them are independent.
OWN_POINTS = 256
#: The least mean square that a stretch counts with, squared sigmas: half of the usual.
USUAL_SQUARE = 0.5
#: Two correlations differ when they lie so many standard errors apart.
DIFFERS = 3.0
#: Points back in which the beginning of a repetition is looked for.
BACK_POINTS = 4_096
NORMAL = NormalDist()
#: Words compared at once, so that they stay in the cache of the machine.
_WORDS = 32_768
_MASK = 2**WORD_POINTS - 1
#: Points of which nothing is known: a smooth curve has no fingerprints.
_NOTHING = bytes([ZERO]) * WORD_POINTS

__all__ = [
    "DIFFERS",
    "FALSE_HITS",
    "NORMAL",
    "Fingerprints",
    "Match",
    "Window",
    "correlation",
    "places_alike",
    "sign_words",
    "step_of",
    "sureness",
]


class Match(NamedTuple):
    """Where the newest points were met before.

    Args:
        lag: distance in points. r: correlation over the newest WORD_POINTS. sigmas: how far from chance.
    """

    lag: int
    r: float
    sigmas: float


class Fingerprints(Stateful):
    """The fingerprints of a run's effective path, and the search for the newest of them in all that came before.

    A byte a point goes into the run's long past. A search compares the signs of the newest 64 points with those of
    every block of the past at once, at all distances, and correlates what is left. How large a correlation must be
    follows from how many places were compared: the quantile of the normal distribution for Fisher's z.
    """

    blocks: int = 0
    _innovations: Innovations = fresh(Innovations)
    #: First step of each block that was taken and has no fingerprints yet.
    _steps: list[int] = fresh(list)

    def __init__(self) -> None:
        super().__init__()
        self._words, self._count = np.empty(0, np.uint64), 0

    def add(self, past: LongPast, step: int, block: list[float]) -> None:
        """Take PAST_BLOCK finite losses that begin at ``step``."""
        self._steps.append(step)
        known = self._innovations.add(block)
        for at in range(0, len(known), PAST_BLOCK):
            past.add(self.blocks, self._steps.pop(0), known[at : at + PAST_BLOCK])
            self.blocks += 1

    def search(self, past: LongPast) -> Match | None:
        """Return where the newest points were met before, None where nowhere."""
        end = len(past.data)
        if end < WORD_POINTS + LEAST_LAG + PAST_BLOCK or past.data.endswith(_NOTHING):
            return None
        window = Window.of(past.data)
        alike = places_alike(window, self._signs(past, window), end)
        lags = [end - at for _, at in alike if end - at >= LEAST_LAG]
        if not lags:
            return None
        return _likeliest(past.data, lags, NORMAL.inv_cdf(1 - FALSE_HITS / end))

    def goes_on(self, past: LongPast, lag: int) -> bool:
        """Say whether the newest points still agree with those ``lag`` points earlier."""
        [r] = _correlations(past.data, [lag])
        return past.data.endswith(_NOTHING) or sureness(r, WORD_POINTS) > DIFFERS

    def began(self, past: LongPast, lag: int) -> tuple[int, int]:
        """Return (first step since which the points agree with those ``lag`` earlier, step of those).

        The likeliest change from no correlation to half of today's: Page, Continuous inspection schemes, 1954.
        """
        values = (
            np.frombuffer(bytes(past.data), np.uint8)[-BACK_POINTS - lag :].astype(float) - ZERO
        ) / STEPS_PER_SIGMA
        products = values[lag:] * values[:-lag]
        since = np.cumsum((products - 0.5 * products[-WORD_POINTS:].mean())[::-1])
        place = len(past.data) - 1 - int(np.argmax(since))
        return step_of(past, place), step_of(past, place - lag)

    def _signs(self, past: LongPast, newest: Window) -> NDArray[np.uint64]:
        """Return the signs of each four blocks in a row as one word; those of the past are packed once."""
        count = len(past.steps) - WORD_POINTS // PAST_BLOCK + 1
        if self._count > count or len(self._words) < count:  # it went back or forgot what was long ago; it grew
            self._words, self._count = np.empty(2 * count, np.uint64), count
            self._words[:count] = sign_words(np.frombuffer(bytes(past.data), np.uint8))
        while self._count < count - 1:
            last = (self._count + WORD_POINTS // PAST_BLOCK) * PAST_BLOCK
            self._words[self._count] = _packed(past.data[last - WORD_POINTS : last])
            self._count += 1
        self._words[count - 1], self._count = newest.words[-1], count
        return self._words[:count]


def step_of(past: LongPast, place: int) -> int:
    """Return the step of a point by its place in the past; between the first steps of blocks they are even."""
    block, at = divmod(place, PAST_BLOCK)
    steps = past.steps
    to = min(block, len(steps) - 2)
    apart = (steps[to + 1] - steps[to]) / PAST_BLOCK if to >= 0 else 1.0
    return steps[block] + round(at * apart)


def _packed(data: bytes | bytearray) -> int:
    """Return the signs of fingerprints as bits, those of the first in the lowest."""
    return int.from_bytes(np.packbits(np.frombuffer(data, np.uint8) >= ZERO, bitorder="little").tobytes(), "little")


class Window(NamedTuple):
    """The newest 64 points as a word of signs, and those that end up to 15 points earlier.

    Args:
        words: uint64[PAST_BLOCK], the newest last.
    """

    words: NDArray[np.uint64]

    @classmethod
    def of(cls, data: bytes | bytearray | NDArray[np.uint8]) -> Window:
        """Return that of the last points of ``data``, WORD_POINTS + PAST_BLOCK at least."""
        newest = _packed(bytes(data[-WORD_POINTS - PAST_BLOCK :]))
        return cls(np.array([newest >> at & _MASK for at in range(1, PAST_BLOCK + 1)], np.uint64))


def places_alike(window: Window, words: NDArray[np.uint64], points: int) -> list[tuple[int, int]]:
    """Return (signs that differ, place after the last point) of those places in a past that are most like a window.

    Args:
        words: of the past, from ``sign_words``. points: in it.
    """
    most = int(WORD_POINTS / 2 - WORD_POINTS**0.5 / 2 * NORMAL.inv_cdf(1 - 1 / points))
    best = np.empty(0, np.int64)  # signs that differ and place as one number, the smallest ones
    rows = max(1, _WORDS // len(words))
    for row in range(0, PAST_BLOCK, rows):
        differ = np.bitwise_count(words ^ window.words[row : row + rows, None]).ravel()
        found = np.flatnonzero(differ <= most)
        if not len(found):
            continue
        at, place = np.divmod(found, len(words))
        # This one of the window's words ends some points before the newest, the past's with block ``place`` + 3.
        ends = place * PAST_BLOCK + WORD_POINTS + PAST_BLOCK - 1 - row - at
        best = np.append(best, differ[found].astype(np.int64) << 32 | ends)
        if len(best) > MAX_PLACES:  # a smooth curve is like itself everywhere
            best = np.partition(best, MAX_PLACES)[:MAX_PLACES]
    return [(one >> 32, one & 2**32 - 1) for one in np.sort(best).tolist()]


def sign_words(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the signs of each four blocks in a row as one word."""
    halves = np.packbits(data >= ZERO, bitorder="little").view(np.uint16)
    return np.lib.stride_tricks.sliding_window_view(halves, WORD_POINTS // PAST_BLOCK).copy().view(np.uint64)[:, 0]


def _likeliest(data: bytes | bytearray, lags: Sequence[int], least: float) -> Match | None:
    """Return the match at the shortest lag that is as good as the best, None where all are poor."""
    rs = _correlations(data, lags)
    if sureness(max(rs), WORD_POINTS) < least:
        return None
    free = WORD_POINTS * _independent(data)
    matches = [Match(lag, r, sureness(r, free)) for lag, r in zip(lags, rs, strict=True)]
    best = max(match.sigmas for match in matches)
    # Alternating sources agree at short lags as well: this is how the job is made.
    if best - sureness(max(_correlations(data, range(2, LEAST_LAG))), free) < DIFFERS:
        return None
    good = [match for match in matches if match.sigmas > max(least, best - DIFFERS)]
    return min(good, default=None)


def _correlations(data: bytes | bytearray, lags: Sequence[int]) -> list[float]:
    """Return Pearson's r of the newest WORD_POINTS points with those at each of the lags.

    A stretch that moves less than usual is taken as if it moved as usual: where a few points stand out of nothing they
    are no sample that a correlation could be known from.
    """
    ends = [len(data) - lag for lag in (0, *lags)]
    parts = b"".join([data[end - WORD_POINTS : end] for end in ends])
    rows = np.frombuffer(parts, np.uint8).reshape(-1, WORD_POINTS) / STEPS_PER_SIGMA
    rows -= np.add.reduce(rows, axis=1, keepdims=True) / WORD_POINTS
    squares = np.maximum(np.einsum("ij,ij->i", rows, rows), USUAL_SQUARE * WORD_POINTS)
    found: list[float] = (rows[1:] @ rows[0] / np.sqrt(squares[1:] * squares[0])).tolist()
    return found


def _independent(data: bytes | bytearray) -> float:
    """Return which part of the newest points is independent of the others, by their own correlations.

    Two series with correlations c(k) of their own correlate by chance as if they had n / (1 + 2 sum c(k)^2) points:
    Bartlett 1946; Box, Jenkins, Reinsel and Ljung, Time Series Analysis, chapter 12.1. Sources that alternate, and what
    remains of a smooth curve, count as few points so.
    """
    newest = np.frombuffer(bytes(data[-OWN_POINTS:]), np.uint8).astype(float)
    newest -= newest.mean()
    power = np.abs(np.fft.rfft(newest, 2 * len(newest))) ** 2
    own = np.fft.irfft(power)[: len(newest) // 2]
    if not own[0]:
        return 0.0
    own = own[1:] / own[0]
    return 1 / (1 + 2 * max(0.0, float(own @ own) - len(own) / len(newest)))


def sureness(r: float, points: float) -> float:
    """Return how many sigmas a correlation of white noise over ``points`` lies from chance: Fisher's z.

    Example:
        >>> round(sureness(0.8, 64), 2)
        8.58
    """
    return math.atanh(max(-0.9999, min(0.9999, r))) * math.sqrt(max(0.0, points - 3))


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
