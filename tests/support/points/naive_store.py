"""A store of points written as simply as it can be: what the real one and every query are compared with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from stabilitybackend.archive.aggregates import Aggs, aggregate
from stabilitybackend.archive.series import Extent, Rows, SeriesKey
from stabilitybackend.lineage.changes import Placed
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.query.lineage_view import LineageView
from stabilityclient.wire import Frame

__all__ = ["NaiveRun", "NaiveStore"]


@dataclass
class NaiveStore:
    """Every series is a dictionary of its steps; the value that came last stands."""

    points: dict[SeriesKey, dict[int, tuple[float, float]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, placed: Placed) -> None:
        for row, name in enumerate(placed.names):
            node = "" if placed.rank is not None else placed.node
            key = SeriesKey(name, placed.segment, placed.rank, node, placed.stray)
            series = self.points.setdefault(key, {})
            for i, step in enumerate(placed.steps.tolist()):
                series[step] = (float(placed.values[row, i]), float(placed.times[i]))

    def keys(self, metric: str) -> list[SeriesKey]:
        return [key for key in self.points if key.metric == metric]

    def extent(self, key: SeriesKey) -> Extent | None:
        steps = self.points.get(key)
        return Extent(min(steps), max(steps), len(steps)) if steps else None

    def rows(self, key: SeriesKey, first: int | None = None, last: int | None = None) -> Rows:
        series = self.points.get(key, {})
        steps = sorted(s for s in series if (first is None or s >= first) and (last is None or s <= last))
        return Rows(
            np.array(steps, np.int64),
            np.array([series[s][0] for s in steps], np.float64),
            np.array([series[s][1] for s in steps], np.float64),
        )

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
