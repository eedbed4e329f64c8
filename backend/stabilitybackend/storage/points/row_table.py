"""A table of the newest points in memory: rows of one set of metrics, in columns that grow together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stabilitybackend.lineage.batch import Placed
from stabilitybackend.storage.archive.series import Rows, SeriesKey

__all__ = ["RowTable", "TableOutline", "TablePart", "TableRows"]

#: Rows of a new table. Small, because jobs make up 10,000 names that hold a single point each; it doubles.
_FIRST_CAPACITY = 16
#: Held while rows are put into columns: the archiver and queries read in threads.
_COLUMNS = Lock()


class TablePart(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Some rows of one metric in one table, in order of arrival; ``order`` counts rows of the run.

    ``in_order``: no step is below the one before it.
    """

    rows: Rows
    order: NDArray[np.int64]
    in_order: bool

    def between(self, first: int | None, last: int | None) -> TablePart:
        """Return a part without rows outside ``first <= step <= last``; one that is not in order comes whole."""
        if not self.in_order:
            return self
        part = self.rows.places(first, last)
        return TablePart(self.rows[part], self.order[part], True)


@dataclass(frozen=True, slots=True)
class TableRows:
    """Some rows of one table, in order of arrival: a file's share (``runs/archiving/restart_files.py``).

    ``order`` counts rows of the run, one entry a row.
    """

    placed: Placed
    order: NDArray[np.int64]


class TableOutline(msgspec.Struct, array_like=True):
    """The rows of one set of metrics by one process in one segment, without the points.

    Attributes:
        rank: None for readings of an agent, which has a node. stray: as of ``Placed``.
        first_step, last_step: the smallest and greatest one. rows: of all steps.
    """

    segment: int
    rank: int | None
    node: str
    stray: bool
    names: list[str]
    first_step: int
    last_step: int
    rows: int

    def series(self) -> Iterator[SeriesKey]:
        """Yield the series of these rows."""
        for name in self.names:
            yield SeriesKey(name, self.segment, self.rank, self.node, self.stray)


