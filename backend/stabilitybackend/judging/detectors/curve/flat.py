"""Reads from medians of blocks that a loss does not fall: it never learned, or it stopped. And that it fell at once."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from stabilitybackend.judging.detectors.stats.robust import MEDIAN_ERROR, median, robust_sigma

__all__ = ["Drops", "Flatness", "known_classes"]

#: Entries that stand for the whole run: where they are full, neighbours become one and each is of twice as many points.
MAX_ENTRIES = 64
#: Part of the run so far that has to be flat: a power law with the usual exponent of 0.1 falls by 3 % in it; twice that
#: where the learning rate is not logged. At least MIN_POINTS; BEGIN_POINTS after the warm-up a model finds
#: out how frequent its classes are: those do not count.
FLAT_PART = 0.25
MIN_POINTS = 500
BEGIN_POINTS = 128
MIN_ENTRIES = 8
#: A fall below this fraction is none, early in a run and later.
STILL_EARLY = 0.015
STILL = 0.003
#: A change of a level that counts, and a large one; both as fractions.
CHANGE = 0.025
LARGE = 0.1
#: A model whose loss began at or above this was untrained; above MOST of its first level it knows at most how frequent
#: its classes are.
UNTRAINED = 3.9
MOST = 0.7
#: Numbers of classes whose logarithm is the loss of a model that knows nothing: binary, data sets of pictures,
#: arithmetic tasks, bytes, powers of two, vocabularies of well known tokenizers; and how near a level has to be.
KNOWN_CLASSES = (
    2, 10, 64, 97, 100, 113, 128, 256, 257, 512, 1000, 1024, 2048, 4096, 8192, 16384, 21841, 28996, 30522, 32000, 32128,
    32768, 49152, 50257, 50304, 50368, 64000, 65024, 65536, 100277, 100352, 128000, 128256, 151936, 152064, 250112,
    256000, 262144,
)  # fmt: skip
NEAR_CLASSES = 0.005


@dataclass(slots=True)
class Flatness:
    """At most MAX_ENTRIES medians of the whole run.

    Attributes:
        entries, steps: medians and their first steps. points: of the run.
    """

    entries: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    points: int = 0
    warm_up: int = 0
    noise: float = 0.0
    _each: int = 1
    _part: list[float] = field(default_factory=list)
    _part_step: int = 0
    _per_block: int = 1

    def add(self, middle: float, step: int, points: int, sigma: float, *, warming_up: bool) -> bool:
        """Take the median of ``points`` points from ``step`` on; return whether there is a new entry.

        Args:
            sigma: noise of a single point.
        """
        self._per_block = points
        if len(self.entries) < MIN_ENTRIES and sigma == sigma:
            self.noise = max(self.noise, sigma)
        if warming_up and self.warm_up == self.points:
            self.warm_up += points
        self.points += points
        if not self._part:
            self._part_step = step
        self._part.append(middle)
        if len(self._part) < self._each:
            return False
        self.entries.append(sum(self._part) / len(self._part))
        self.steps.append(self._part_step)
        self._part = []
        if len(self.entries) == MAX_ENTRIES:
            self.entries = [0.5 * (a + b) for a, b in zip(self.entries[::2], self.entries[1::2], strict=True)]
            self.steps = self.steps[::2]
            self._each *= 2
        return True

    def never_learns(self, needed: float) -> bool:
        """Say whether the loss has not moved since the beginning, for ``needed`` points, as high as untrained."""
        if len(self.entries) < 2 * MIN_ENTRIES or self.entries[0] <= 0:
            return False
        per_entry = self._each * self._per_block
        first, flat = self.entries[0], self.entries[(self.warm_up + BEGIN_POINTS) // per_entry :]
        if len(flat) < MIN_ENTRIES or len(flat) * per_entry < needed:
            return False
        level = median(flat)
        still = abs(_fall(flat)) + _bound(flat) <= STILL_EARLY * level
        lowest = min(0.5 * (a + b) for a, b in pairwise(self.entries))
        high = level >= (MOST * first if first >= UNTRAINED else (1 - CHANGE) * first)
        return still and high and lowest > (1 - CHANGE) * level and self.noise <= LARGE * first

    def stopped(self, needed: float, since: int, *, rate_known: bool) -> bool:
        """Say whether the loss had fallen, and then did not move over the newest part of the run.

        Args:
            since: only steps from here on count.
        """
        count, per_entry = len(self.entries), self._each * self._per_block
        part = FLAT_PART if rate_known else 2 * FLAT_PART
        newest = max(MIN_ENTRIES, int(part * count), math.ceil(needed / per_entry) if needed < math.inf else count + 1)
        if count < 2 * MIN_ENTRIES or newest > MOST * count or self.steps[-newest] < since:
            return False
        flat, first = self.entries[-newest:], median(self.entries[:3])
        level = median(flat)
        learned = first - min(self.entries) > LARGE * abs(first)
        return learned and abs(_fall(flat)) <= STILL * abs(level) and _bound(flat) <= CHANGE * abs(level)

    def begin(self) -> int:
        """Return the first step of the flat stretch at the end: each entry is at its level, and its halves are alike.

        Noise hides a slow fall from single entries, not from halves.
        """
        newest = self.entries[-max(MIN_ENTRIES, int(FLAT_PART * len(self.entries))) :]
        level, at = median(newest), len(self.entries) - 1
        reach = 3 * _sigma(newest) + 0.5 * STILL * abs(level)
        while at > 0 and abs(self.entries[at - 1] - level) <= reach:
            longer = self.entries[at - 1 :]
            if len(longer) > len(newest) and abs(_fall(longer)) > STILL * abs(level) + _bound(longer):
                break
            at -= 1
        return self.steps[at]

    def level(self) -> tuple[float, float]:
        """Return the level at the end and how far it may be off."""
        newest = self.entries[-max(MIN_ENTRIES, int(FLAT_PART * len(self.entries))) :]
        return median(newest), _sigma(newest)

    def left(self, level: float, sigma: float) -> str:
        """Return how the newest entries left a level: ``down``, ``up``, "" for not at all."""
        reach, newest = max(CHANGE * abs(level), 3 * sigma), self.entries[-2:]
        return "down" if max(newest) < level - reach else "up" if min(newest) > level + reach else ""


def _sigma(entries: Sequence[float]) -> float:
    """Return the standard deviation of an entry, by the differences of neighbours."""
    return max(robust_sigma([b - a for a, b in pairwise(entries)]) / math.sqrt(2.0), 1e-9)


def _fall(flat: Sequence[float]) -> float:
    half = len(flat) // 2
    return median(flat[:half]) - median(flat[-half:])


def _bound(flat: Sequence[float]) -> float:
    """Return what noise may hide of the fall, two standard errors."""
    return 2 * MEDIAN_ERROR * _sigma(flat) * math.sqrt(2.0 / (len(flat) // 2))


def known_classes(level: float) -> int | None:
    """Return a common number of classes whose logarithm the level is, None where there is none.

    Example:
        >>> known_classes(4.727), known_classes(2.0)
        (113, None)
    """
    nearest = min(KNOWN_CLASSES, key=lambda classes: abs(math.log(classes) - level))
    return nearest if abs(math.log(nearest) - level) <= NEAR_CLASSES * math.log(nearest) else None


# --- drops -----------------------------------------------------------------------------------------------------------

#: A drop that something explains, and one that nothing does, as fractions; and how many times the usual move it is.
EXPLAINED_DROP = 0.02
DROP = 0.05
MOVES = 6.0
#: Blocks between two drops that are noted; doubled with each: a staircase is noted twice or thrice.
REST_BLOCKS = 16


@dataclass(slots=True)
class Drops:
    """The newest medians of blocks, of which the two newest may lie below those before at once.

    Attributes:
        blocks, steps: medians and their first steps.
    """

    blocks: deque[float] = field(default_factory=lambda: deque(maxlen=24))
    steps: deque[int] = field(default_factory=lambda: deque(maxlen=24))
    first: float = math.nan
    rest: int = 0
    noted: int = 0

    def add(self, middle: float, step: int) -> tuple[int, float, float] | None:
        """Take a median and return (first step, level before, level after) of a drop that stayed for three blocks."""
        self.blocks.append(middle)
        self.steps.append(step)
        self.first = self.first if self.first == self.first else middle
        self.rest = max(0, self.rest - 1)
        blocks = list(self.blocks)
        if len(blocks) < 16:
            return None
        after, before = max(blocks[-3:]), min(blocks[-6:-4])
        moves = [abs(b - a) for a, b in pairwise(blocks[:-5])]
        falls = [a - b for a, b in zip(blocks[:-7], blocks[3:-4], strict=True)]  # over the same distance, before
        way = before - after
        if way < max(EXPLAINED_DROP * abs(before), MOVES * median(moves), 2 * max(falls)):
            return None
        onset = self.steps[-3] if before - blocks[-4] < 0.5 * way else self.steps[-4]
        return onset, median(blocks[-9:-4]), median(blocks[-3:])

    def is_worth_a_note(self, before: float, after: float, *, explained: bool) -> bool:
        """Say whether a drop is worth a note: explained, or large and no beginning of learning."""
        learned = before < (1 - DROP) * self.first
        if self.rest or not (explained or (learned and before - after > DROP * abs(before))):
            return False
        self.noted = min(self.noted + 1, 12)
        self.rest = REST_BLOCKS * 2**self.noted
        return True

    def rebase(self) -> None:
        """Go on from the newest blocks."""
        newest, steps = list(self.blocks)[-3:], list(self.steps)[-3:]
        self.blocks.clear()
        self.steps.clear()
        self.blocks.extend(newest)
        self.steps.extend(steps)
