"""Remembers when the job of a run logged: one stretch for each start of its lowest rank. A fold over rows."""

from __future__ import annotations

from dataclasses import replace

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.fleet.interruptions import TrainingInterval
from stabilitybackend.lineage.changes import Placed

__all__ = ["TrainingIntervals"]

#: Starts remembered per run, newest ones.
MAX_INTERVALS = 1_024


class TrainingIntervals(Stateful):
    """The starts of one job, by the log times of its lowest rank.

    Attributes:
        watched: an agent has reported: the job ran live and was not imported.
        over_at: when a process of the job ended last, unix seconds; 0 before that.
        span: when ranks logged first and last, by the log's own clock, unix seconds; None before the first row.
    """

    watched: bool = False
    span: tuple[float, float] | None = None
    over_at: float = 0.0
    _rank: int | None = None
    #: By source; which of them have finished is kept beside.
    _known: dict[str, TrainingInterval] = fresh(dict)
    _finished: dict[str, None] = fresh(dict)

    def rows(self, placed: Placed, ranks: int) -> None:
        """Take note of rows of a rank; ``ranks`` is how many the job has."""
        if placed.rank is None or placed.stray:
            return
        times = (float(placed.times[0]), float(placed.times[-1]))
        if not self.of_rank(placed.rank, times):
            return
        if self._rank is None or placed.rank < self._rank:
            self._rank = placed.rank
            self._known.clear()
        began, ended = times
        first, last = int(placed.steps[0]), int(placed.steps[-1])
        known = self._known.get(placed.source)
        if known is not None:
            # Steps that a rollback repeats count again.
            known.made += max(0, first - known.last_step) + max(0, last - first)
            known.ended, known.last_step = max(known.ended, ended), last
            return
        made = max(0, last - first)
        self._known[placed.source] = TrainingInterval(
            placed.source, began, max(began, ended), first, last, ranks, made=made
        )
        if len(self._known) > MAX_INTERVALS:
            del self._known[min(self._known, key=lambda source: self._known[source].began)]

    def of_rank(self, rank: int, times: tuple[float, float]) -> bool:
        """Take note that a rank logged from one time to another; return whether more of it is kept."""
        low, high = self.span or times
        self.span = (min(low, *times), max(high, *times))
        return self.is_of(rank)

    def is_of(self, rank: int) -> bool:
        """Return whether more is kept of a rank than when it logged."""
        return self._rank is None or rank <= self._rank

    def ended(self, time: float) -> None:
        """Note that a process of the job ended, in whatever way."""
        self.over_at = max(self.over_at, time)

    def finished(self, source: str) -> None:
        """Note that a process reported that it was done."""
        self._finished[source] = None
        while len(self._finished) > MAX_INTERVALS:
            del self._finished[next(iter(self._finished))]

    def sources(self) -> list[tuple[str, bool]]:
        """Return the processes of the stretches, and whether each has finished, without copies."""
        return [(source, source in self._finished) for source in self._known]

    def all(self) -> list[TrainingInterval]:
        """Return the stretches, oldest first."""
        known = [replace(one, finished=source in self._finished) for source, one in self._known.items()]
        return sorted(known, key=lambda stretch: stretch.began)
