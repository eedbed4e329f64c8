"""Times in which the job of a run logged: one interval per start of its lowest rank. A fold over rows."""

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
        watched: by an agent: the job ran live and was not imported.
        over_at: end of its last process, unix seconds; 0 before that.
        span: first and last row of any rank, by the log's own clock, unix seconds; None before the first row.
    """

    watched: bool = False
    span: tuple[float, float] | None = None
    over_at: float = 0.0
    _rank: int | None = None
    #: By source; the finished ones are in another set.
    _known: dict[str, TrainingInterval] = fresh(dict)
    _finished: dict[str, None] = fresh(dict)

    def rows(self, placed: Placed, ranks: int) -> None:
        """Take rows of a rank; ``ranks`` is their number in the job."""
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
            # Steps repeated by a rollback count again.
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
        """Take the times between which a rank logged; return whether more than that is kept of it."""
        low, high = self.span or times
        self.span = (min(low, *times), max(high, *times))
        return self.is_of(rank)

    def is_of(self, rank: int) -> bool:
        """Return whether more is kept of a rank than its log times."""
        return self._rank is None or rank <= self._rank

    def ended(self, time: float) -> None:
        """Take the end of a process of the job."""
        self.over_at = max(self.over_at, time)

    def finished(self, source: str) -> None:
        """Take a process's report of its end."""
        self._finished[source] = None
        while len(self._finished) > MAX_INTERVALS:
            del self._finished[next(iter(self._finished))]

    def sources(self) -> list[tuple[str, bool]]:
        """Return the processes of the intervals, and whether each has finished, without copies."""
        return [(source, source in self._finished) for source in self._known]

    def all(self) -> list[TrainingInterval]:
        """Return the intervals, oldest first."""
        known = [replace(one, finished=source in self._finished) for source, one in self._known.items()]
        return sorted(known, key=lambda stretch: stretch.began)
