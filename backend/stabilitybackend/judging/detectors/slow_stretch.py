"""Speed of a job in blocks of points, and slow intervals."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from .engine.base import Event
from .stats.robust import median

#: Points judged as one, and their least duration, seconds: one slow step, or another program on the processor for a
#: second, moves no block.
BLOCK_POINTS, BLOCK_S = 8, 4.0
#: Most points of a block: of a log without times, or of a job with thousands of steps a second.
MOST_POINTS = 512
#: Blocks of the usual cost, and fewest blocks before a judgement.
USUAL_BLOCKS, LEAST_BLOCKS = 32, 16
#: The most and the least expensive tenth of the usual blocks are outside the run's usual spread.
TAIL = 0.1
#: Points after a start or a fork that are not judged: compilation, caches, connections.
WARM_UP_POINTS = 16
#: Fewest slow blocks of an event. A single one is a long checkpoint.
CONFIRM_BLOCKS = 2
#: A sudden slow-down has this part of its height within two blocks, a growing one less.
SUDDEN_PART = 0.75
#: Least duration and loss of a reported slow interval, seconds: another program on the processor for a while, or a
#: neighbour's checkpoint, is no event.
LEAST_S, LEAST_LOST_S = 30.0, 10.0
#: The first of these in slow blocks, for points without a time of their own.
LEAST_SLOW_BLOCKS = 8

__all__ = ["USUAL_BLOCKS", "PaceTrack", "SlowStretch", "duration"]


@dataclass(slots=True)
class PaceTrack:
    """One metric in blocks. Its cost is time: a step's seconds, or one over the tokens per second.

    Args:
        metric: its name.

    Attributes:
        points: (step, cost, time) since the last block.
        usual: costs of usual blocks. since: of undecided blocks of a slow interval.
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
        """Return the end of the points, from ``start``, without a full block."""
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
        """Return whether a block has enough points; another metric may be logged more often."""
        return len(self.points) >= BLOCK_POINTS // 2

    def cost(self) -> float:
        """Return the cost of the block, the median: fewer than half of the points do not count."""
        return median([cost for _, cost, _ in self.points])

    def level(self) -> float | None:
        """Return the usual cost, None for too few blocks."""
        return median(list(self.usual)) if len(self.usual) >= LEAST_BLOCKS else None

    def spread(self) -> float:
        """Return the spread of the usual blocks, without their tails, as a fraction of their level.

        Few blocks underestimate it: theirs is raised in proportion to the missing ones.
        """
        ordered = sorted(self.usual)
        tail = int(TAIL * len(ordered))
        return USUAL_BLOCKS / len(ordered) * (ordered[-1 - tail] - ordered[tail]) / median(ordered)

    def rise(self) -> float | None:
        """Return the excess of the block over the usual cost, as a fraction, None for unknown."""
        level = self.level()
        return None if level is None else self.cost() / level - 1

    def took_s(self) -> float:
        """Return the duration of the block without pauses, seconds."""
        times = [time for _, _, time in self.points]
        return len(times) * max(0.0, median([after - before for before, after in pairwise(times)]))

    def close(self) -> None:
        """End the block; its class is decided later."""
        self.since.append(self.cost())
        self.points.clear()

    def settle(self) -> None:
        """Accept the blocks of an interval as usual ones."""
        self.usual.extend(self.since)
        self.since.clear()

    def fork(self) -> None:
        """Begin a new block after some points that are not judged."""
        self.points.clear()
        self.skip = WARM_UP_POINTS


@dataclass(slots=True)
class SlowStretch(Event):
    """An interval of slow blocks from its onset, reported or not.

    Args:
        metric: of the evidence.
        onset, onset_time: its first slow point.
        seen: step of the report.
        level: the usual cost of a step.
        spread: of usual blocks, as a fraction of the level.

    Attributes:
        lasted_s, lost_s: duration of its slow blocks without pauses, and the lost part of that, seconds; 0.0 for points
            without times.
        blocks, cost: number of slow ones, and the sum of their rises, in blocks of usual length.
        jump: largest excess of a block over one of the two before it, as a fraction of the usual cost.
        back: first step of the usual blocks in a row at its end; usual: their number.
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
        """Return the mean excess of the slow blocks, as a fraction."""
        return self.cost / self.blocks

    def add(self, rise: float, jump: float, took_s: float) -> None:
        """Count a slow block of so many seconds without pauses, 0.0 for points without times."""
        self.lasted_s += took_s
        self.lost_s += took_s * rise / (1 + rise)
        self.blocks += 1
        self.cost += rise
        self.jump = max(self.jump, jump)

    @property
    def sudden(self) -> bool:
        """Return whether it was sudden, as opposed to a decay (growing sequences, a filling cache)."""
        return self.jump >= SUDDEN_PART * self.rise

    @property
    def matters(self) -> bool:
        """Return whether it is sudden, above the usual spread, and long and expensive enough for a report."""
        if self.blocks < CONFIRM_BLOCKS or not self.sudden or min(self.jump, self.rise) <= self.spread:
            return False
        if not self.lasted_s:
            return self.blocks >= LEAST_SLOW_BLOCKS
        return self.lasted_s >= LEAST_S and self.lost_s >= LEAST_LOST_S


def duration(seconds: float) -> str:
    """Return a time for users: seconds, minutes or hours.

    Example:
        >>> duration(90.0), duration(600.0), duration(9_000.0)
        ('90 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
