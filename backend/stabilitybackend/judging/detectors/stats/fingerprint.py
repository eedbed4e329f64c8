"""Recognition of data by the loss alone: the innovation of each value is a fingerprint of its batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from operator import mul
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.detectors.engine.long_past import MAX_PAST_BLOCKS, PAST_BLOCK, LongPast

from .innovations import STEPS_PER_SIGMA, ZERO, Innovations

#: Points whose signs are compared with those of the whole past: a word of the machine. By chance half of them agree, at
#: r = 0.8 four fifths. The limit leaves one place by chance, for a closer comparison.
WORD_POINTS = 64
#: The blocks of a word.
WORD_BLOCKS = WORD_POINTS // PAST_BLOCK
#: A shorter lag is the structure of the job (alternating sources), not repeated data; and overlapping windows are weak
#: evidence.
LEAST_LAG = WORD_POINTS
#: Blocks of the past for which a search waits one block more, up to a whole word: the cost of a search grows with the
#: past.
SLOWER_BLOCKS = 1_024
#: Probability that a search in a healthy run finds anything: 10,000 runs of 100,000 points would see half a hit
#: together.
FALSE_HITS = 1e-8
#: Places of one search compared closely, those with the most equal signs.
MAX_PLACES = 32
#: Points whose own correlations give the number of independent ones.
OWN_POINTS = 256
#: Least mean square of an interval, squared sigmas: half of the usual.
USUAL_SQUARE = 0.5
#: Least distance of two different correlations, standard errors.
DIFFERS = 3.0
#: Points back in which the beginning of a repetition is searched.
BACK_POINTS = 4_096
NORMAL = NormalDist()
#: Words compared in one go, so that they stay in the cache of the machine.
_WORDS = 32_768
#: Distance of each of a window's words from the word before the newest, points.
_EARLIER = np.arange(1, PAST_BLOCK + 1, dtype=np.uint64)
#: Points without an innovation: a smooth curve has no fingerprints.
_NOTHING = bytes([ZERO]) * WORD_POINTS

__all__ = [
    "DIFFERS",
    "FALSE_HITS",
    "NORMAL",
    "Fingerprints",
    "SignWindow",
    "correlation",
    "places_alike",
    "sign_words",
    "step_of",
    "sureness",
]


class Match(NamedTuple):
    """Earlier place of the newest points.

    Args:
        lag: distance in points. r: correlation over the newest WORD_POINTS. sigmas: distance from chance.
    """

    lag: int
    r: float
    sigmas: float


class Fingerprints(Stateful):
    """The fingerprints of a run's effective path, and the search for the newest of them in all earlier ones.

    A byte a point goes into the run's long past. A search compares the signs of the newest 64 points with those of
    every block of the past in one pass, at all distances, and correlates the candidates. The required correlation
    follows from the number of compared places: the quantile of the normal distribution for Fisher's z.
    """

    blocks: int = 0
    _innovations: Innovations = fresh(Innovations)
    #: First step of each block without fingerprints yet.
    _steps: list[int] = fresh(list)

    def __init__(self) -> None:
        super().__init__()
        self._words, self._count = np.empty(0, np.uint64), 0

    def add(self, past: LongPast, step: int, block: list[float]) -> None:
        """Take PAST_BLOCK finite losses that begin at ``step``."""
        self._take(past, [step], block)

    def add_unmet(self, past: LongPast, steps: Sequence[int], losses: Sequence[float]) -> int:
        """Take blocks up to the first match of ``search``; return their number.

        Args:
            steps: of their starts. losses: PAST_BLOCK finite ones for each.
        """
        room = max(0, MAX_PAST_BLOCKS - max(0, self.blocks - past.dropped))  # nothing is forgotten in between
        steps = steps[:room]
        blocks, waiting, innovations = self.blocks, self._steps, copy(self._innovations)
        self._take(past, steps, losses[: PAST_BLOCK * len(steps)])
        met = self._first_met(past, self.blocks - blocks)
        if met is None:
            return len(steps)
        unmet = met[0] - blocks - len(waiting)
        self.blocks, self._steps, self._innovations = blocks, waiting, innovations
        past.cut(blocks)
        self._take(past, steps[:unmet], losses[: PAST_BLOCK * unmet])
        self._count = min(self._count, max(0, len(past.steps) - WORD_BLOCKS + 1))
        return unmet

    def _take(self, past: LongPast, steps: Sequence[int], losses: Sequence[float]) -> None:
        known = self._innovations.add(losses)
        count = len(known) // PAST_BLOCK
        waiting = [*self._steps, *steps]
        for at in range(count):
            past.add(self.blocks + at, waiting[at], known[at * PAST_BLOCK : (at + 1) * PAST_BLOCK])
        self.blocks, self._steps = self.blocks + count, waiting[count:]

    def search(self, past: LongPast) -> Match | None:
        """Return the earlier place of the newest points, None for none."""
        met = self._first_met(past, 1)
        return None if met is None else met[1]

    def _first_met(self, past: LongPast, blocks: int) -> tuple[int, Match] | None:
        """Return the first of the newest blocks with an earlier place, and that."""
        data, count = past.data, len(past.steps)
        least = WORD_BLOCKS + LEAST_LAG // PAST_BLOCK + 1
        ends = [
            end
            for block in range(max(least, count - blocks + 1), count + 1)
            if (past.dropped + block) % min(WORD_BLOCKS, 1 + block // SLOWER_BLOCKS) == 0
            if data[(end := block * PAST_BLOCK) - WORD_POINTS : end] != _NOTHING
        ]
        if not ends:
            return None
        words = self._signs(past)
        lags: dict[int, list[int]] = {}
        for end, window in zip(ends, _windows(words, ends), strict=True):
            alike = places_alike(window, words[: (end - LEAST_LAG) // PAST_BLOCK - WORD_BLOCKS + 1], end)
            if far := [end - at for _, at in alike if end - at >= LEAST_LAG]:
                lags[end] = far
        rs = iter(_correlations(data, lags) if lags else ())
        for end, some in lags.items():
            match = _likeliest(data, end, some, [next(rs) for _ in some])
            if match is not None:
                return past.dropped + end // PAST_BLOCK - 1, match
        return None

    def goes_on(self, past: LongPast, lag: int) -> bool:
        """Return whether the newest points still agree with those ``lag`` points earlier."""
        [r] = _correlations(past.data, {len(past.data): [lag]})
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

    def _signs(self, past: LongPast) -> NDArray[np.uint64]:
        """Return the signs of each four blocks in a row as one word; those of the past are packed once."""
        count = len(past.steps) - WORD_BLOCKS + 1
        known = self._count if self._count <= count else 0  # the distant past is forgotten
        if len(self._words) < count:
            self._words = np.concatenate([self._words[:known], np.empty(2 * count - known, np.uint64)])
        if known < count:
            self._words[known:count] = sign_words(np.frombuffer(past.data[known * PAST_BLOCK :], np.uint8))
        self._count = count
        return self._words[:count]


def step_of(past: LongPast, place: int) -> int:
    """Return the step of a point by its index in the past; steps are even within a block."""
    block, at = divmod(place, PAST_BLOCK)
    steps = past.steps
    to = min(block, len(steps) - 2)
    apart = (steps[to + 1] - steps[to]) / PAST_BLOCK if to >= 0 else 1.0
    return steps[block] + round(at * apart)


class SignWindow(NamedTuple):
    """The newest 64 points as a word of signs, and those that end up to 15 points earlier.

    Args:
        words: uint64[PAST_BLOCK], the newest last.
    """

    words: NDArray[np.uint64]

    @classmethod
    def of(cls, data: NDArray[np.uint8]) -> SignWindow:
        """Return the window of the last points of ``data``, WORD_POINTS + PAST_BLOCK at least."""
        [window] = _windows(sign_words(data[-WORD_POINTS - PAST_BLOCK :]), [WORD_POINTS + PAST_BLOCK])
        return window


def _windows(words: NDArray[np.uint64], ends: Sequence[int]) -> list[SignWindow]:
    """Return the windows at some ends of blocks of a past, from its ``sign_words``."""
    last = np.array(ends) // PAST_BLOCK - WORD_BLOCKS
    before, newest = words[last - 1, None] >> _EARLIER, words[last, None] >> np.uint64(WORD_POINTS - PAST_BLOCK)
    return list(map(SignWindow, before | newest << np.uint64(WORD_POINTS) - _EARLIER))


def places_alike(window: SignWindow, words: NDArray[np.uint64], points: int) -> list[tuple[int, int]]:
    """Return (differing signs, index after the last point) of the places in a past most similar to a window.

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


