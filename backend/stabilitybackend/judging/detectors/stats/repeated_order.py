"""Follows a repetition of the data from the search that finds it to its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.detectors.engine.long_past import LongPast

from .fingerprint import Fingerprints

#: Searches in a row that do not find it again end a repetition.
LOST_SEARCHES = 2

__all__ = ["RepeatedOrder", "Repetition"]


@dataclass(slots=True)
class Repetition:
    """A stretch of data that is fed again in its order.

    Args:
        onset: first step of the repetition. earlier: the step at which that data was first met.
        lag: distance of the two in points. r: correlation when it was found.
        lost: windows in a row that did not agree.
    """

    onset: int
    earlier: int
    lag: int
    r: float
    lost: int = 0

    @property
    def distance(self) -> int:
        """How many steps ago the data was met before."""
        return self.onset - self.earlier

    @property
    def fresh_step(self) -> int:
        """The step at which the repetition has come to its own beginning: new data follows, or it starts over again."""
        return self.onset + self.distance


class RepeatedOrder(Stateful):
    """Searches each block of points in all that came before, and follows what it finds until it ends."""

    _prints: Fingerprints = fresh(Fingerprints)
    current: Repetition | None = None

    def add(self, past: LongPast, step: int, block: list[float]) -> Literal["begins", "ends"] | None:
        """Take PAST_BLOCK losses that begin at ``step``; say whether ``current`` changed.

        What has ended is still there until the next call.
        """
        if self.current is not None and self.current.lost >= LOST_SEARCHES:
            self.current = None
        before = self._prints.blocks
        self._prints.add(past, step, block)
        if self._prints.blocks == before:
            return None
        if self.current is not None:
            lost = not self._prints.goes_on(past, self.current.lag)
            self.current.lost = self.current.lost + 1 if lost else 0
            return "ends" if self.current.lost >= LOST_SEARCHES else None
        match = self._prints.search(past)
        if match is None:
            return None
        onset, earlier = self._prints.began(past, match.lag)
        self.current = Repetition(onset, earlier, match.lag, match.r)
        return "begins"

    def add_unmet(self, past: LongPast, steps: Sequence[int], losses: Sequence[float]) -> int:
        """Take blocks, as ``add`` does, up to the first one that may change ``current``; return how many.

        Args:
            steps: at which they begin. losses: PAST_BLOCK for each.
        """
        return 0 if self.current is not None else self._prints.add_unmet(past, steps, losses)
