"""Answers of charts: selects the rows that count, thins them without losing a spike, places them on any x axis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.lineage.batch import Placed
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.schema.json_data import Number, json_number, json_with_arrays
from stabilitybackend.storage.archive.aggregates import EMPTY_AGGS, Aggs, aggregate, means
from stabilitybackend.storage.archive.series import Extent, Rows, SeriesKey, join_rows
from stabilitybackend.storage.points.memtable import series_key
from stabilitybackend.storage.query.downsampling import (
    MIN_POINTS,
    Drawn,
    PathPiece,
    SeriesReader,
    StoreReader,
    draw_line,
    expected_rows,
    grid_level,
)
from stabilitybackend.storage.query.ema import smooth_line
from stabilitybackend.storage.query.expression_reader import ExpressionReader, parsed
from stabilitybackend.storage.query.expressions import Expression
from stabilitybackend.storage.query.lineage_view import LineageView
from stabilitybackend.storage.query.request import SeriesRequest
from stabilitybackend.storage.query.x_axis import metric_line, row_before, time_line

if TYPE_CHECKING:
    from stabilitybackend.storage.points.store import RunStore

__all__ = ["Answer", "Series", "effective_rows", "json_numbers", "primary_rank", "select"]

Steps = NDArray[np.int64]


class Increment:
    """The new rows of some series.

    Args:
        store: all of the run: of a step that has a new row all rows are in the answer.
        newer: rows after the cursor, in order of arrival.
        x: another metric that gives points their position, None for none: older points that its new rows place are
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


#: Points of one answer, about 25 bytes of JSON each: 50 MB. Larger requests are exports.
MAX_ANSWER_POINTS = 2_000_000
#: Of an answer with more lines than FEW_LINES: a chart of 2,048 ranks is a band, and needs few points of each.
MANY_LINES_POINTS = 200_000
FEW_LINES = 64


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One entry of an answer: points by step, values with NaN and infinities as they were logged.

    Attributes:
        stray: low steps that nothing followed, or about which nothing is decided yet; dead.
        source: the process that logged those about which nothing is decided, "" of all others.
        level: the buckets are of ``2**level`` steps; 0: these are all rows.
        xs: where the points lie on the x axis, None where that is the step.
        smoothed: the average after each point, NaN before the first finite one; None where not asked for, and of
            strays.
        buckets: those that the points are the extremes of, in their order; None where these are all rows.
    """

    metric: str
    segment: int
    dead: bool
    stray: bool
    rank: int | None
    node: str
    level: int
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    xs: NDArray[np.float64] | NDArray[np.int64] | None = None
    smoothed: NDArray[np.float64] | None = None
    source: str = ""
    buckets: Aggs | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the shape of docs/api.md, for ``orjson`` with OPT_SERIALIZE_NUMPY."""
        entry = {
            "metric": self.metric,
            "segment": self.segment,
            "dead": self.dead,
            "stray": self.stray,
            "rank": self.rank,
            "node": self.node or None,
            "level": self.level,
            "steps": np.ascontiguousarray(self.steps),
            "values": _json_array(self.values),
        }
        if self.source:
            entry["source"] = self.source
        if self.xs is not None:
            entry["xs"] = np.ascontiguousarray(self.xs)
        if self.smoothed is not None:
            entry["smoothed"] = np.ascontiguousarray(self.smoothed)  # its NaN means "none yet": null
        if self.buckets is not None:
            entry["buckets"] = {
                "last": np.ascontiguousarray(self.buckets["last_step"]),
                "mean": means(self.buckets),  # its NaN means "nothing finite": null
                "count": np.ascontiguousarray(self.buckets["count"]),
            }
        return entry


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """Result of ``select``.

    Attributes:
        series: by metric, rank, node, segment; the dead part of a segment after its living one.
        level: of the coarsest buckets in it.
        unplaced: points that were left out because they have no x.
        complete: False where only rows after a cursor are in it.
        problems: files that could not be read, with the reason; everything else is here.
    """

    series: list[Series]
    level: int
    x: str
    unplaced: int
    complete: bool
    problems: list[str]

    def as_json(self, **more: Any) -> bytes:
        """Return the answer of ``GET .../series``, with ``more`` added."""
        facts = {
            "series": [entry.as_dict() for entry in self.series],
            "level": self.level,
            "x": self.x,
            "unplaced": self.unplaced,
            "complete": self.complete,
            "problems": self.problems,
        }
        return json_with_arrays(facts | more)


def _json_array(values: NDArray[np.float64]) -> NDArray[np.float64] | list[Number]:
    return np.ascontiguousarray(values) if np.isfinite(values).all() else json_numbers(values)


