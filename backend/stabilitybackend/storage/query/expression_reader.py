"""Reads expressions of metrics as if they had been logged: the rest of a query knows no difference.

An expression has a row at each step at which all of its metrics have one, of the same rank, node and segment; of
several rows a step the first goes with the first (``archive.series.paired``). It is
computed over every row before anything is thinned, so that extremes and their steps are exact. The cost of that is
bounded (``MAX_ROWS``); a zoom and new rows cost their own rows only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec.structs import replace

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.storage.archive.aggregates import EMPTY_AGGS, Aggs, aggregate
from stabilitybackend.storage.archive.series import Extent, Rows, SeriesKey, paired
from stabilitybackend.storage.query.downsampling import StoreReader
from stabilitybackend.storage.query.expressions import EXPRESSION, Expression, parse

__all__ = ["ExpressionReader", "operands_of", "parsed"]

#: Rows of metrics that the expressions of one request may read: some two seconds of one core, 480 MB while it lasts.
MAX_ROWS = 20_000_000


def parsed(names: Iterable[str]) -> dict[str, Expression]:
    """Return those of ``names`` that are expressions, parsed. Raises BadRequest where one is wrong."""
    return {name: parse(name.removeprefix(EXPRESSION)) for name in names if name.startswith(EXPRESSION)}


def operands_of(names: Iterable[str]) -> list[str]:
    """Return the metrics to read for ``names``: themselves, and the operands of expressions."""
    plain: dict[str, None] = {}
    for name in names:
        plain.update(
            dict.fromkeys(parse(name.removeprefix(EXPRESSION)).metrics if name.startswith(EXPRESSION) else [name])
        )
    return list(plain)


class ExpressionReader:
    """A store with expressions among its metrics.

    Args:
        store: holds the metrics of all of them.

    Raises:
        BadRequest: the run has no such metric.
    """

    def __init__(self, store: StoreReader, expressions: dict[str, Expression]) -> None:
        self._store = store
        self.expressions = expressions
        #: By series, first and last step.
        self._rows: dict[tuple[SeriesKey, int, int], Rows] = {}
        self._left = float(MAX_ROWS)
        for expression in expressions.values():
            for metric, at in expression.metrics.items():
                if not store.keys(metric):
                    raise _unknown(expression, metric, at)

    @property
    def problems(self) -> list[str]:
        """Files that could not be read, with the reason."""
        return self._store.problems

    def keys(self, metric: str) -> list[SeriesKey]:
        """Return the series of one metric; of an expression those that all of its metrics have."""
        expression = self.expressions.get(metric)
        if expression is None:
            return self._store.keys(metric)
        first, *others = expression.metrics
        there = [{replace(key, metric="") for key in self._store.keys(name)} for name in others]
        bare = [replace(key, metric="") for key in self._store.keys(first)]
        return [replace(key, metric=metric) for key in bare if all(key in one for one in there)]

    def extent(self, key: SeriesKey) -> Extent | None:
        """Return between which steps a series may have rows, and how many at most; None for no such series."""
        if key.metric not in self.expressions:
            return self._store.extent(key)
        extents = [self._store.extent(part) for part in self._parts(key)]
        known = [extent for extent in extents if extent is not None]
        if len(known) < len(extents):
            return None
        first, last = max(one.first_step for one in known), min(one.last_step for one in known)
        return Extent(first, last, min(one.rows for one in known)) if first <= last else None

    def rows(self, key: SeriesKey, first: int | None = None, last: int | None = None) -> Rows:
        """Return the rows with ``first <= step <= last`` by step."""
        if key.metric not in self.expressions:
            return self._store.rows(key, first, last)
        extent = self.extent(key)
        if extent is None:
            return Rows.EMPTY
        low = extent.first_step if first is None else max(first, extent.first_step)
        high = extent.last_step if last is None else min(last, extent.last_step)
        if (key, low, high) not in self._rows:
            self._rows[key, low, high] = self._compute(key, low, high) if low <= high else Rows.EMPTY
        return self._rows[key, low, high]

    def aggregates(self, key: SeriesKey, first: int, last: int, level: int) -> Aggs:
        """Return one aggregate per block of ``2**level`` steps over exactly the rows of ``first <= step <= last``."""
        if key.metric not in self.expressions:
            return self._store.aggregates(key, first, last, level)
        rows = self.rows(key, first, last)
        return aggregate(rows, level) if len(rows) else EMPTY_AGGS

    def _parts(self, key: SeriesKey) -> list[SeriesKey]:
        return [replace(key, metric=name) for name in self.expressions[key.metric].metrics]

    def _compute(self, key: SeriesKey, first: int, last: int) -> Rows:
        expression, parts = self.expressions[key.metric], self._parts(key)
        self._spend(expression, [one for part in parts if (one := self._store.extent(part)) is not None], first, last)
        every = [self._store.rows(part, first, last) for part in parts]
        steps, places = paired([rows.steps for rows in every])
        if not len(steps):
            return Rows.EMPTY
        kept = [rows if rows.steps is steps else rows[at] for rows, at in zip(every, places, strict=True)]
        values = expression.values({part.metric: rows.values for part, rows in zip(parts, kept, strict=True)})
        return Rows(steps, values, np.maximum.reduce([rows.times for rows in kept]))

    def _spend(self, expression: Expression, extents: Sequence[Extent], first: int, last: int) -> None:
        for one in extents:
            span = one.last_step - one.first_step + 1
            self._left -= one.rows * (min(last, one.last_step) - max(first, one.first_step) + 1) / span
        if self._left < 0:
            raise BadRequest(
                f"expression {expression.text!r}: its metrics have more than {MAX_ROWS:,} rows in this request",
                hint="ask for one rank (rank=primary) or fewer expressions at once, or export the run",
            )


def _unknown(expression: Expression, metric: str, at: int) -> BadRequest:
    hint = "GET .../runs/{run_id} lists its metrics; names with spaces or operators in quotes: `grad-norm`"
    if "/" in metric:
        hint += "; to divide, put spaces around /"
    return BadRequest(
        f"expression {expression.text!r}: at character {at}: this run has no metric {metric!r}",
        hint=hint,
        code="bad_expression",
        at=at,
    )
