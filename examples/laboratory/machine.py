"""The machine under the job on a virtual clock: loader workers, ranks, pauses. Real work, virtual seconds.

The laboratory trains in milliseconds on one CPU core, where a slow loader or a slow rank would drown in the noise of
the machine that it happens to run on. So the job's clock is a model of the machine: workers need so long for a batch,
ranks need so long for their part and wait for each other. A fault changes the machine, never the logged numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

__all__ = ["START", "Machine", "StepTimes"]

#: The virtual clock's first second, unix time.
START = 1_790_000_000.0
#: Seconds that one rank needs for one row, and for a step besides.
_ROW_S = 0.012
_STEP_S = 0.15
#: Seconds that one worker needs for one row. Four workers are twice as fast as the ranks need.
_LOAD_ROW_S = 0.025
#: Spread of the times, as a fraction.
_SPREAD = 0.03


@dataclass(frozen=True)
class StepTimes:
    """What one step took.

    Args:
        ended: virtual unix time at its end.
        step_s: from the end of the last step to the end of this one, as the job sees it.
        own_s: what each rank worked, without waiting for the others.
    """

    ended: float
    step_s: float
    own_s: list[float]


@dataclass
class Machine:
    """Loader workers and ranks.

    Args:
        ranks: how many work side by side.
        seed: of the small differences between steps.
    """

    ranks: int
    seed: int
    now: float = START
    workers: int = 4
    load_factor: float = 1.0
    rank_factor: dict[int, float] = field(default_factory=dict)
    _ready: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng((self.seed, 5))

    def step(self, rows: int) -> StepTimes:
        """Load a batch of ``rows``, work on it, and return how long that took."""
        began = self.now
        jitter = np.exp(_SPREAD * self._rng.standard_normal(self.ranks + 1))
        work = self.work_s(rows)
        own = [work * float(jitter[i]) * self.rank_factor.get(i, 1.0) for i in range(self.ranks)]
        self.now = max(began, self._batch_ready(rows, float(jitter[-1]))) + max(own)
        return StepTimes(self.now, self.now - began, own)

    def work_s(self, rows: int) -> float:
        """Return what a rank needs for its part of ``rows``, on average."""
        return _STEP_S + _ROW_S * rows / self.ranks

    def load_s(self, rows: int) -> float:
        """Return what a healthy worker needs for ``rows``, on average."""
        return _LOAD_ROW_S * rows

    def pause(self, seconds: float) -> None:
        """Let the clock go on while no step is done."""
        self.now += seconds

    def _batch_ready(self, rows: int, jitter: float) -> float:
        """Return when the next batch is there. Each worker has one batch in hand or ready."""
        free = sorted(self._ready)[-self.workers :] if self._ready else []
        free += [self.now] * (self.workers - len(free))
        first = min(free)
        free.remove(first)
        needed = self.load_s(rows) * self.load_factor * jitter
        ready = max(first, self.now - needed * self.workers) + needed
        self._ready = [*free, ready]
        return ready
