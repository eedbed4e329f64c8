"""A table of a message: rows of one set of metrics."""

from __future__ import annotations

import numpy as np

from stabilitybackend.base.name_sets import key_of
from stabilitybackend.judging.detectors.straggler import reports_own_work
from stabilityclient.wire import PointsBlock

__all__ = ["Table"]


class Table:
    """Its columns as arrays, and its steps and times as Python's numbers.

    Attributes:
        names: the m metrics. steps: int64 (n,). times: float64 (n,), unix seconds. values: float64 (m, n).
        own_work: whether a metric says how long a rank's own work took.
    """

    def __init__(self, block: PointsBlock) -> None:
        self.names = block.names
        self.steps = np.frombuffer(block.steps, dtype="<i8")
        self.times = np.frombuffer(block.times, dtype="<f8")
        self.values = np.frombuffer(block.values, dtype="<f8").reshape(len(block.names), len(self.steps))
        self.step_list: list[int] = self.steps.tolist()
        self.time_list: list[float] = self.times.tolist()
        self.own_work = reports_own_work(key_of(block.names))

    def rises(self, start: int, stop: int) -> bool:
        """Return whether the steps of some rows never go back."""
        return stop - start == 1 or bool((self.steps[start + 1 : stop] >= self.steps[start : stop - 1]).all())
