"""A stretch in which the job is slow: what is known of it, and when it is worth reporting."""

from __future__ import annotations

from dataclasses import dataclass, field

from .engine.base import Event

__all__ = ["LEAST_LOST_S", "LEAST_S", "SlowStretch", "duration"]

#: A slow stretch is reported when it lasted so long and lost so much of the job's time, seconds: another program that
#: takes the processor for a while, or a neighbour's checkpoint, is nobody's business.
LEAST_S, LEAST_LOST_S = 30.0, 10.0
#: The same in slow blocks, where the points have no time of their own.
LEAST_SLOW_BLOCKS = 8


@dataclass(slots=True)
class SlowStretch(Event):
    """A slow stretch from its onset.

    Args:
        metric: that shows it.
        onset, onset_time: its first slow point.
        seen: step at which it was confirmed; from ``told`` on, at which it was reported.
        level: the usual cost of a step.
        least_s: how long it has to last to be reported, seconds.

    Attributes:
        cost, blocks, lost_s: mean cost of its slow blocks, how many, and the job's time that they lost, seconds.
        also: other metrics that show it. earlier: onsets of events like it that went by themselves.
        told, sudden: whether it was reported; whether it was slow enough for an alarm from the first blocks on.
    """

    onset_time: float
    level: float
    least_s: float
    cost: float
    blocks: int = 0
    lost_s: float = 0.0
    also: list[str] = field(default_factory=list)
    earlier: list[int] = field(default_factory=list)
    told: bool = False
    sudden: bool = False

    @property
    def rise(self) -> float:
        """By what fraction a step takes longer."""
        return self.cost / self.level - 1

    def lasts(self, time: float) -> bool:
        """Return whether it has lasted long enough to be reported at ``time``, unix seconds."""
        lasted_s = time - self.onset_time
        return lasted_s >= self.least_s if lasted_s > 0 else self.blocks >= LEAST_SLOW_BLOCKS


def duration(seconds: float) -> str:
    """Return a time for people: seconds, minutes or hours.

    Example:
        >>> duration(90.0), duration(600.0), duration(9_000.0)
        ('90 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
