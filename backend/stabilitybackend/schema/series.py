"""Points for charts: of one run, and of several over each other."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from stabilitybackend.schema.json_data import Number


class Buckets(msgspec.Struct):
    """Numbers of an entry's buckets besides the extremes; one a bucket.

    Attributes:
        last: last logged step of each, rising: it has the steps after the one before it.
        mean: of its finite values, over every logged row; null for none, or for a sum that overflowed.
        count: of its finite values.
    """

    last: list[int]
    mean: list[float | None]
    count: list[int]


class SeriesEntry(msgspec.Struct):
    """Points of one metric, segment and rank, discarded or not; by step.

    Attributes:
        dead: a rollback discarded them.
        stray: low steps without a successor, or not decided yet.
        node: of points without a rank.
        level: the buckets are of ``2**level`` steps; 0: every row.
        xs: positions on the x axis; absent for steps.
        smoothed: the average after each point, null before the first finite one; absent unless requested.
        source: process of undecided points.
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
    """Answer for a chart.

    Attributes:
        cursor: for the request of later points.
        level: of the coarsest buckets in it.
        unplaced: points left out because their x is unknown.
        complete: false for points after the cursor only.
        problems: read errors; everything else is here.
    """

    series: list[SeriesEntry]
    cursor: str
    level: int
    x: str
    unplaced: int
    complete: bool
    problems: list[str]


class SameData(msgspec.Struct):
    """An interval in which a run had the data of the first run of the comparison, in its order, by the losses alone.

    Attributes:
        first_step, last_step: of this run, some steps more or less.
        other_run, other_step: the first run, and its step with the data of ``first_step``.
        r: least correlation of the innovations of the losses.
    """

    first_step: int
    last_step: int
    other_run: str
    other_step: int
    r: float


class ComparedCurves(msgspec.Struct):
    """The effective curves of one run, moved to its own x = 0.

    Attributes:
        offset: subtracted from the steps or times.
        same_data: intervals with the data of the first run; empty for the first one.
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


class AlignedCurve(msgspec.Struct):
    """A line: ``xs`` in steps since its start or the fork. ``level``: its buckets are of ``2**level`` steps."""

    xs: list[int]
    values: list[Number]
    level: int


class Attempt(msgspec.Struct):
    """An interval from a start, rollback or restart to the next one.

    Attributes:
        start_step: the step whose state it began with: x = 0. steps: from there to its last one.
        ended: over; else at work.
        how: its end, or its present state, as text. why: the given reason.
        incident_id, kind, title: the incident that began last in it; null and "" for none.
    """

    segment: int
    label: str
    start_step: int
    last_step: int
    steps: int
    ended: bool
    how: str
    why: str
    incident_id: str | None
    kind: str | None
    title: str
    curve: AlignedCurve


class Attempts(msgspec.Struct):
    """The attempts of a run over each other, oldest first.

    Attributes:
        text: common traits, a sentence or two.
        left_out: older ones that are not here.
    """

    metric: str
    text: str
    attempts: list[Attempt]
    left_out: int
    problems: list[str]


class BranchRow(msgspec.Struct):
    """Both branches at one step, ``after`` steps behind the fork; ``difference``: new minus discarded."""

    after: int
    step: int
    left: Number
    right: Number
    difference: Number


class Branches(msgspec.Struct):
    """The two branches of a fork by their steps behind it: ``left`` was discarded, ``right`` continues.

    Attributes:
        difference: right minus left at the steps that both logged, of the first 50,000.
        table: both at steps near and far behind the fork.
    """

    metric: str
    label: str
    fork_step: int
    text: str
    left: AlignedCurve
    right: AlignedCurve
    difference: AlignedCurve
    table: list[BranchRow]
    problems: list[str]


class ExportProgress(msgspec.Struct):
    """Progress of an export; read from another thread.

    Attributes:
        total: estimated points (a step that was logged twice counts twice).
        points: written so far. rows: lines or rows written so far. done: the last byte was made.
        problems: read errors.
    """

    total: int = 0
    points: int = 0
    rows: int = 0
    done: bool = False
    problems: list[str] = []

    def add(self, *, total: int = 0, points: int = 0, rows: int = 0) -> None:
        """Count further points in all, written points and written rows."""
        self.total += total
        self.points += points
        self.rows += rows

    def finish(self, problems: list[str], *, done: bool = True) -> None:
        """Note the end of the file, or the problems by which it breaks off."""
        self.problems = problems
        self.done = done


class SpikeScore(msgspec.Struct):
    """OLMo-core's SpikeScore of one metric.

    Attributes:
        metric: its name, "" for a step at which any of the metrics is an outlier.
        steps: effective steps with a finite point. outliers: of those, more than 6 standard deviations above the mean
            of the 128 points before. last_outlier: the newest such step, null for none.
        share: outliers / steps, 0 to 1; null below 128 steps.
        newest_share: the same of the newest 10,000 steps; null for fewer.
    """

    metric: str
    steps: int
    outliers: int
    share: float | None
    newest_share: float | None
    last_outlier: int | None


class SpikeScores(msgspec.Struct):
    """The SpikeScores of a run's loss and gradient norm, each and together.

    Attributes:
        either: null without both.
    """

    metrics: list[SpikeScore]
    either: SpikeScore | None