def json_numbers(values: NDArray[np.float64]) -> list[Number]:
    """Return ``values`` for JSON, which has no NaN: non-finite ones as "NaN", "Infinity", "-Infinity"."""
    numbers: list[Number] = values.tolist()
    for i in np.flatnonzero(~np.isfinite(values)):
        numbers[i] = json_number(values[i])
    return numbers


def select(
    store: StoreReader, lineage: LineageView, request: SeriesRequest, newer: Sequence[Placed] | None = None
) -> Answer:
    """Return the series that a chart asks for. Changes nothing: call it in any thread.

    Args:
        store, lineage: of the same moment. The store must hold the metrics of the request and its x.
        newer: answer with these rows only (``StoreView.since``); None: with everything.

    Raises:
        BadRequest: the run has no such segment or x metric, or the answer would be too large to use.
    """
    request.check(lineage)
    expressions = parsed([*request.metrics, request.x])
    if expressions:
        store = ExpressionReader(store, expressions)
    x = None if request.x in ("step", "time") else request.x
    if x is not None and not store.keys(x):
        raise BadRequest(
            f"x is {request.x!r}, expected step, time or a metric that this run has logged",
            hint="GET .../runs/{run_id} lists its metrics",
        )
    reader: SeriesReader = store if newer is None else Increment(store, lineage, newer, request.metrics, x, expressions)
    by_metric = [_lines(reader, lineage, request, metric, newer is None) for metric in request.metrics]
    points = _affordable(by_metric, request.points)
    found: list[Series] = []
    coarsest = unplaced = 0
    for lines in by_metric:
        level = 0 if points is None else max((grid_level(line, points) for line in lines), default=0)
        for line in lines:
            drawn, drawn_level = draw_line(reader, line, level, points)
            coarsest = max(coarsest, drawn_level)
            entries, missing = _entries(store, reader, lineage, request, drawn, drawn_level)
            found += entries
            unplaced += missing
    found.sort(key=lambda s: (s.metric, -1 if s.rank is None else s.rank, s.node, s.segment, s.dead, s.stray))
    return Answer(found, coarsest, request.x, unplaced, newer is None, list(store.problems))


def _lines(
    reader: SeriesReader, lineage: LineageView, request: SeriesRequest, metric: str, with_pending: bool
) -> list[list[PathPiece]]:
    """Return the pieces of one metric by (rank, node), in the order of their segments."""
    keys = reader.keys(metric)
    pieces = [piece for key in keys for piece in _pieces(reader, lineage, key)]
    if with_pending and request.view != "effective":
        pieces += _pending(lineage, metric)
    if request.rank == "primary":
        lowest = primary_rank(keys)
        pieces = [piece for piece in pieces if piece.key.rank == lowest]
    elif request.rank != "all":
        pieces = [piece for piece in pieces if piece.key.rank == request.rank]
    lines: dict[tuple[int | None, str], list[PathPiece]] = {}
    for piece in pieces:
        if request.view == "effective" and piece.dead:
            continue
        if request.segment is not None and piece.key.segment != request.segment:
            continue
        clipped = _clip(piece, request.start, request.stop)
        if clipped is not None:
            lines.setdefault((piece.key.rank, piece.key.node), []).append(clipped)
    for line in lines.values():
        line.sort(key=lambda piece: (piece.key.segment, piece.dead))
    return list(lines.values())


def primary_rank(keys: Iterable[SeriesKey]) -> int | None:
    """Return the rank whose series of a metric, of which these are all, are its ``primary`` ones; None: agents'."""
    return min((key.rank for key in keys if key.rank is not None and not key.stray), default=None)


def _pieces(reader: SeriesReader, lineage: LineageView, key: SeriesKey) -> Iterator[PathPiece]:
    """Yield the living and the dead part of a series."""
    extent = reader.extent(key)
    if extent is None:
        return
    limit = lineage.limits[key.segment]
    if key.stray:
        limit = extent.first_step - 1
    if limit is None or extent.first_step <= limit:
        last = extent.last_step if limit is None else min(extent.last_step, limit)
        yield PathPiece(key, extent.first_step, last, False, extent)
    if limit is not None and extent.last_step > limit:
        yield PathPiece(key, max(extent.first_step, limit + 1), extent.last_step, True, extent)


def _pending(lineage: LineageView, metric: str) -> Iterator[PathPiece]:
    """Yield the rows about which nothing is decided yet, those of each process by themselves; they are in no store.

    Processes that died before they had gone on from their first steps have the same steps.
    """
    held: dict[tuple[SeriesKey, str], list[Rows]] = {}
    for row in lineage.pending:
        if metric in row.names:
            rows = Rows(row.steps, row.values[row.names.index(metric)], row.times)
            held.setdefault((series_key(row, metric), row.source), []).append(rows)
    for (key, source), parts in held.items():
        rows = join_rows(parts)
        extent = Extent(int(rows.steps[0]), int(rows.steps[-1]), len(rows))
        yield PathPiece(key, extent.first_step, extent.last_step, True, extent, rows, source)


