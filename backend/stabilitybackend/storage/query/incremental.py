"""Only what came after a cursor, in the shape that a query reads: no browser has to read history again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.lineage.changes import Placed
from stabilitybackend.storage.archive.aggregates import EMPTY_AGGS, Aggs, aggregate
from stabilitybackend.storage.archive.series import Extent, Rows, SeriesKey
from stabilitybackend.storage.points.memtable import series_key
from stabilitybackend.storage.query.downsampling import SeriesReader
from stabilitybackend.storage.query.expressions import Expression
from stabilitybackend.storage.query.lineage_view import LineageView
from stabilitybackend.storage.query.x_axis import row_before

__all__ = ["Increment"]

Steps = NDArray[np.int64]


class Increment:
    """The new rows of some series.

    Args:
        store: all of the run: of a step that has a new row all rows are in the answer.
        newer: rows that came after the cursor, as they were placed.
        x: another metric that says where points lie, None for none: older points that its new rows give a place are
            news too.
        expressions: those among ``metrics`` and ``x``: news where one of their metrics has any.
    """

    def __init__(
        self,
        store: SeriesReader,
        lineage: LineageView,
        newer: Iterable[Placed],
        metrics: Sequence[str],
        x: str | None = None,
        expressions: Mapping[str, Expression] | None = None,
    ) -> None:
        steps: dict[SeriesKey, list[Steps]] = {}
        wanted = frozenset(metrics if x is None else [*metrics, x])
        made = {name: frozenset(one.metrics) for name, one in (expressions or {}).items()}
        for placed in newer:
            for name in wanted.intersection(placed.names):
                steps.setdefault(series_key(placed, name), []).append(placed.steps)
            for name, operands in made.items():
                if not operands.isdisjoint(placed.names):
                    steps.setdefault(series_key(placed, name), []).append(placed.steps)
        placing = [key for key in steps if key.metric == x and not key.stray]
        for key in placing:
            for other, older in _placed_now(store, lineage, key, np.concatenate(steps[key]), metrics):
                steps.setdefault(other, []).append(older)
        self._rows: dict[SeriesKey, Rows] = {}
        for key, parts in steps.items():
            new = np.unique(np.concatenate(parts))
            rows = store.rows(key, int(new[0]), int(new[-1])) if len(new) else Rows.EMPTY
            found = np.isin(rows.steps, new)
            if found.any():
                self._rows[key] = rows[found]

    def keys(self, metric: str) -> list[SeriesKey]:
        """Return the series of one metric that have new rows."""
        return [key for key in self._rows if key.metric == metric]

    def extent(self, key: SeriesKey) -> Extent | None:
        """Return first and last new step of a series and how many rows there are."""
        rows = self._rows.get(key)
        return None if rows is None else Extent(int(rows.steps[0]), int(rows.steps[-1]), len(rows))

    def rows(self, key: SeriesKey, first: int | None = None, last: int | None = None) -> Rows:
        """Return the new rows with ``first <= step <= last``."""
        return self._rows.get(key, Rows.EMPTY).between(first, last)

    def aggregates(self, key: SeriesKey, first: int, last: int, level: int) -> Aggs:
        """Return one aggregate per block of ``2**level`` steps over the new rows of ``first <= step <= last``."""
        rows = self.rows(key, first, last)
        return aggregate(rows, level) if len(rows) else EMPTY_AGGS


def _placed_now(
    store: SeriesReader, lineage: LineageView, key: SeriesKey, new: Steps, metrics: Iterable[str]
) -> Iterator[tuple[SeriesKey, Steps]]:
    """Yield the steps of ``metrics`` that lie between the new rows of the x metric and the last row before them."""
    if not len(new):
        return
    low, high = int(new.min()), int(new.max())
    path = lineage.path_of(key.segment)
    before = row_before(store, path, key, low)
    first = low if before is None else before[0] + 1
    for part in path:
        last = high if part.last is None else min(high, part.last)
        if first > last:
            continue
        for other in (found for metric in metrics for found in store.keys(metric)):
            if other.segment == part.segment and not other.stray:
                yield other, store.rows(other, first, last).steps
