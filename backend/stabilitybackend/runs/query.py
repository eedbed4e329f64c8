"""Answers what a chart asks: effective or all, a window of steps, at most so many points, and no spike lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tsdownsample import MinMaxDownsampler

from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.runs.store import Column, RunStore, SeriesKey

__all__ = ["Series", "effective_rows", "json_numbers", "select", "summary"]

#: Fewest points a bounded series may ask for: first, last, one minimum and one maximum.
MIN_POINTS = 4
#: Metrics whose newest value a summary holds: the first ones that the run logged. It is made every second.
MAX_LATEST = 200
_MIN_MAX: Any = MinMaxDownsampler()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Series:
    """One entry of an answer: steps strictly rising, values with NaN and infinities as they were logged."""

    metric: str
    segment: int
    dead: bool
    rank: int | None
    node: str
    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    def as_dict(self) -> dict[str, Any]:
        """Return the shape of docs/api.md."""
        return {
            "metric": self.metric,
            "segment": self.segment,
            "dead": self.dead,
            "rank": self.rank,
            "node": self.node or None,
            "steps": self.steps.tolist(),
            "values": json_numbers(self.values),
        }


def json_numbers(values: NDArray[np.float64]) -> list[float | str]:
    """Return ``values`` for JSON, which has no NaN: non-finite ones as "NaN", "Infinity", "-Infinity"."""
    numbers: list[float | str] = values.tolist()
    for i in np.flatnonzero(~np.isfinite(values)):
        value = values[i]
        numbers[i] = "NaN" if np.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return numbers


def select(
    store: RunStore,
    fold: LineageFold,
    metrics: Iterable[str],
    *,
    view: str = "effective",
    start: int | None = None,
    stop: int | None = None,
    points: int | None = None,
) -> list[Series]:
    """Return the series of ``metrics``.

    Args:
        view: ``effective`` for the head's path, each segment cut at its child's fork; ``all`` for every segment, its
            dead points as entries of their own.
        start, stop: first and last step, inclusive; None for no bound.
        points: at most about this many points an entry (>= 4), extremes and non-finite values kept; None for all.
    """
    parts = [
        part
        for metric in metrics
        for key, column in store.series(metric)
        for part in _parts(fold, key, column, view == "all")
    ]
    if view == "all":
        wanted = set(metrics)
        parts += [part for part in _undecided(fold) if part.metric in wanted]
    windowed = (_window(part, start, stop) for part in parts)
    chosen = [part for part in windowed if len(part.steps)]
    if points is not None:
        chosen = [_thin(part, max(points, MIN_POINTS)) for part in chosen]
    return sorted(chosen, key=lambda s: (s.metric, -1 if s.rank is None else s.rank, s.node, s.segment, s.dead))


def _parts(fold: LineageFold, key: SeriesKey, column: Column, with_dead: bool) -> Iterator[Series]:
    steps, values, _ = column.read()
    limit = fold.tree.dead_after(key.segment)
    alive = len(steps) if limit is None else int(np.searchsorted(steps, limit, side="right"))
    if key.stray:
        alive = 0
    if alive:
        yield Series(key.metric, key.segment, False, key.rank, key.node, steps[:alive], values[:alive])
    if with_dead and alive < len(steps):
        yield Series(key.metric, key.segment, True, key.rank, key.node, steps[alive:], values[alive:])


def _undecided(fold: LineageFold) -> Iterator[Series]:
    for row in fold.pending():
        for i, name in enumerate(row.names):
            yield Series(name, row.segment, True, row.rank, "", row.steps, row.values[i])


def _window(part: Series, start: int | None, stop: int | None) -> Series:
    first = 0 if start is None else int(np.searchsorted(part.steps, start, side="left"))
    last = len(part.steps) if stop is None else int(np.searchsorted(part.steps, stop, side="right"))
    if (first, last) == (0, len(part.steps)):
        return part
    return Series(
        part.metric, part.segment, part.dead, part.rank, part.node, part.steps[first:last], part.values[first:last]
    )


def _thin(part: Series, points: int) -> Series:
    """Keep each bucket's extremes and every kind of non-finite value in it.

    MinMaxDownsampler drops NaN, and a NaN loss is what people look for: finite and non-finite points are chosen apart.
    """
    size = len(part.steps)
    if size <= points:
        return part
    finite = np.isfinite(part.values)
    where = np.flatnonzero(finite)
    keep = [np.array([0, size - 1])]
    if len(where) > points:
        n_out = max((points - 2) // 2 * 2, 2)
        keep.append(where[_MIN_MAX.downsample(part.values[where], n_out=n_out)])
    else:
        keep.append(where)
    odd = np.flatnonzero(~finite)
    if len(odd):
        bucket = odd * max(points // 4, 1) // size
        sort = np.where(np.isnan(part.values[odd]), 0, np.where(part.values[odd] > 0, 1, 2))
        _, firsts = np.unique(bucket * 3 + sort, return_index=True)
        keep.append(odd[firsts])
    chosen = np.unique(np.concatenate(keep))
    return Series(part.metric, part.segment, part.dead, part.rank, part.node, part.steps[chosen], part.values[chosen])


def effective_rows(
    store: RunStore, fold: LineageFold, metrics: Iterable[str], rank: int, first: int, last: int | None = None
) -> list[tuple[int, float, str, float]]:
    """Return the effective points of one rank as (step, time, metric, value), in that order.

    Args:
        first, last: steps, both inclusive; last None for no end.
    """
    rows: list[tuple[int, float, str, float]] = []
    for metric in metrics:
        for part in fold.tree.path():
            column = store.column(SeriesKey(metric, part.segment, rank, ""))
            if column is None:
                continue
            steps, values, times = column.read()
            low = int(np.searchsorted(steps, max(first, part.first), side="left"))
            ends = [end for end in (part.last, last) if end is not None]
            high = int(np.searchsorted(steps, min(ends), side="right")) if ends else len(steps)
            rows += [
                (step, time, metric, value)
                for step, time, value in zip(
                    steps[low:high].tolist(), times[low:high].tolist(), values[low:high].tolist(), strict=True
                )
            ]
    rows.sort(key=lambda row: (row[0], row[1], row[2]))
    return rows


def summary(store: RunStore, fold: LineageFold) -> dict[str, Any]:
    """Return what the run list shows: newest effective values, and how many points of ``loss`` live and are dead."""
    latest: dict[str, float | str] = {}
    path = fold.tree.path()
    # A metric beyond the first MAX_LATEST counts here too.
    ends = [(store.newest[part.segment], part.last) for part in path if part.segment in store.newest]
    newest = max((step for step, last in ends if last is None or step <= last), default=None)
    names = store.metrics()
    for metric in ["loss"] * ("loss" in names) + [name for name in names if name != "loss"][:MAX_LATEST]:
        best: tuple[int, int] | None = None
        for key, column in store.series(metric):
            part = next((p for p in path if p.segment == key.segment), None)
            if part is None or key.stray or not len(column):
                continue
            steps, values, _ = column.read()
            end = len(steps) if part.last is None else int(np.searchsorted(steps, part.last, side="right"))
            if end == 0:
                continue
            order = (int(steps[end - 1]), -(key.rank or 0))
            if best is None or order > best:
                best = order
                latest[metric] = json_numbers(values[end - 1 : end])[0]
            if key.rank is not None:
                newest = order[0] if newest is None else max(newest, order[0])
    counted = "loss" if "loss" in latest else next(iter(latest), "")
    every = select(store, fold, [counted], view="all") if counted else []
    return {
        "latest": latest,
        "last_step": newest,
        "effective_points": sum(len(s.steps) for s in every if not s.dead),
        "dead_points": sum(len(s.steps) for s in every if s.dead),
    }
