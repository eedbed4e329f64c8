"""A store of points written as simply as it can be: what the real one and every query are compared with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from stabilitybackend.lineage.batch import Placed
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.storage.archive.aggregates import Aggs, aggregate
from stabilitybackend.storage.archive.series import Extent, Rows, SeriesKey
from stabilitybackend.storage.query.lineage_view import LineageView
from stabilityclient.wire import Frame

__all__ = ["NaiveRun", "NaiveStore"]


@dataclass
class NaiveStore:
    """Every series is a list of its rows as they came."""

    points: dict[SeriesKey, list[tuple[int, float, float]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, placed: Placed) -> None:
        for row, name in enumerate(placed.names):
            node = "" if placed.rank is not None else placed.node
            key = SeriesKey(name, placed.segment, placed.rank, node, placed.stray)
            columns = placed.steps.tolist(), placed.values[row].tolist(), placed.times.tolist()
            self.points.setdefault(key, []).extend(zip(*columns, strict=True))

    def keys(self, metric: str) -> list[SeriesKey]:
        return [key for key in self.points if key.metric == metric]

    def extent(self, key: SeriesKey) -> Extent | None:
        steps = [step for step, _, _ in self.points.get(key, [])]
        return Extent(min(steps), max(steps), len(steps)) if steps else None

    def rows(self, key: SeriesKey, first: int | None = None, last: int | None = None) -> Rows:
        low, high = -1 if first is None else first, 2**63 if last is None else last
        rows = sorted((row for row in self.points.get(key, []) if low <= row[0] <= high), key=lambda row: row[0])
        steps, values, times = zip(*rows, strict=True) if rows else ((), (), ())
        return Rows(np.array(steps, np.int64), np.array(values, np.float64), np.array(times, np.float64))

    def aggregates(self, key: SeriesKey, first: int, last: int, level: int) -> Aggs:
        return aggregate(self.rows(key, first, last), level)


class NaiveRun:
    """A lineage fold and a naive store, fed with frames."""

    def __init__(self, frames: Iterable[Frame] = ()) -> None:
        self.fold, self.store = LineageFold(), NaiveStore()
        for frame in frames:
            self.feed(frame)

    def feed(self, frame: Frame) -> list[Placed]:
        """Take a frame; return the rows that found their segment with it."""
        placed = [change for change in self.fold.apply(frame) if isinstance(change, Placed)]
        for rows in placed:
            self.store.add(rows)
        return placed

    @property
    def lineage(self) -> LineageView:
        return LineageView.of(self.fold)