def _likeliest(data: bytes | bytearray, end: int, lags: Sequence[int], rs: Sequence[float]) -> Match | None:
    """Return the match at the shortest lag that is as good as the best, None for poor ones.

    Args:
        end: of the window. rs: its correlations at the lags.
    """
    least = NORMAL.inv_cdf(1 - FALSE_HITS / end)
    if sureness(max(rs), WORD_POINTS) < least:
        return None
    free = WORD_POINTS * _independent(data[max(0, end - OWN_POINTS) : end])
    matches = [Match(lag, r, sureness(r, free)) for lag, r in zip(lags, rs, strict=True)]
    best = max(match.sigmas for match in matches)
    # Alternating sources agree at short lags as well: the structure of the job.
    if best - sureness(max(_correlations(data, {end: range(2, LEAST_LAG)})), free) < DIFFERS:
        return None
    good = [match for match in matches if match.sigmas > max(least, best - DIFFERS)]
    return min(good, default=None)


def _correlations(data: bytes | bytearray, lags: Mapping[int, Sequence[int]]) -> list[float]:
    """Return Pearson's r of windows of WORD_POINTS points with those at each of their lags.

    An interval that moves less than usual counts with the usual movement: a few outliers are no sample for a
    correlation. The sums are of whole numbers: they do not round.

    Args:
        lags: end of the window -> its lags.
    """
    ends = [*lags, *(end - lag for end, some in lags.items() for lag in some)]
    points = b"".join([data[end - WORD_POINTS : end] for end in ends])
    rows = np.frombuffer(points, np.uint8).reshape(-1, WORD_POINTS).astype(float) - ZERO
    sums = np.add.reduce(rows, axis=1)
    squares = WORD_POINTS * np.einsum("ij,ij->i", rows, rows) - sums * sums
    scales = np.sqrt(np.maximum(squares, USUAL_SQUARE * (WORD_POINTS * STEPS_PER_SIGMA) ** 2))
    own = np.repeat(np.arange(len(lags)), [len(some) for some in lags.values()])
    both = WORD_POINTS * np.einsum("ij,ij->i", rows[own], rows[len(lags) :]) - sums[own] * sums[len(lags) :]
    found: list[float] = (both / (scales[own] * scales[len(lags) :])).tolist()
    return found


def _independent(data: bytes | bytearray) -> float:
    """Return the independent fraction of some points, by their own correlations.

    Two series with correlations c(k) of their own correlate by chance as if they had n / (1 + 2 sum c(k)^2) points:
    Bartlett 1946; Box, Jenkins, Reinsel and Ljung, Time Series Analysis, chapter 12.1. Alternating sources, and
    residues of a smooth curve, count as few points so.
    """
    newest = np.frombuffer(data, np.uint8).astype(float)
    newest -= newest.mean()
    power = np.abs(np.fft.rfft(newest, 2 * len(newest))) ** 2
    own = np.fft.irfft(power)[: len(newest) // 2]
    if not own[0]:
        return 0.0
    own = own[1:] / own[0]
    return 1 / (1 + 2 * max(0.0, float(own @ own) - len(own) / len(newest)))


def sureness(r: float, points: float) -> float:
    """Return the distance from chance of a correlation of white noise over ``points``, sigmas: Fisher's z.

    Example:
        >>> round(sureness(0.8, 64), 2)
        8.58
    """
    return math.atanh(max(-0.9999, min(0.9999, r))) * math.sqrt(max(0.0, points - 3))


def correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Pearson's r of two equally long series, 0.0 for a constant one.

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
