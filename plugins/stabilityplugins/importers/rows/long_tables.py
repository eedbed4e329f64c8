"""Tables with one row a value: the columns run, metric, step and value, in any order of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stabilitybackend.base.errors import BadRequest
from stabilityplugins.importers.rows.cells import NotAStep, as_step
from stabilityplugins.importers.rows.lanes import RANK
from stabilityplugins.importers.rows.layout import Group, Layout, groups_of

__all__ = ["LongColumns", "long_columns", "runs_in", "widened"]

_METRIC = ("metric", "metric_name", "key", "tag", "name", "variable")
_VALUE = ("value", "metric_value")
_RUN = ("run", "run_name", "run_id", "run_uuid", "experiment")
#: Runs in one table.
_MAX_RUNS = 1_000


@dataclass(frozen=True, slots=True)
class LongColumns:
    """Names of the columns; run: None where there is none."""

    metric: str
    value: str
    run: str | None


def long_columns(columns: Sequence[str]) -> LongColumns | None:
    """Return which columns of a long table hold what, None of another table."""
    plain = {column.strip().lower(): column for column in columns}
    metric, value, run = (next((plain[n] for n in names if n in plain), None) for names in (_METRIC, _VALUE, _RUN))
    return None if metric is None or value is None else LongColumns(metric, value, run)


def runs_in(groups: Iterable[Group | None], column: str) -> list[str]:
    """Return the runs in a table, in the order in which they come.

    Raises:
        BadRequest: there are too many.
    """
    found: dict[str, None] = {}
    for group in groups:
        found |= dict.fromkeys(str(value) for value in (group.column(column) if group is not None else None) or ())
        if len(found) > _MAX_RUNS:
            raise BadRequest(f"the column {column} holds more than {_MAX_RUNS} runs", hint="import a part of the table")
    return list(found)


def widened(groups: Iterable[Group | None], long: LongColumns, layout: Layout, run: str) -> Iterator[Group]:
    """Yield the rows of one run with a column for each metric.

    Of a table that lists metric after metric, the values of a step come together again. Where the steps of a metric go
    back, the order of the table is that of the log and stays.
    """
    rows = [row for group in groups if group is not None for row in _rows(group, long, layout, run)]
    newest: dict[tuple[str, str], int] = {}
    goes_back = False
    for row in rows:
        place = row.metric, row.rank
        goes_back |= row.step < newest.get(place, -1)
        newest[place] = row.step
    if not goes_back:
        rows.sort(key=lambda row: row.step)
    wide: list[dict[str, Any]] = []
    newest_row: tuple[int, str] | None = None
    for row in rows:
        if newest_row != (row.step, row.rank) or row.metric in wide[-1]:
            wide.append(dict(row.shared))
            newest_row = row.step, row.rank
        wide[-1][row.metric] = row.value
    yield from groups_of(range(1, len(wide) + 1), wide)


@dataclass(frozen=True, slots=True)
class _Value:
    step: int
    rank: str
    metric: str
    value: Any
    shared: dict[str, Any]


def _rows(group: Group, long: LongColumns, layout: Layout, run: str) -> Iterator[_Value]:
    kept = [key for key in (layout.step, layout.time, RANK) if key in group.keys]
    for cells in zip(*group.columns, strict=True):
        row = dict(zip(group.keys, cells, strict=True))
        if run and long.run is not None and str(row[long.run]) != run:
            continue
        try:
            step = as_step(row[layout.step])
        except NotAStep:
            continue
        shared = {key: row[key] for key in kept if key is not None}
        yield _Value(step, str(row.get(RANK)), str(row[long.metric]), row[long.value], shared)