class RowTable:
    """Rows of one set of metrics in one segment, by one process or by several ranks that log it in step.

    Args:
        ranks: k of them, None for an agent; with more than one each row of the table holds a row of each, which follow
            each other in the order of the run. node: of an agent. stray: as of ``Placed``.
        at: its name in its generation, which ends with the m metrics. Row ``i * k + j`` of its values is the metric
            ``i`` of the rank ``j``.
    """

    def __init__(
        self, at: tuple[Any, ...], segment: int, ranks: tuple[int | None, ...], node: str, stray: bool
    ) -> None:
        names: tuple[str, ...] = at[-1]
        self.at = at
        self.segment, self.ranks, self.node, self.stray, self.names = segment, ranks, node, stray, list(names)
        #: Whether its generation has noted where its series are.
        self.placed = False
        self._steps = np.empty(_FIRST_CAPACITY, dtype=np.int64)
        #: Of the first rank.
        self._order = np.empty(_FIRST_CAPACITY, dtype=np.int64)
        self._times = np.empty((len(ranks), _FIRST_CAPACITY), dtype=np.float64)
        self._values = np.empty((len(names) * len(ranks), _FIRST_CAPACITY), dtype=np.float64)
        self._size = 0
        #: Whether no step in its columns is below the one before it: late rows fill holes.
        self.in_order = True
        #: Steps (n,), times (k, n), values (m k, n), and the first one's order (n,).
        self._gathered: list[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]] = []
        #: Its newest row, of the run.
        self.newest = -1
        #: The smallest and greatest step in its columns.
        self.low, self.high = 0, -1

    def series(self) -> Iterator[SeriesKey]:
        """Yield the series of each row of its values."""
        for name in self.names:
            for rank in self.ranks:
                yield SeriesKey(name, self.segment, rank, self.node, self.stray)

    def take(
        self, steps: NDArray[np.int64], times: NDArray[np.float64], values: NDArray[np.float64],
        order: NDArray[np.int64], gather: int = 1,
    ) -> None:  # fmt: skip
        """Append rows of each of its ranks, now or when ``gather`` sets of rows are there. Earlier reads stay valid.

        Args:
            steps: (n,). times: (k, n). values: (m k, n), as in the table. order: of the first rank's rows, (n,).
        """
        with _COLUMNS:
            self._gathered.append((steps, times, values, order))
            self.newest = max(self.newest, int(order[-1]))
            if len(self._gathered) >= gather or len(steps) > gather:
                self._settle()

    def settle(self) -> None:
        """Put the gathered rows into the columns."""
        if self._gathered:
            with _COLUMNS:
                self._settle()

    def _settle(self) -> None:
        gathered = self._gathered
        if not gathered:
            return
        if len(gathered) == 1:
            self._extend(*gathered[0])
        else:
            self._extend(
                np.concatenate([steps for steps, _, _, _ in gathered]),
                np.concatenate([times for _, times, _, _ in gathered], axis=1),
                np.concatenate([values for _, _, values, _ in gathered], axis=1),
                np.concatenate([order for _, _, _, order in gathered]),
            )
        # Not before they are in the columns: a thread that finds nothing gathered reads these without the lock.
        self._gathered = []

    def _extend(
        self, steps: NDArray[np.int64], times: NDArray[np.float64], values: NDArray[np.float64],
        order: NDArray[np.int64],
    ) -> None:  # fmt: skip
        count, size = len(steps), self._size
        if size + count > len(self._steps):
            self._grow(max(2 * len(self._steps), size + count))
        in_order = count == 1 or bool((steps[1:] >= steps[:-1]).all())
        low, high = (int(steps[0]), int(steps[-1])) if in_order else (int(steps.min()), int(steps.max()))
        self.in_order = self.in_order and in_order and (size == 0 or low >= self.high)
        self.low, self.high = (low, high) if size == 0 else (min(low, self.low), max(high, self.high))
        self._steps[size : size + count] = steps
        self._order[size : size + count] = order
        self._times[:, size : size + count] = times
        self._values[:, size : size + count] = values
        self._size = size + count

    def _grow(self, capacity: int) -> None:
        size = self._size
        for name in ("_steps", "_order", "_times", "_values"):
            old = getattr(self, name)
            new = np.empty((*old.shape[:-1], capacity), dtype=old.dtype)
            new[..., :size] = old[..., :size]
            setattr(self, name, new)

    def rows(self, row: int) -> Rows:
        """Return the rows of a row of its values in order of arrival."""
        self.settle()
        size = self._size
        return Rows(self._steps[:size], self._values[row, :size], self._times[row % len(self.ranks), :size])

    def part(self, row: int) -> TablePart:
        """Return the same rows now, with their order."""
        rows = self.rows(row)
        order = self._order[: len(rows)]
        return TablePart(rows, order + row % len(self.ranks) if len(self.ranks) > 1 else order, self.in_order)

    def outlines(self) -> Iterator[TableOutline]:
        """Yield its contents by rank, without the points."""
        self.settle()
        for rank in self.ranks:
            yield TableOutline(
                self.segment, rank, self.node, self.stray, self.names, self.low, self.high, self._size
            )  # fmt: skip

    def after(self, order: int) -> list[TableRows]:
        """Return each rank's rows from row ``order`` of the run on, where a frame begins.

        Nothing is copied but the order, and nothing changes it: a thread may read it.
        """
        self.settle()
        size, ranks = self._size, len(self.ranks)
        first = int(np.searchsorted(self._order[:size], order))
        if first == size:
            return []
        part = slice(first, size)
        return [
            TableRows(
                Placed(
                    self.segment, "", rank, self.node, self.names,
                    self._steps[part], self._times[at, part], self._values[at::ranks, part], self.stray,
                ),
                self._order[part] + at,
            )
            for at, rank in enumerate(self.ranks)
        ]  # fmt: skip
