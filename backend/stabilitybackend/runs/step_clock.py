"""Where a job is now and how fast it goes, from rows and slots; what lies in between is extrapolated."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

from stabilitybackend.base.stateful import Stateful, fresh

__all__ = ["StepClock"]

#: Step times remembered for the usual step time, newest ones.
STEP_TIMES_KEPT = 32
#: Step times below which none is called usual.
FEW_STEP_TIMES = 3
#: A step is extrapolated at most this far past the last message of the job, seconds.
MAX_EXTRAPOLATION_S = 2.0


class StepClock(Stateful):
    """The pace of one job; ``clock`` returns unix seconds."""

    _running: tuple[int, float] | None = None
    _last_row: tuple[int, float] | None = None
    _step_times: deque[float] = fresh(deque, maxlen=STEP_TIMES_KEPT)

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock

    @property
    def newest(self) -> int:
        """Return the newest step that a rank is known to be in, -1 before the first."""
        return -1 if self._running is None else self._running[0]

    @property
    def logged(self) -> int:
        """Return the newest step of a row that is here, by whose rank time is taken; -1 before the first."""
        return -1 if self._last_row is None else self._last_row[0]

    def in_step(self, step: int) -> None:
        """Take note that a rank is in a step."""
        if step > self.newest:
            self._running = (step, self._clock())

    def row(self, step: int, time: float, *, primary: bool) -> None:
        """Take note of a row: its rank is in the step after it.

        Args:
            step: of the row. time: its log time, unix seconds. primary: it is of the rank by which time is taken.
        """
        self.in_step(step + 1)
        if primary and (self._last_row is None or step >= self._last_row[0]):  # a late row tells no pace
            if self._last_row is not None and step > self._last_row[0]:
                self._step_times.append((time - self._last_row[1]) / (step - self._last_row[0]))
            self._last_row = (step, time)

    def forked(self, fork_step: int) -> None:
        """Take note that the job goes on from the state of a step."""
        self._running, self._last_row = (fork_step + 1, self._clock()), None

    def now(self) -> tuple[int | None, float | None]:
        """Return the step that the job is in by now, and its usual seconds a step; None what is not known."""
        step_time_s = statistics.median(self._step_times) if len(self._step_times) >= FEW_STEP_TIMES else None
        if self._running is None:
            return None, step_time_s
        step, seen = self._running
        elapsed_s = min(max(self._clock() - seen, 0.0), MAX_EXTRAPOLATION_S)
        return step + (int(elapsed_s / step_time_s) if step_time_s and step_time_s > 0 else 0), step_time_s
