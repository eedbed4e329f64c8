"""One share of the data mixture in blocks of points: its usual level, its noise, and where it left them."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from .before_fork import FORK_CONFIRM, FORK_POINTS, FORK_WINDOW
from .levels import Level, level_of, quantum
from .robust import MEDIAN_ERROR, median

#: Points that are judged as one, by the mean of their middle half.
BLOCK_POINTS = 16
#: Blocks that the usual level is taken from, and how many must be known before anything is reported.
USUAL_BLOCKS = 16
LEAST_BLOCKS = 3
#: The usual level is measured once in so many blocks, and whenever a block may be away from it.
MEASURE_BLOCKS = 8
#: Smallest sigma of a point, as a fraction of the level.
SIGMA_FLOOR = 0.005
#: It has this many times the noise of one point.
BLOCK_NOISE: float = MEDIAN_ERROR / BLOCK_POINTS**0.5
#: A block is away from the level by so many sigmas of blocks.
BLOCK_SIGMAS = 5.0
#: A shift is sudden when this part of it comes within so many points on both sides of its middle.
SUDDEN_POINTS, SUDDEN_PART = 6, 0.55
#: How far away a point right after a fork counts.
FORK_SIGMAS = 4.0

__all__ = [
    "BLOCK_NOISE", "BLOCK_POINTS", "USUAL_BLOCKS",
    "ShareTrack",
]  # fmt: skip


@dataclass(slots=True)
class ShareTrack:
    """One ``ratio/*`` metric in blocks, and point by point after a fork.

    The usual level is the median of the last 16 blocks; the noise is that of points within a block, or the wander
    of the blocks where that is larger.
    """

    #: The points since the last full block.
    block: list[tuple[int, float]] = field(default_factory=list)
    #: Means of usual blocks, newest last.
    usual: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL_BLOCKS))
    #: Blocks away from the level: first step that is away, mean. Empty while the share is usual.
    shifted: list[tuple[int, float]] = field(default_factory=list)
    #: The points since a fork as (step, value, way: -1, 0 or 1); None when no fork is near.
    after_fork: list[tuple[int, float, int]] | None = None
    _noise: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL_BLOCKS))
    _previous: list[tuple[int, float]] = field(default_factory=list)
    _limit_low: float = math.inf
    _limit_high: float = -math.inf
    _unmeasured: int = 0

    def level(self) -> Level | None:
        """Return the usual level and the noise of one point, None while too little is known."""
        if len(self.usual) < LEAST_BLOCKS:
            return None
        centre, wander = level_of(self.usual)
        return centre, max(median(self._noise), wander, SIGMA_FLOOR * abs(centre))

    def block_sigma(self) -> float:
        """Return the noise of a block's mean; the level must be known."""
        _, wander = level_of(self.usual)
        return max(BLOCK_NOISE * median(self._noise), wander, 0.25 * SIGMA_FLOOR * abs(self.usual[-1]))

    def since(self, step: int) -> tuple[float, float]:
        """Return the mean of the points from a step on, of the newest two blocks, and its noise."""
        shares = [share for at, share in (*self._previous, *self.block) if at >= step] or [self.usual[-1]]
        return sum(shares) / len(shares), self.block_sigma() * (BLOCK_POINTS / len(shares)) ** 0.5

    def fork(self) -> None:
        """Watch the next points one by one: a new segment begins."""
        self.after_fork = None if self.level() is None or self.shifted else []
        self._previous = [*self._previous, *self.block][-BLOCK_POINTS:]
        self.block = []

    def near_fork(self, step: int, value: float, by: float, min_shift: float) -> Level | None:
        """Judge one of the first points after a fork; return the level before it when the share has left that.

        Args:
            by: sensitivity, > 0.
            min_shift: smallest shift that counts, as a fraction of the level.
        """
        recent, level = self.after_fork, self.level()
        if recent is None or level is None or len(self._previous) < FORK_WINDOW:
            self.after_fork = None
            return None
        # The newest points before the fork count, and not only the long past: the level may have wandered.
        centre = median([share for _, share in self._previous])
        sigma = max(level[1], abs(centre - level[0]))
        away = max(FORK_SIGMAS / by * sigma, min_shift * abs(centre))
        recent.append((step, value, (value > centre + away) - (value < centre - away)))
        for way in (-1, 1):
            out = [(at, share) for at, share, there in recent[-FORK_WINDOW:] if there == way]
            if len(out) >= FORK_CONFIRM:
                self.after_fork = None
                self.shifted = [(out[0][0], median([share for _, share in out]))]
                return centre, sigma
        if len(recent) >= FORK_POINTS:
            self.after_fork = None
        return None

    def full(self, by: float, min_shift: float) -> float:
        """Learn the full block, or note it in ``shifted`` when it is away from the level; return its mean."""
        shares = [share for _, share in self.block]
        mean = sum(shares) / BLOCK_POINTS
        if self._limit_low <= mean <= self._limit_high and self._unmeasured < MEASURE_BLOCKS and not self.shifted:
            self._unmeasured += 1
            self.usual.append(mean)
            return mean
        centre = sum(sorted(shares)[4:-4]) / (BLOCK_POINTS - 8)  # of the middle half: few values, as of batches of 8
        noise = max(level_of(shares)[1], quantum(shares))
        level = self.level()
        if self.shifted:
            return centre
        if level is not None and by:
            away = max(BLOCK_SIGMAS / by * self.block_sigma(), min_shift * abs(level[0]))
            if abs(centre - level[0]) > away:
                self.shifted = [(self._onset(level[0], centre), centre)]
                return centre
            self._limit_low, self._limit_high = level[0] - 0.5 * away, level[0] + 0.5 * away
        self._unmeasured = 0
        self.learn(centre, noise)
        return centre

    def learn(self, centre: float, noise: float | None = None) -> None:
        """Take a block as usual."""
        self.usual.append(centre)
        self._noise.append(noise if noise is not None else self._noise[-1])

    def next_block(self) -> None:
        """Begin a new block."""
        self._previous, self.block = self.block, []

    def rebase(self) -> None:
        """Take the newest shifted blocks as the usual level."""
        newest = [centre for _, centre in self.shifted[-LEAST_BLOCKS:]]
        noise = self._noise[-1] if self._noise else 0.0
        self.usual.clear()
        self._noise.clear()
        for centre in newest:
            self.learn(centre, noise)
        self._limit_low, self._limit_high = math.inf, -math.inf
        self.shifted = []

    def sudden(self, before: float, after: float) -> bool:
        """Return whether most of the shift came between SUDDEN_POINTS before and as many after its middle.

        Asked when the second block in a row is full: the shift lies in it, in the first, or right before that.
        """
        half, up = 0.5 * (before + after), after > before
        shares = [share for _, share in (*self._previous, *self.block)]
        sides = [(share > half) == up for share in shares]
        # The place that parts the points best: the fewest on the wrong side of it.
        wrong = [sum(sides[:i]) + sides[i:].count(False) for i in range(len(sides) - SUDDEN_POINTS + 1)]
        place = wrong.index(min(wrong))
        old = shares[max(0, place - SUDDEN_POINTS) : place]
        new = shares[place : place + SUDDEN_POINTS]
        start = sum(old) / len(old) if len(old) >= SUDDEN_POINTS // 2 else self.usual[-1]
        return abs(sum(new) / len(new) - start) > SUDDEN_PART * abs(after - before)

    def _onset(self, before: float, centre: float) -> int:
        """Return the first step of the stretch beyond half of the shift, which may begin in the block before."""
        half, up = 0.5 * (before + centre), centre > before
        points = [*self._previous, *self.block]
        first = next(i for i in range(len(self._previous), len(points)) if (points[i][1] > half) == up)
        while first and (points[first - 1][1] > half) == up:
            first -= 1
        return points[first][0]
