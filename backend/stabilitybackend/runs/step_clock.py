"""The present step of a job and its pace, from rows and slots; extrapolated between them."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.detection.run_detection import Judge
from stabilitybackend.lineage.batch import Batch
from stabilitybackend.lineage.changes import Forked
from stabilitybackend.lineage.consumer import Consumer, Effects
from stabilitybackend.lineage.lineage import Given, Lineage

__all__ = ["StepClock"]

#: Step times remembered for the usual step time, newest ones.
STEP_TIMES_KEPT = 32
#: Step times below which none is called usual.
FEW_STEP_TIMES = 3
#: A step is extrapolated at most this far past the last message of the job, seconds.
MAX_EXTRAPOLATION_S = 2.0


class StepClock(Stateful, Consumer):
    """The pace of one job, by the rows of the rank that is judged."""

    reads = (Given, Lineage, Judge)

    _running: tuple[int, float] | None = None
    _last_row: tuple[int, float] | None = None
    _step_times: deque[float] = fresh(deque, maxlen=STEP_TIMES_KEPT)

    def __init__(self, given: Given, lineage: Lineage, judge: Judge) -> None:
        super().__init__()
        self._clock, self._tree, self._judge = given.clock, lineage.fold.tree, judge

    def state(self) -> Mapping[str, Stateful]:
        return {"pace": self}

    @property
    def newest(self) -> int:
        """Return the newest step reported by a rank, -1 before the first."""
        return -1 if self._running is None else self._running[0]

    @property
    def logged(self) -> int:
        """Return the newest step of a row that is here, by whose rank time is taken; -1 before the first."""
        return -1 if self._last_row is None else self._last_row[0]

    def in_step(self, step: int) -> None:
        """Take note that a rank is in a step."""
        if step > self.newest:
            self._running = (step, self._clock())

    def rows(self, batch: Batch, effects: Effects) -> None:
        """Take rows: their ranks are in the step after."""
        if batch.stray or batch.segment != self._tree.head or batch.tables[0].sources[0].rank is None:
            return
        self.in_step(batch.high + 1)
        primary = self._judge.primary
        if batch.is_of_one:
            if batch.tables[0].sources[0].rank == primary:
                self._take(*batch.merged()[:2])
            return
        for table in batch.tables:
            for at, source in enumerate(table.sources):
                if source.rank == primary:
                    self._take(table.steps[:, at], table.times[:, at])

    def _take(self, steps: NDArray[np.int64], times: NDArray[np.float64]) -> None:
        """Take rows of the rank by which time is taken; a late one gives no pace."""
        for step, time in zip(steps.tolist(), times.tolist(), strict=True):
            if self._last_row is not None:
                before, at = self._last_row
                if step < before:
                    continue
                if step > before:
                    self._step_times.append((time - at) / (step - before))
            self._last_row = (step, time)

    def forked(self, fork: Forked, effects: Effects) -> None:
        if fork.is_head:  # the job continues from the state of a step
            self._running, self._last_row = (fork.segment.fork_step + 1, self._clock()), None

    def now(self) -> tuple[int | None, float | None]:
        """Return the present step of the job, and its usual seconds a step; None: unknown."""
        step_time_s = statistics.median(self._step_times) if len(self._step_times) >= FEW_STEP_TIMES else None
        if self._running is None:
            return None, step_time_s
        step, seen = self._running
        elapsed_s = min(max(self._clock() - seen, 0.0), MAX_EXTRAPOLATION_S)
        return step + (int(elapsed_s / step_time_s) if step_time_s and step_time_s > 0 else 0), step_time_s
