"""Binomial bands of realised shares around declared ones, with the run's own sample size.

Data come in documents, packed rows and shards: the share of a data set in a row varies more (or, drawn in strata, less)
than of single tokens. The effective sample size is that of independent draws with the variance of the run's own blocks
(design effect, Kish 1965). A share x of n draws at p lies outside the band where n KL(x || p) is above a limit
(Chernoff's bound on the binomial's tail, which also holds for rare sets).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

__all__ = ["Bands", "Spread", "excess", "limit"]

#: Intervals of 1, 2, 4, 8 and 16 blocks are compared with their neighbours: where documents or shards span blocks,
#: longer ones vary more.
STRETCHES = 5
#: Newest blocks of the spread: 15 differences of intervals of 128 rows.
SPREAD_BLOCKS = 256
#: Fewest differences of neighbouring intervals for a spread.
MIN_DIFFERENCES = 8
#: Most independent draws of a block: a strict sampler's rounding alone varies by this little.
MOST_DRAWS = 1e9
#: Median of a squared normal of variance 1, the divisor of the median of squared differences.
MEDIAN_SQUARE = 0.4549
#: Steps of the bisection for the edges of a band, from an interval of 1 to 1e-12.
HALVINGS = 40


@dataclass(slots=True)
class Spread:
    """Variance of the share of one data set from block to block, and over longer intervals; a block costs 1 us.

    By differences of neighbours: an old move, or a level other than the declared one, is no noise.
    """

    #: For each length of intervals: squared differences of neighbours, the newest ones, and their sum.
    squares: list[list[float]] = field(default_factory=lambda: [[] for _ in range(STRETCHES)])
    sums: list[float] = field(default_factory=lambda: [0.0] * STRETCHES)
    #: The share of the newest whole interval, and of the first half of the next one; None for none.
    newest: list[float | None] = field(default_factory=lambda: [None] * STRETCHES)
    half: list[float | None] = field(default_factory=lambda: [None] * STRETCHES)

    def add(self, share: float) -> None:
        """Take the share of a block, 0 to 1."""
        for length in range(STRETCHES):
            before, self.newest[length] = self.newest[length], share
            if before is not None:
                kept, square = self.squares[length], (share - before) ** 2
                kept.append(square)
                self.sums[length] += square
                if len(kept) >= SPREAD_BLOCKS >> length:
                    self.sums[length] -= kept.pop(0)
            half = self.half[length]
            if half is None:
                self.half[length] = share
                return
            self.half[length], share = None, 0.5 * (half + share)

    def cut(self) -> None:
        """Separate the next blocks from earlier ones: a move at a resume or to another mixture is no noise."""
        self.newest, self.half = [None] * STRETCHES, [None] * STRETCHES

    def sample_size(self, declared: float) -> tuple[float, int]:
        """Return the effective sample size of one block, and the number of differences behind it (0: unknown).

        Args:
            declared: the declared share, 0 to 1.
        """
        spread, known = 0.0, 0
        for length, squares in enumerate(self.squares):
            if len(squares) < MIN_DIFFERENCES:
                break
            varies = (1 << length) * self.sums[length] / (2 * len(squares))
            if varies >= spread:
                spread, known = varies, len(squares)
        if not known:
            return 0.0, 0
        level = min(max(declared, 1e-6), 1 - 1e-6)
        return min(MOST_DRAWS, level * (1 - level) / max(spread, 1e-18)), known


def excess(draws: float, share: float, declared: float) -> float:
    """Return n KL(x || p): distance of a share of so many draws from the declared one, in nats."""
    if share == declared:
        return 0.0
    found = 0.0
    for x, p in ((share, declared), (1 - share, 1 - declared)):
        if x > 0:
            found += x * math.log(x / p) if p > 0 else math.inf
    return draws * max(0.0, found)


def limit(nats: float, differences: int) -> float:
    """Return the excess of chance with probability ``exp(-nats)``, for a spread of so many differences.

    Student's t in place of the normal: neighbouring differences hold two thirds of their number (von Neumann 1941).
    """
    freedom = max(1.0, 2 * differences / 3)
    return 0.5 * freedom * math.expm1(min(2 * nats / (freedom + 1), 50.0))


def band(draws: float, declared: float, most: float) -> tuple[float, float]:
    """Return the lowest and the highest share whose excess is at most ``most``."""
    if draws <= 0:
        return 0.0, 1.0
    edges = []
    for end in (0.0, 1.0):
        inside, outside = declared, end
        if excess(draws, end, declared) <= most:
            edges.append(end)
            continue
        for _ in range(HALVINGS):
            middle = 0.5 * (inside + outside)
            if excess(draws, middle, declared) <= most:
                inside = middle
            else:
                outside = middle
        edges.append(inside)
    return edges[0], edges[1]


@dataclass(frozen=True, slots=True)
class Bands:
    """The bands along a run at one moment. Pure: for any thread.

    By the median difference of neighbouring intervals where judging takes the mean: a fault in the drawn interval must
    not widen its own band.

    Attributes:
        squares: data set -> squares of ``Spread``.
        block_rows: rows of a block. nats: of the limit (``limit``). strictness: its divisor, 0: no band.
        least: a deviation up to this fraction of the declared share, or of the rest, is always inside.
    """

    squares: Mapping[str, Sequence[Sequence[float]]]
    block_rows: int
    nats: float
    strictness: float
    least: float

    def of(self, dataset: str, declared: float, rows: float) -> tuple[float, float] | None:
        """Return the lowest and the highest share of so many rows together; None for too few."""
        known = [one for one in self.squares.get(dataset, ()) if len(one) >= MIN_DIFFERENCES]
        if not known or not self.strictness or rows <= 0:
            return None
        varies, differences = max(
            ((1 << length) * median(squares) / (2 * MEDIAN_SQUARE), len(squares))
            for length, squares in enumerate(known)
        )
        level = min(max(declared, 1e-6), 1 - 1e-6)
        draws = min(MOST_DRAWS, level * (1 - level) / max(varies, 1e-18))
        low, high = band(draws * rows / self.block_rows, declared, limit(self.nats, differences) / self.strictness)
        least = self.least * min(declared, 1 - declared)
        return max(0.0, min(low, declared - least)), min(1.0, max(high, declared + least))
