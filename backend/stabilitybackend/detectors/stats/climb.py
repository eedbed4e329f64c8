"""Finds when a curve of block medians is in a climb that is larger than what it does by itself."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from .blocks import BLOCK_POINTS, rise_points, smoothed
from .robust import median, midmean, robust_sigma
from .together import Moved
from .wander import OVER_TAKEN_BACK

#: Blocks that each of the two scales looks back on: 512 and 4,096 points.
WINDOW_BLOCKS = 64
#: Points kept one by one, to tell a climb from a jump.
RING_POINTS = 48
#: Short blocks in a long one. The long scale sees climbs over hundreds to thousands of points, which are smaller than
#: the noise of a short block.
LONG_BLOCKS = 8
#: The onset is the lowest block among so many newest ones, the nearest first: a loss that rose by little long ago
#: and climbs now has its onset now.
LOOK_BACK_BLOCKS = (12, 24, WINDOW_BLOCKS)
#: Blocks that must be known before a climb is believed: 64 points, as a baseline needs.
MIN_BLOCKS = 8
#: Short blocks between two searches: the work of one is spread over 16 points.
LOOK_EVERY_BLOCKS = 2
#: The noise of the medians is measured in full when a search needs it, and once in so many blocks. In between the old
#: one counts in part.
SIGMA_EVERY_BLOCKS = 32
STALE_PART = 0.7
#: Blocks around the lowest one whose median is the level before the climb.
LEVEL_BLOCKS_BEFORE = 6
LEVEL_BLOCKS_AFTER = 2
#: A climb that this many blocks have kept, by their median, needs only this part of the sigmas.
SUSTAINED_BLOCKS = 4
SUSTAINED_PART = 0.75
#: A climb must be this part of the fall just before it, or it is the way back from a drop (memorisation within an
#: epoch, a wave). A climb that is critical by its size needs less of it: early in training everything fell before.
OF_THE_FALL = 1.2
OF_THE_FALL_CRITICAL = 0.6
#: The fall is looked for over so many times the length of the climb.
FALL_LENGTHS = 1.5
#: A fall so many times as large as the climb was learning, and no side of a wave.
LEARNT_FACTOR = 6.0
#: A climb must be larger by this factor while fewer than twice MIN_BLOCKS lie before it (nobody knows yet how far the
#: curve wanders), and where it shows on the long scale only: data and schedules bend a curve.
UNSURE_FACTOR = 2.0
#: Points that a rise must take, from 20 to 80 % of its way; a quicker one is a level shift or a spike.
CLIMB_POINTS = 5
#: In blocks; where single points differ by more than QUIET_PART of the rise only the blocks can say it.
JUMP_BLOCKS = 2
QUIET_PART = 0.3
#: A climb of so many times the threshold is large whatever was before.
LARGE_FACTOR = 4.0

__all__ = [
    "LARGE_FACTOR", "LEVEL_BLOCKS_BEFORE", "LONG_BLOCKS", "LOOK_EVERY_BLOCKS", "RING_POINTS", "Climb", "Climbs",
]  # fmt: skip


class Climb(NamedTuple):
    """A loss that is above its level.

    Args:
        onset: first step of the first block that is above the level for good.
        level: the loss before.
        sigma: robust standard deviation of a block's median.
        rise: lower one of the newest two medians, less the level.
        threshold: the smallest rise that would have counted here.
        block_points: points of a block.
    """

    onset: int
    level: float
    sigma: float
    rise: float
    threshold: float
    block_points: int


@dataclass(slots=True)
class _Scale:
    """The newest medians of blocks of one length, with their first steps and the learning rate then."""

    block_points: int
    medians: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    #: Standard deviation of a median when it was last asked for in full.
    sigma: float = 0.0

    def add(self, middle: float, step: int) -> None:
        self.medians.append(middle)
        self.steps.append(step)
        if len(self.medians) > WINDOW_BLOCKS:
            del self.medians[0], self.steps[0]

    def cut(self, after: int) -> None:
        """Drop the blocks that begin after a step: an anomaly is not learnt from."""
        while self.steps and self.steps[-1] > after:
            del self.medians[-1], self.steps[-1]

    def before(self, step: int) -> list[float]:
        """Return the medians of the blocks that end before a step."""
        return self.medians[: max(0, bisect_left(self.steps, step) - 1)]


@dataclass(slots=True)
class Climbs:
    """Holds the medians of 8 points (512 points back) and of 64 points (4,096 back) of one curve, and looks at them."""

    _short: _Scale = field(default_factory=lambda: _Scale(BLOCK_POINTS))
    _long: _Scale = field(default_factory=lambda: _Scale(BLOCK_POINTS * LONG_BLOCKS))
    _blocks: int = 0

    def learn(self, middle: float, first_step: int) -> None:
        """Take the median of the next block and the step that it begins with."""
        self._blocks += 1
        short = self._short
        short.add(middle, first_step)
        if self._blocks % LONG_BLOCKS == 0:
            self._long.add(median(short.medians[-LONG_BLOCKS:]), short.steps[-min(LONG_BLOCKS, len(short.steps))])

    def forget_after(self, step: int) -> None:
        """Drop the blocks that begin after a step: an anomaly is not learnt from."""
        self._short.cut(step)
        self._long.cut(step)

    def recent(self) -> list[float]:
        """Return the newest medians, oldest first, as many as make a long block."""
        return self._short.medians[-LONG_BLOCKS:]

    def moved(self, step: int, since: Sequence[float]) -> Moved | None:
        """Return how far the curve went from what it was before a step, None where too little is known of one of them.

        Before it count as many of the newest short blocks as make a long one, or as many long ones where the short
        scale does not reach back so far.

        Args:
            since: the points behind, no fewer than a block has.
        """
        for scale in (self._short, self._long):
            medians = scale.before(step)
            if len(medians) >= SUSTAINED_BLOCKS and len(since) >= BLOCK_POINTS:
                newest = medians[-LONG_BLOCKS:]
                both = 1 / len(newest) + scale.block_points / len(since)
                return Moved(midmean(newest), midmean(since), _block_sigma(medians) * math.sqrt(both))
        return None

    def search(self, values: Sequence[float], min_rise: float, sigmas: float) -> Climb | None:
        """Return the climb that the newest blocks are in, None when there is none. Cheap in most cases.

        Args:
            values: the newest single points, oldest first.
            min_rise: smallest rise, fraction of the level, > 0.
            sigmas: smallest rise, standard deviations of a median.
        """
        if self._blocks % LOOK_EVERY_BLOCKS:
            return None
        climb = self._search(self._short, values, min_rise, sigmas)
        if climb is None and self._blocks % LONG_BLOCKS == 0:
            climb = self._search(self._long, values, min_rise, sigmas)
        return climb

    def _search(self, scale: _Scale, values: Sequence[float], min_rise: float, sigmas: float) -> Climb | None:
        """Return the climb that the newest blocks of one scale are in, None when there is none."""
        medians = scale.medians
        count = len(medians)
        if count < MIN_BLOCKS:
            return None
        now = min(medians[-1], medians[-2])
        lowest = min(medians[:-2])
        # The cheap question first: most blocks of a falling or noisy curve are not above all the others by that much.
        if now - lowest < max(min_rise * abs(lowest), STALE_PART * sigmas * scale.sigma):
            if self._blocks % SIGMA_EVERY_BLOCKS == 0:
                scale.sigma = _block_sigma(medians)
            return None
        scale.sigma = _block_sigma(medians)
        least = sigmas * scale.sigma
        if now - lowest < least and median(medians[-SUSTAINED_BLOCKS:]) - lowest < SUSTAINED_PART * least:
            return None
        smooth = smoothed(medians)
        for back in LOOK_BACK_BLOCKS:
            climb = self._climb_since(scale, smooth, max(0, count - back), min_rise, sigmas)
            if climb is not None:
                blocks = smooth[max(0, bisect_left(scale.steps, climb.onset) - 1) :]
                return None if self._jumped(blocks, values, climb) else climb
            if back >= count:
                break
        return None

    def _climb_since(
        self, scale: _Scale, smooth: list[float], first: int, min_rise: float, sigmas: float
    ) -> Climb | None:
        """Return the climb since the lowest block from ``first`` on, None when it is not large enough."""
        medians = scale.medians
        count = len(medians)
        at = min(range(first, count - 2), key=lambda i: (smooth[i], -i))
        level = median(medians[max(0, at - LEVEL_BLOCKS_BEFORE) : min(at + LEVEL_BLOCKS_AFTER, count - 2)])
        newest, newer = min(medians[-1], medians[-2]) - level, median(medians[-SUSTAINED_BLOCKS:]) - level
        rise = max(newest, newer)
        if rise <= min_rise * abs(level) or self._within_signed_range(level + rise, scale.steps[at + 1]):
            return None
        sigma = scale.sigma
        if min(smooth[max(0, at - (count - at)) : at + 1]) < smooth[at] - sigma:
            return None
        # The climb began where the loss left its level for the last time, which may be long after its lowest block.
        began = next((i for i in range(count - 3, at, -1) if smooth[i] <= level + sigma), at)
        factor = UNSURE_FACTOR if began < 2 * MIN_BLOCKS else 1.0
        if scale is self._long:
            factor *= UNSURE_FACTOR
        threshold = factor * min_rise * abs(level)
        if rise <= threshold:
            return None
        # Medians of long blocks have little noise: they count as they are, or a short wave would be smoothed away.
        whole = smooth if scale is self._short else medians
        onset = scale.steps[began + 1]
        earlier = max(
            _largest_climb(whole[: began + 1]),
            _largest_climb(self._long.before(onset)),
            _largest_climb(smoothed(self._short.before(onset))),
        )
        fall_blocks = int(FALL_LENGTHS * (count - at))
        fall = max(whole[max(0, at - fall_blocks) : at + 1]) - smooth[at]
        if scale is self._short and fall_blocks > at:
            # The short scale does not reach back far enough: the long one knows what was before it.
            older = self._long.before(onset)[-(fall_blocks // LONG_BLOCKS + 1) :]
            fall = max([fall, *(value - smooth[at] for value in older)])
        if fall > LEARNT_FACTOR * rise:
            fall = 0.0
        of_the_fall = OF_THE_FALL_CRITICAL if rise > LARGE_FACTOR * threshold else OF_THE_FALL
        if rise < max(OVER_TAKEN_BACK * earlier, of_the_fall * fall):
            return None
        if newest < sigmas * sigma and newer < SUSTAINED_PART * sigmas * sigma:
            return None
        return Climb(onset, level, sigma, rise, threshold, scale.block_points)

    def _within_signed_range(self, value: float, since: int) -> bool:
        """Say whether a loss of both signs, which has no level to rise from, is within twice its range."""
        known = self._long.before(since) + self._short.before(since)
        if min([*known, *self._short.medians]) > 0:
            return False
        if len(known) < 2 * MIN_BLOCKS:
            return True
        return value <= 2 * max(known) - min(known)

    def _jumped(self, blocks: Sequence[float], values: Sequence[float], climb: Climb) -> bool:
        """Say whether the loss was up at once: that is a level shift, whose detector waits until it lasts."""
        low, high = climb.level, climb.level + climb.rise
        if rise_points(blocks, low, high) > JUMP_BLOCKS:
            return False
        short = self._short.medians
        if JUMP_BLOCKS < rise_points(short, low, high) < len(short):
            return False
        noise = robust_sigma([b - a for a, b in pairwise(values)])
        points = rise_points(list(values), low, high)
        return noise > QUIET_PART * climb.rise or not CLIMB_POINTS < points < len(values)


def _largest_climb(smooth: Sequence[float]) -> float:
    """Return by how much the values ever rose above their lowest one before, >= 0."""
    lowest, largest = math.inf, 0.0
    for value in smooth:
        if value < lowest:
            lowest = value
        elif value - lowest > largest:
            largest = value - lowest
    return largest


def _block_sigma(medians: Sequence[float]) -> float:
    """Return the standard deviation of one median by the differences of neighbours: a slope adds little to it."""
    differences = [b - a for a, b in pairwise(medians)]
    return max(robust_sigma(differences) / math.sqrt(2.0), 1e-4 * abs(medians[-1]), 1e-9)
