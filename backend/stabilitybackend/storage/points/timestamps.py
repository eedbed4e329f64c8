"""Finds single rows in long series, and remembers the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stabilitybackend.lineage.tree import FoldedSegment
from stabilitybackend.storage.archive.series import Rows, SeriesKey
from stabilitybackend.storage.points.store import RunStore

__all__ = ["TimesFound", "first_row", "last_row"]

#: Steps read first for a row; each further read goes so many times further.
_SEARCH_STEPS = 64
_SEARCH_FACTOR = 32
#: Metrics looked at for a segment that has none of the usual ones: the first ones that the run logged.
_MAX_METRICS = 200
#: Log times remembered per run; beyond that they are looked up again.
_MAX_KNOWN = 20_000


class HasRows(Protocol):
    """The store, or a view."""

    def rows(self, key: SeriesKey, first: int | None = None, last: int | None = None) -> Rows: ...


def last_row(store: HasRows, key: SeriesKey, first: int, last: int) -> Rows:
    """Return the last row with ``first <= step <= last``, no row where there is none; reads little of a long series."""
    width = _SEARCH_STEPS
    while last >= first:
        rows = store.rows(key, max(last - width + 1, first), last)
        if len(rows):
            return rows[-1:]
        last -= width
        width *= _SEARCH_FACTOR
    return Rows.EMPTY


def first_row(store: HasRows, key: SeriesKey, first: int, last: int) -> Rows:
    """Return the first row with ``first <= step <= last``, no row where there is none."""
    width = _SEARCH_STEPS
    while first <= last:
        rows = store.rows(key, first, min(first + width - 1, last))
        if len(rows):
            return rows[:1]
        first += width
        width *= _SEARCH_FACTOR
    return Rows.EMPTY


class TimesFound:
    """Log times that were looked up for one run: a segment that nothing was added to since is not read again.

    Args:
        metrics: by which time is reported, where a segment has them: the first of them, of its lowest rank.
    """

    def __init__(self, metrics: Sequence[str]) -> None:
        self._metrics = tuple(metrics)
        self._keys: dict[int, tuple[int, int, SeriesKey]] = {}
        self._seen: dict[str, int] = {}
        self._known: dict[tuple[int, int | None], tuple[int, float | None]] = {}

    def keys(self, store: RunStore, segments: Sequence[FoldedSegment]) -> dict[int, SeriesKey]:
        """Return the series by which the time of each segment is reported."""
        for order, metric in enumerate(self._metrics):
            self._take(store, metric, order)
        if any(segment.last_step is not None and segment.id not in self._keys for segment in segments):
            for order, metric in enumerate(store.metrics()[:_MAX_METRICS]):
                self._take(store, metric, len(self._metrics) + order)
        return {segment: key for segment, (_, _, key) in self._keys.items()}

    def _take(self, store: RunStore, metric: str, order: int) -> None:
        """Look at those series of ``metric`` that were not there the last time."""
        keys = store.keys(metric)
        for key in keys[self._seen.get(metric, 0) :]:
            if key.rank is not None and not key.stray:
                known = self._keys.get(key.segment)
                if known is None or (order, key.rank) < known[:2]:
                    self._keys[key.segment] = (order, key.rank, key)
        self._seen[metric] = len(keys)

    def time(self, store: HasRows, key: SeriesKey, segment: FoldedSegment, step: int | None) -> float | None:
        """Return the log time of the last row of ``segment`` at or before ``step`` (None: of its first row)."""
        assert segment.first_step is not None
        assert segment.last_step is not None
        known = self._known.get((segment.id, step))
        if known is not None and known[0] == segment.points:
            return known[1]
        if step is None:
            row = first_row(store, key, segment.first_step, segment.last_step)
        else:
            row = last_row(store, key, segment.first_step, min(step, segment.last_step))
        time = float(row.times[0]) if len(row) else None
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[(segment.id, step)] = (segment.points, time)
        return time
