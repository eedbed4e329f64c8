"""The table of all runs: rows, order, groups and columns."""

from __future__ import annotations

from typing import Literal

import msgspec

from stabilitybackend.schema.json_data import Number
from stabilitybackend.schema.runs import RunStatus, StoringProblem, WorstIncident
from stabilitybackend.schema.severity import RunCondition, ShownState

#: Buckets of steps in the small curve of a whole run, and the height of its greatest value.
CURVE_BUCKETS = 60
CURVE_TOP = 100

ColumnKind = Literal["text", "count", "number", "share", "age", "tags", "state", "curve", "any"]
Cell = Number | bool | str | None


class ColumnFacts(msgspec.Struct, omit_defaults=True):
    """A column of the table, also for filter, order and groups.

    Attributes:
        key: built-in name, ``config.<path>`` or ``metric.<name>``.
        label: head of the column.
        kind: of its values, for display and comparison; ``any`` for several kinds.
        what: a sentence about it.
        runs: visible runs with a value; absent for a built-in column.
        values: some of its values, the most frequent first, for completion; none of a column of numbers.
        gone: no run has it.
    """

    key: str
    label: str
    kind: ColumnKind
    what: str = ""
    runs: int | None = None
    values: list[str] = []
    gone: bool = False


class RunCurve(msgspec.Struct):
    """Curve of the loss, or the metric shown instead, over the whole run: extremes of up to 60 buckets of steps.

    Attributes:
        first, last: steps.
        low, high: of each bucket, 0 to 100 between ``least`` and ``most``, clipped; null without finite values.
        least, most: values of 0 and 100, without outliers.
        odd: buckets with a non-finite value.
    """

    metric: str
    first: int
    last: int
    low: list[int | None]
    high: list[int | None]
    least: float
    most: float
    odd: list[int] = []


class RunDigest(msgspec.Struct, kw_only=True):
    """Derived data of a run's row, stored so that a row needs no points.

    Attributes:
        step, head, status: of the run at that time.
        made: unix seconds.
        speed, speed_unit: null without a step time.
        tokens, tokens_metric: seen so far, by a counting metric; ``tokens_why`` for none.
        goodput: of ``rollback_costs``; ``goodput_why`` for unknown.
        gpus: in use, seen by agents. metric_count: of the run at that time.
    """

    step: int | None
    head: int
    status: str
    made: float
    curve: RunCurve | None = None
    speed: float | None = None
    speed_unit: str = ""
    tokens: float | None = None
    tokens_metric: str = ""
    tokens_why: str = ""
    goodput: float | None = None
    goodput_why: str = ""
    gpus: int | None = None
    metric_count: int = 0


class TableRow(msgspec.Struct, kw_only=True):
    """A run in the table. Fields: see ``Run`` and ``RunDigest``.

    Attributes:
        gone: deleted since the order was made; all else is empty then.
        progress: time of the last row of its ranks, unix seconds, null without points.
        curve: null for none, with the reason in ``curve_why``.
        cells: values of the requested columns, in their order; null for none.
    """

    run_id: str
    gone: bool = False
    name: str = ""
    project: str = ""
    tags: list[str] = []
    status: RunStatus = "unreachable"
    state: ShownState = msgspec.field(default_factory=ShownState)
    note: str = ""
    step: int | None = None
    loss: Number | None = None
    loss_metric: str | None = None
    tokens: float | None = None
    tokens_why: str = ""
    speed: float | None = None
    speed_unit: str = ""
    goodput: float | None = None
    goodput_why: str = ""
    gpus: int | None = None
    ranks: int = 0
    open_incidents: int = 0
    worst_incident: WorstIncident | None = None
    rollbacks: int = 0
    undo: int | None = None
    created: float = 0.0
    updated: float = 0.0
    progress: float | None = None
    curve: RunCurve | None = None
    curve_why: str = ""
    cells: list[Cell] = []


class RunGroup(msgspec.Struct):
    """Runs with the same value of the grouped column, adjacent in the order.

    Attributes:
        label: the value as text; "" for the runs without one, which come last.
        first: index of its first run in the order.
        count: runs. conditions: number of runs of each.
    """

    label: str
    first: int
    count: int
    conditions: dict[RunCondition, int]


class RunTable(msgspec.Struct):
    """Rows of an order of the runs.

    Attributes:
        rows: from ``offset`` on.
        fit: runs that match the filter, on all pages. total: visible runs.
        conditions: number of runs of each in ``total``.
        order: token of this order. The next page keeps it: runs are neither repeated nor left out.
        groups: of a grouped table.
        columns: facts of the requested ones.
        notes: hints about the filter, e.g. a key that no run has.
    """

    rows: list[TableRow]
    offset: int
    fit: int
    total: int
    conditions: dict[RunCondition, int]
    order: str
    groups: list[RunGroup]
    columns: list[ColumnFacts]
    notes: list[str]
    storing: StoringProblem | None


class RunColumns(msgspec.Struct):
    """Columns whose name has the searched word.

    Attributes:
        built_in: of every run.
        found: keys of configs and names of metrics, those of most runs first.
        total: of ``found``, beyond the limit too.
    """

    built_in: list[ColumnFacts]
    found: list[ColumnFacts]
    total: int
