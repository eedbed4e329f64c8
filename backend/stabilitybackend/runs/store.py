"""The points of one run in memory, one growing column per series, as the lineage fold placed them.

The truth is the run's stream in Redis; this is what a query reads. It is rebuilt from the stream at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.lineage.changes import Placed

__all__ = ["Column", "RunStore", "SeriesKey"]

#: Points of a new series. Small, because jobs make up 10,000 names that hold a single point each; it doubles.
_FIRST_CAPACITY = 16


@dataclass(frozen=True)
class SeriesKey:
    """Names one series: rank is None for an agent's metrics, then ``node`` tells them apart."""

    metric: str
    segment: int
    rank: int | None
    node: str
    stray: bool = False


class Column:
    """Steps (int64), values (float64) and log times (float64, unix seconds) of one series, in order of arrival."""

    def __init__(self) -> None:
        self._steps = np.empty(_FIRST_CAPACITY, dtype=np.int64)
        self._values = np.empty(_FIRST_CAPACITY, dtype=np.float64)
        self._times = np.empty(_FIRST_CAPACITY, dtype=np.float64)
        self._size = 0
        self._sorted = True

    def __len__(self) -> int:
        return self._size

    def extend(self, steps: NDArray[np.int64], values: NDArray[np.float64], times: NDArray[np.float64]) -> None:
        """Append n points."""
        count, size = len(steps), self._size
        if size + count > len(self._steps):
            capacity = max(2 * len(self._steps), size + count)
            self._steps = np.resize(self._steps, capacity)
            self._values = np.resize(self._values, capacity)
            self._times = np.resize(self._times, capacity)
        if self._sorted:
            joined = size == 0 or steps[0] > self._steps[size - 1]
            self._sorted = bool(joined and (steps[1:] > steps[:-1]).all())
        self._steps[size : size + count] = steps
        self._values[size : size + count] = values
        self._times[size : size + count] = times
        self._size = size + count

    def read(self) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Return (steps, values, times), steps strictly rising.

        Where a step was logged more than once in the same segment the value logged last stands: that is what a
        training loop means when it logs again.
        """
        if not self._sorted:
            self._tidy()
        size = self._size
        return self._steps[:size], self._values[:size], self._times[:size]

    def _tidy(self) -> None:
        size = self._size
        order = np.argsort(self._steps[:size], kind="stable")
        steps = self._steps[:size][order]
        last = np.append(steps[1:] != steps[:-1], True)
        keep = order[last]
        self._steps = self._steps[keep].copy()
        self._values = self._values[keep].copy()
        self._times = self._times[keep].copy()
        self._size = len(keep)
        self._sorted = True


class RunStore:
    """All series of one run."""

    def __init__(self) -> None:
        self._columns: dict[SeriesKey, Column] = {}
        self._by_metric: dict[str, list[SeriesKey]] = {}
        #: Values held, repeated ones included.
        self.values = 0
        #: Segment -> greatest step that a rank logged there.
        self.newest: dict[int, int] = {}

    def add(self, placed: Placed) -> None:
        """Store rows that found their segment."""
        for row, name in enumerate(placed.names):
            node = "" if placed.rank is not None else placed.node
            key = SeriesKey(name, placed.segment, placed.rank, node, placed.stray)
            column = self._columns.get(key)
            if column is None:
                column = self._columns[key] = Column()
                self._by_metric.setdefault(name, []).append(key)
            column.extend(placed.steps, placed.values[row], placed.times)
        self.values += placed.values.size
        if placed.rank is not None and not placed.stray and placed.values.size:
            self.newest[placed.segment] = max(self.newest.get(placed.segment, -1), int(placed.steps.max()))

    def metrics(self) -> list[str]:
        """Return the metric names, in the order in which they appeared."""
        return list(self._by_metric)

    def series(self, metric: str) -> Iterator[tuple[SeriesKey, Column]]:
        """Yield the series of one metric."""
        for key in self._by_metric.get(metric, []):
            yield key, self._columns[key]

    def column(self, key: SeriesKey) -> Column | None:
        """Return one series, None where there is none."""
        return self._columns.get(key)