def _clip(piece: PathPiece, start: int | None, stop: int | None) -> PathPiece | None:
    first = piece.first if start is None else max(piece.first, start)
    last = piece.last if stop is None else min(piece.last, stop)
    if first > last:
        return None
    held = None if piece.held is None else piece.held.between(first, last)
    return replace(piece, first=first, last=last, held=held)


def _affordable(by_metric: Iterable[Sequence[Sequence[PathPiece]]], points: int | None) -> int | None:
    """Return the number of points of each line: the requested one, and fewer where thousands of ranks have one each.

    Raises:
        BadRequest: the answer would be too large to use.
    """
    lines = [line for lines in by_metric for line in lines]
    rows = [expected_rows(line) for line in lines]

    def total_of(points: int | None) -> float:
        return sum(
            count if points is None else min(count, points + 4 * len(line))
            for line, count in zip(lines, rows, strict=True)
        )

    total = total_of(points)
    while points is not None and len(lines) > FEW_LINES and total > MANY_LINES_POINTS and points > MIN_POINTS:
        points = max(points // 2, MIN_POINTS)
        total = total_of(points)
    if total > MAX_ANSWER_POINTS:
        raise BadRequest(
            f"about {total:.0f} points asked for ({len(lines)} lines), expected at most {MAX_ANSWER_POINTS}",
            hint="give points, rank=primary, fewer metrics or a window of steps; or export the run",
        )
    return points


def _entries(
    store: StoreReader,
    reader: SeriesReader,
    lineage: LineageView,
    request: SeriesRequest,
    line: list[Drawn],
    level: int,
) -> tuple[list[Series], int]:
    """Return the entries of one line, and how many points have no place on the x axis."""
    every_xs: Sequence[NDArray[np.float64] | None] = [None] * len(line)
    smoothed: Sequence[NDArray[np.float64] | None] = [None] * len(line)
    if request.x == "time":
        every_xs = time_line(reader, line)
    elif request.x != "step":
        every_xs = metric_line(store, lineage, request.x, level, line)
    if request.smooth is not None:
        smoothed = smooth_line(store, lineage, request.smooth, line)
    found, unplaced = [], 0
    for drawn, xs, average in zip(line, every_xs, smoothed, strict=True):
        key = drawn.piece.key
        steps, values = drawn.steps, drawn.values
        if xs is not None:
            placed = np.isfinite(xs)
            if not placed.all():
                unplaced += len(placed) - int(placed.sum())
                steps, values, xs = steps[placed], values[placed], xs[placed]
                average = None if average is None else average[placed]
        if len(steps):
            found.append(
                Series(
                    key.metric,
                    key.segment,
                    drawn.piece.dead,
                    key.stray,
                    key.rank,
                    key.node,
                    level,
                    steps,
                    values,
                    xs,
                    average,
                    drawn.piece.source,
                    drawn.aggs,
                )
            )
    return found, unplaced


def effective_rows(
    store: RunStore,
    fold: LineageFold,
    metrics: Iterable[str],
    rank: int,
    first: int,
    last: int | None = None,
    *,
    head: int | None = None,
    limit: int | None = None,
) -> list[tuple[int, float, str, float]]:
    """Return the effective points of one rank as (step, time, metric, value), in that order.

    Args:
        first, last: steps, both inclusive; last None for no end.
        head: the path that leads to this segment; the effective one when None.
        limit: at most so many points of each metric, the first ones.
    """
    rows: list[tuple[int, float, str, float]] = []
    ranges = [
        (part.segment, max(first, part.first), min(ends) if ends else None)
        for part in fold.tree.path(head, since=first)
        for ends in ([end for end in (part.last, last) if end is not None],)
    ]
    ranges = [(segment, low, high) for segment, low, high in ranges if high is None or low <= high]
    for metric in metrics:
        room = limit
        for segment, low, high in ranges:
            if room is not None and room <= 0:
                break
            found = store.rows(SeriesKey(metric, segment, rank, ""), low, high)
            if room is not None:
                found = found[:room]
                room -= len(found)
            rows += [
                (step, time, metric, value)
                for step, time, value in zip(
                    found.steps.tolist(), found.times.tolist(), found.values.tolist(), strict=True
                )
            ]
    rows.sort(key=lambda row: (row[0], row[1], row[2]))
    return rows
