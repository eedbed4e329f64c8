"""Times in which the job of a run logged: one interval per start of its lowest rank. A fold over rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.fleet.interruptions import TrainingInterval
from stabilitybackend.judging.liveness.world_size import LaunchSizes
from stabilitybackend.lineage.batch import Batch, Source
from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.lineage.consumer import EVERY_EVENT, Consumer, Effects

__all__ = ["TrainingIntervals"]

#: Starts remembered per run, newest ones.
MAX_INTERVALS = 1_024
#: Events of a process that ended.
_ENDS = frozenset({"finish", "preempted", "left", "exception", "process_death"})


class TrainingIntervals(Stateful, Consumer):
    """The starts of one job, by the log times of its lowest rank.

    Attributes:
        watched: by an agent: the job ran live and was not imported.
        over_at: end of its last process, unix seconds; 0 before that.
        span: first and last row of any rank, by the log's own clock, unix seconds; None before the first row.
    """

    reads = (LaunchSizes,)
    events = EVERY_EVENT

    watched: bool = False
    span: tuple[float, float] | None = None
    over_at: float = 0.0
    _rank: int | None = None
    #: By source; the finished ones are in another set.
    _known: dict[str, TrainingInterval] = fresh(dict)
    _finished: dict[str, None] = fresh(dict)

    def __init__(self, sizes: LaunchSizes) -> None:
        super().__init__()
        self._sizes = sizes

    def state(self) -> Mapping[str, Stateful]:
        return {"stretches": self}

    def rows(self, batch: Batch, effects: Effects) -> None:
        if batch.stray or batch.tables[0].sources[0].rank is None:
            return
        first, last = batch.times
        low, high = self.span or batch.times
        self.span = min(low, first), max(high, last)
        for table in batch.tables:
            for at, source in enumerate(table.sources):
                if source.rank is not None and (self._rank is None or source.rank <= self._rank):
                    self._take(source, source.rank, table.steps[:, at], table.times[:, at])

    def _take(self, source: Source, rank: int, steps: NDArray[np.int64], times: NDArray[np.float64]) -> None:
        if self._rank is None or rank < self._rank:
            self._rank = rank
            self._known.clear()
        began, ended, first, last = float(times[0]), float(times[-1]), int(steps[0]), int(steps[-1])
        known = self._known.get(source.source)
        if known is not None:
            known.extend(first, last, ended)
            return
        made = max(0, last - first)
        self._known[source.source] = TrainingInterval(
            source.source, began, max(began, ended), first, last, self._sizes.size, made=made
        )
        if len(self._known) > MAX_INTERVALS:
            del self._known[min(self._known, key=lambda source: self._known[source].began)]

    def event(self, event: LineageEvent, effects: Effects) -> None:
        self.watched |= event.source.rank is None
        if event.type in _ENDS:
            self.over_at = max(self.over_at, event.time)
        if event.type in ("finish", "left"):
            self._finished[event.source.source if event.type == "finish" else event.data["source"]] = None
            while len(self._finished) > MAX_INTERVALS:
                del self._finished[next(iter(self._finished))]

    def sources(self) -> list[tuple[str, bool]]:
        """Return the processes of the intervals, and whether each has finished, without copies."""
        return [(source, source in self._finished) for source in self._known]

    def all(self) -> list[TrainingInterval]:
        """Return the intervals, oldest first."""
        known = [replace(one, finished=source in self._finished) for source, one in self._known.items()]
        return sorted(known, key=lambda stretch: stretch.began)
