"""The table of all runs: what it shows of each, how it was sorted and grouped, and which columns there are."""

from __future__ import annotations

from typing import Literal

import msgspec

from stabilitybackend.schema.json_data import Number
from stabilitybackend.schema.runs import RunStatus, StoringProblem, WorstIncident
from stabilitybackend.schema.severity import RunCondition, ShownState

#: Stretches of steps that the small curve of a whole run has, and the height of its greatest value.
CURVE_BUCKETS = 60
CURVE_TOP = 100

ColumnKind = Literal["text", "count", "number", "share", "age", "tags", "state", "curve", "any"]
Cell = Number | bool | str | None


class ColumnFacts(msgspec.Struct, omit_defaults=True):
    """A column that the table can have, and that filter, order and groups can name.

    Attributes:
        key: built-in name, ``config.<path>`` or ``metric.<name>``.
        label: head of the column.
        kind: how its values are shown and compared; ``any`` where they are of several kinds.
        what: a sentence about it.
        runs: how many runs have a value, of those that the key may see; absent for a built-in column.
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


class Curve(msgspec.Struct):
    """The loss over the whole run, or the metric that is shown instead: extremes of up to 60 stretches of steps.

    Attributes:
        first, last: steps.
        low, high: of each stretch, 0 to 100 between ``least`` and ``most``, cut there; null where nothing is finite.
        least, most: values that 0 and 100 stand for; few far values do not stretch them.
        odd: stretches in which a value was not finite.
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
    """What is worked out of a whole run for its row, and stored, so that no row costs a look at the points.

    Attributes:
        step, head, status: of the run as it was then.
        made: unix seconds.
        speed, speed_unit: null where no step time is known.
        tokens, tokens_metric: seen so far, of a metric that counts them; ``tokens_why`` where none is.
        goodput: of ``rollback_costs``; ``goodput_why`` where it is not known.
        gpus: that agents saw at work. metric_count: of the run as it was then.
    """

    step: int | None
    head: int
    status: str
    made: float
    curve: Curve | None = None
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
        gone: it was deleted since the order was made; all else is empty then.
        progress: when its ranks logged last, unix seconds, null without points.
        curve: null where there is no line yet; ``curve_why`` says why.
        cells: values of the columns that were asked for, in their order; null where it has none.
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
    curve: Curve | None = None
    curve_why: str = ""
    cells: list[Cell] = []


class RunGroup(msgspec.Struct):
    """Runs with the same value of the column that they are grouped by; they stand together in the order.

    Attributes:
        label: the value in words; "" for the runs without one, which come last.
        first: place of its first run in the order.
        count: runs. conditions: how many of them are each.
    """

    label: str
    first: int
    count: int
    conditions: dict[RunCondition, int]


class RunTable(msgspec.Struct):
    """Some rows of an order of the runs.

    Attributes:
        rows: from ``offset`` on.
        fit: runs that the filter lets through, on whatever page. total: runs that the key may see.
        conditions: how many of ``total`` are each; together they are all of them.
        order: token of this order of the runs. With it the next page is of the same order, whatever changed meanwhile:
            no run comes twice or is left out.
        groups: where they are grouped.
        columns: facts of those that were asked for.
        notes: what somebody should know of the filter, e.g. a key that no run has.
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
        built_in: those that every run has.
        found: keys of configs and names of metrics, those of most runs first.
        total: of ``found``, beyond the limit too.
    """

    built_in: list[ColumnFacts]
    found: list[ColumnFacts]
    total: int
