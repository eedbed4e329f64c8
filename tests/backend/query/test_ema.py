"""Smoothing is the average over what was logged, along the path, however little of it is read or drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitybackend.storage.archive.aggregates import Aggs, aggregate
from stabilitybackend.storage.archive.series import Rows, SeriesKey
from stabilitybackend.storage.query.ema import scan
from stabilitybackend.storage.query.query import Answer, Series, select
from stabilitybackend.storage.query.request import SeriesRequest
from support.job_frames import Job
from support.points.naive_store import NaiveRun, NaiveStore


def _tensorboard(values: Sequence[float], weight: float) -> list[float]:
    """Return the curve as TensorBoard's page computes it, point by point."""
    last, count, found = 0.0, 0, []
    for value in values:
        if math.isfinite(value):
            last, count = last * weight + (1 - weight) * value, count + 1
        found.append(last / (1 - weight**count) if count else math.nan)
    return found


def _ask(run: NaiveRun, **wish: Any) -> Answer:
    return select(run.store, run.lineage, SeriesRequest.of(["loss"], **wish))


def _smoothed(series: Series) -> dict[int, float]:
    assert series.smoothed is not None
    return dict(zip(series.steps.tolist(), series.smoothed.tolist(), strict=True))


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(-1e300, 1e300), max_size=700), weight=st.floats(0.001, 0.9999), start=st.floats(-1e9, 1e9)
)
def test_blocks_of_rows_give_what_one_row_after_the_other_gives(
    values: list[float], weight: float, start: float
) -> None:
    expected, last, size = [], start, abs(start)
    for value in values:
        last = weight * last + value
        expected.append(last)
        size = max(size, abs(last))
    assert scan(np.array(values), weight, start).tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12 * size)


def test_nan_and_infinities_are_passed_over_and_the_first_ones_have_no_average_yet() -> None:
    values = [math.nan, 4.0, math.inf, 2.0, math.nan, -math.inf, 3.0]
    (series,) = _ask(NaiveRun([Job().rows(range(1, 8), {"loss": values})]), smooth=0.9).series
    assert list(_smoothed(series).values()) == pytest.approx(_tensorboard(values, 0.9), nan_ok=True)
    assert series.as_dict()["smoothed"].tolist()[1] == pytest.approx(4.0)


@pytest.mark.parametrize("points", [10, 100, None])
def test_the_average_is_over_what_was_logged_not_over_what_is_drawn(points: int | None) -> None:
    values = np.random.default_rng(3).normal(2.0, 1.0, 3_000).tolist()
    (series,) = _ask(NaiveRun([Job().rows(range(1, 3_001), {"loss": values})]), smooth=0.97, points=points).series
    truth = dict(enumerate(_tensorboard(values, 0.97), start=1))
    assert _smoothed(series) == pytest.approx({step: truth[step] for step in series.steps.tolist()}, rel=1e-12)


def test_a_dead_branch_and_the_one_that_took_its_place_leave_the_shared_past_with_the_same_average() -> None:
    job = Job()
    past, dead, alive = [3.0 - 0.01 * i for i in range(100)], [9.0] * 20, [2.0] * 30
    run = NaiveRun([job.rows(range(1, 121), {"loss": past + dead}), job.rolled_back(100, "k")])
    run.feed(job.rows(range(101, 131), {"loss": alive}))
    entries = {(s.segment, s.dead): s for s in _ask(run, view="all", smooth=0.95).series}
    assert list(_smoothed(entries[0, True]).values()) == pytest.approx(_tensorboard(past + dead, 0.95)[100:])
    assert list(_smoothed(entries[1, False]).values()) == pytest.approx(_tensorboard(past + alive, 0.95)[100:])


def test_every_rank_has_an_average_of_its_own() -> None:
    run = NaiveRun(Job(rank).rows(range(1, 50), {"loss": [float(rank)] * 49}) for rank in (0, 1))
    assert [set(_smoothed(s).values()) for s in _ask(run, smooth=0.5).series] == [{0.0}, {1.0}]


def test_news_after_a_cursor_go_on_from_the_average_of_all_that_was_before() -> None:
    job, values = Job(), [float(i % 5) for i in range(200)]
    run = NaiveRun([job.rows(range(1, 196), {"loss": values[:195]})])
    newer = run.feed(job.rows(range(196, 201), {"loss": values[195:]}))
    (series,) = select(run.store, run.lineage, SeriesRequest.of(["loss"], smooth=0.99), newer).series
    assert list(_smoothed(series).values()) == pytest.approx(_tensorboard(values, 0.99)[195:])


def test_strays_are_not_smoothed_and_change_no_average() -> None:
    run = NaiveRun([Job().rows(range(1, 101), {"loss": [1.0] * 100}), Job(start=2).rows([50], {"loss": [77.0]})])
    line, stray = _ask(run, view="all", smooth=0.9).series
    assert stray.smoothed is None
    assert list(_smoothed(line).values()) == pytest.approx([1.0] * 100)


class _Counting(NaiveStore):
    """Counts the rows that are read; those behind an aggregate are not."""

    read = 0

    def aggregates(self, key: SeriesKey, first: int, last: int, level: int) -> Aggs:
        return aggregate(super().rows(key, first, last), level)

    def rows(self, key: SeriesKey, first: int | None = None, last: int | None = None) -> Rows:
        rows = super().rows(key, first, last)
        self.read += len(rows)
        return rows


def _window(values: list[float]) -> tuple[list[float], int]:
    """Return the average at the last ten of 20,000 rows, and how many rows were read for it."""
    run = NaiveRun()
    run.store = _Counting()
    run.feed(Job().rows(range(1, len(values) + 1), {"loss": values}))
    (series,) = _ask(run, smooth=0.9, start=len(values) - 9).series
    return list(_smoothed(series).values()), run.store.read


def test_of_a_long_past_only_what_still_counts_is_read() -> None:
    values = np.random.default_rng(5).normal(2.0, 1.0, 10_000).tolist()
    told, read = _window(values)
    assert told == pytest.approx(_tensorboard(values, 0.9)[-10:], rel=1e-12)
    assert read < 1_000


def test_a_spike_so_large_that_it_still_counts_is_not_forgotten() -> None:
    values = np.random.default_rng(5).normal(2.0, 1.0, 10_000).tolist()
    values[8_500] = 1e70  # after 1,500 rows at 0.9 it is still worth 20
    assert _window(values)[0] == pytest.approx(_tensorboard(values, 0.9)[-10:], rel=1e-9)


def test_the_past_is_forgotten_across_short_segments_too_but_not_over_rows_that_are_nan() -> None:
    job, run, at, values = Job(), NaiveRun(), 0, []
    run.store = store = _Counting()
    noise = np.random.default_rng(8).normal(2.0, 1.0, 4_000)
    for number, piece in enumerate(np.split(noise, 20)):
        piece[:150] = math.nan if number >= 18 else piece[:150]
        run.feed(job.rows(range(at + 1, at + 231), {"loss": [*piece.tolist(), *[77.0] * 30]}))
        values += piece.tolist()
        at += 200
        run.feed(job.rolled_back(at, f"r{number}"))
    run.feed(job.rows([at + 1], {"loss": [2.5]}))
    (series,) = _ask(run, smooth=0.9, start=at + 1).series
    assert list(_smoothed(series).values()) == pytest.approx(_tensorboard([*values, 2.5], 0.9)[-1:], rel=1e-12)
    assert store.read < 1_500
