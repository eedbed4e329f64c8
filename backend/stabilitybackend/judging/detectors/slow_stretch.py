"""How fast a job is, in blocks of points, and a stretch in which it is slow: what is known of both."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from .engine.base import Event
from .stats.robust import median

#: Points that are judged as one, and the seconds that they take at least: one slow step, or another program that takes
#: the processor for a second, moves no block.
BLOCK_POINTS, BLOCK_S = 8, 4.0
#: Points that a block has at most: those of a log without times, or of a job with thousands of steps a second.
MOST_POINTS = 512
#: Blocks that the usual cost is taken from, and how many must be known before anything is judged.
USUAL_BLOCKS, LEAST_BLOCKS = 32, 16
#: The tenth of the usual blocks that cost most, and the tenth that cost least, are beyond the run's usual spread.
TAIL = 0.1
#: Points after a start or a fork that are not judged: compilation, caches, connections.
WARM_UP_POINTS = 16
#: Slow blocks that an event has at least. One alone is a checkpoint that takes long.
CONFIRM_BLOCKS = 2
#: A slow-down comes at once: this part of its height within two blocks. What grows over many has less.
SUDDEN_PART = 0.75
#: A slow stretch is reported when it lasted so long and lost so much of the job's time, seconds: another program that
#: takes the processor for a while, or a neighbour's checkpoint, is nobody's business.
LEAST_S, LEAST_LOST_S = 30.0, 10.0
#: The first of these in slow blocks, where the points have no time of their own.
LEAST_SLOW_BLOCKS = 8

__all__ = ["USUAL_BLOCKS", "PaceTrack", "SlowStretch", "duration"]


@dataclass(slots=True)
class PaceTrack:
    """One metric in blocks. Its cost is time: a step's seconds, or one over the tokens per second.

    Args:
        metric: its name.

    Attributes:
        points: (step, cost, time) since the last block.
        usual: costs of usual blocks. since: of those blocks of a slow stretch that are not known to be usual.
    """

    metric: str
    points: list[tuple[int, float, float]] = field(default_factory=list)
    usual: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL_BLOCKS))
    since: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL_BLOCKS))
    skip: int = WARM_UP_POINTS

    def add(self, step: int, cost: float, time: float) -> bool:
        """Take a point; return whether the block is full."""
        if self.skip:
            self.skip -= 1
            return False
        points = self.points
        points.append((step, cost, time))
        if len(points) < BLOCK_POINTS:
            return False
        return not 0 < time - points[0][2] < BLOCK_S or len(points) >= MOST_POINTS

    def quiet(self, times: Sequence[float], start: int, stop: int) -> int:
        """Return up to which of some points, from ``start``, no block is full."""
        points = self.points
        if self.skip:
            return start
        begin, at = points[0][2] if points else times[start], max(start, start + BLOCK_POINTS - 1 - len(points))
        stop = min(stop, start + MOST_POINTS - 1 - len(points))
        while at < stop and 0 < times[at] - begin < BLOCK_S:
            at += 1
        return min(at, stop)

    @property
    def votes(self) -> bool:
        """Whether enough points came for a block; another metric may be logged more often."""
        return len(self.points) >= BLOCK_POINTS // 2

    def cost(self) -> float:
        """Return the cost of the block, the median: what takes fewer than half of the points does not count."""
        return median([cost for _, cost, _ in self.points])

    def level(self) -> float | None:
        """Return the usual cost, None while too little is known."""
        return median(list(self.usual)) if len(self.usual) >= LEAST_BLOCKS else None

    def spread(self) -> float:
        """Return how far the usual blocks lie apart, without their tails, as a fraction of their level.

        Few blocks show less than the run will: they count as that much further apart as they are fewer than remembered.
        """
        ordered = sorted(self.usual)
        tail = int(TAIL * len(ordered))
        return USUAL_BLOCKS / len(ordered) * (ordered[-1 - tail] - ordered[tail]) / median(ordered)

    def rise(self) -> float | None:
        """Return by what fraction the block costs more than usual, None while that is not known."""
        level = self.level()
        return None if level is None else self.cost() / level - 1

    def took_s(self) -> float:
        """Return how long the block took without pauses, seconds."""
        times = [time for _, _, time in self.points]
        return len(times) * max(0.0, median([after - before for before, after in pairwise(times)]))

    def close(self) -> None:
        """End the block; whether it was a usual one is decided later."""
        self.since.append(self.cost())
        self.points.clear()

    def settle(self) -> None:
        """Take the blocks of a stretch as usual ones."""
        self.usual.extend(self.since)
        self.since.clear()

    def fork(self) -> None:
        """Begin a new block after some points that are not judged."""
        self.points.clear()
        self.skip = WARM_UP_POINTS


@dataclass(slots=True)
class SlowStretch(Event):
    """A stretch of slow blocks from its onset, reported or not.

    Args:
        metric: that shows it.
        onset, onset_time: its first slow point.
        seen: step at which it was reported.
        level: the usual cost of a step.
        spread: how far usual blocks lie apart, as a fraction of it.

    Attributes:
        lasted_s, lost_s: how long its slow blocks took without pauses, and how much of that was lost, seconds; 0.0
            where points have no time.
        blocks, cost: how many slow ones, and the sum of their rises: what it cost, in blocks of usual length.
        jump: the most that a block cost more than one of the two before it, as a fraction of the usual cost.
        back: first step of the usual blocks in a row at its end; usual: how many these are.
        told, told_lost_s: whether it was reported, and with how many lost seconds.
        also: the other metric that shows it.
    """

    onset_time: float
    level: float
    spread: float
    lasted_s: float = 0.0
    lost_s: float = 0.0
    blocks: int = 0
    cost: float = 0.0
    jump: float = 0.0
    back: int = -1
    usual: int = 0
    told: bool = False
    told_lost_s: float = 0.0
    also: list[str] = field(default_factory=list)

    @property
    def rise(self) -> float:
        """By what fraction a step takes longer, over the slow blocks."""
        return self.cost / self.blocks

    def add(self, rise: float, jump: float, took_s: float) -> None:
        """Count a slow block that took so many seconds without pauses, 0.0 where points have no time."""
        self.lasted_s += took_s
        self.lost_s += took_s * rise / (1 + rise)
        self.blocks += 1
        self.cost += rise
        self.jump = max(self.jump, jump)

    @property
    def sudden(self) -> bool:
        """Whether it came at once, and not as a speed does that wears off (growing sequences, a filling cache)."""
        return self.jump >= SUDDEN_PART * self.rise

    @property
    def matters(self) -> bool:
        """Whether it stands out, and lasted and lost enough to be reported.

        It stands out when it came at once, and is further up than the usual blocks lie apart.
        """
        if self.blocks < CONFIRM_BLOCKS or not self.sudden or min(self.jump, self.rise) <= self.spread:
            return False
        if not self.lasted_s:
            return self.blocks >= LEAST_SLOW_BLOCKS
        return self.lasted_s >= LEAST_S and self.lost_s >= LEAST_LOST_S


def duration(seconds: float) -> str:
    """Return a time for people: seconds, minutes or hours.

    Example:
        >>> duration(90.0), duration(600.0), duration(9_000.0)
        ('90 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
