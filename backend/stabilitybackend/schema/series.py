"""Points as charts read them: of one run, and of several over each other."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from stabilitybackend.schema.numbers import Number

__all__ = ["ComparedCurves", "Comparison", "ExportProgress", "SeriesAnswer", "SeriesEntry"]


class Buckets(msgspec.Struct):
    """What is between the extremes that an entry gives of its buckets; one number a bucket.

    Attributes:
        last: the last step of each that was logged, rising: it has the steps after the one before it.
        mean: of its finite values, over every logged row; null where there are none, or where their sum overflowed.
        count: of its finite values.
    """

    last: list[int]
    mean: list[float | None]
    count: list[int]


class SeriesEntry(msgspec.Struct):
    """Points of one metric, segment and rank, discarded or not; steps strictly rising.

    Attributes:
        dead: a rollback discarded them.
        stray: low steps that nothing followed, or about which nothing is decided yet.
        node: of points that no rank logged.
        level: the buckets are of ``2**level`` steps; 0: every row.
        xs: where the points lie on the x axis; absent where that is the step.
        smoothed: the average after each point, null before the first finite one; absent unless asked for.
        source: the process that logged those about which nothing is decided.
        buckets: of entries whose level is above 0.
    """

    metric: str
    segment: int
    dead: bool
    stray: bool
    rank: int | None
    node: str | None
    level: int
    steps: list[int]
    values: list[Number]
    xs: list[float] | UnsetType = UNSET
    smoothed: list[float | None] | UnsetType = UNSET
    source: str | UnsetType = UNSET
    buckets: Buckets | UnsetType = UNSET


class SeriesAnswer(msgspec.Struct):
    """What a chart asked for.

    Attributes:
        cursor: ask with it for what comes after this.
        level: of the coarsest buckets in it.
        unplaced: points left out because their x is not known.
        complete: false where only what came after the cursor is in it.
        problems: what could not be read, and where; everything else is here.
    """

    series: list[SeriesEntry]
    cursor: str
    level: int
    x: str
    unplaced: int
    complete: bool
    problems: list[str]


class SameData(msgspec.Struct):
    """A stretch in which a run saw the data of the first run of the comparison, in its order, by the losses alone.

    Attributes:
        first_step, last_step: of this run, some steps more or less.
        other_run, other_step: the first run, and its step that saw what ``first_step`` did.
        r: least correlation of what is new in each loss.
    """

    first_step: int
    last_step: int
    other_run: str
    other_step: int
    r: float


class ComparedCurves(msgspec.Struct):
    """The effective curves of one run, moved to its own x = 0.

    Attributes:
        offset: what was taken off the steps or times to get xs.
        same_data: where it saw the data of the first run; empty for the first one.
    """

    run_id: str
    name: str
    offset: float
    fork_step: int | None
    level: int
    problems: list[str]
    series: list[SeriesEntry]
    same_data: list[SameData]


class Comparison(msgspec.Struct):
    """Curves of several runs over each other."""

    align: Literal["step", "fork", "time"]
    runs: list[ComparedCurves]


class ExportProgress(msgspec.Struct):
    """How far an export is; read from another thread.

    Attributes:
        total: points that it will hold, about (a step that was logged twice counts twice).
        points: written so far. rows: lines or rows written so far. done: the last byte was made.
        problems: what could not be read, and where.
    """

    total: int = 0
    points: int = 0
    rows: int = 0
    done: bool = False
    problems: list[str] = []
