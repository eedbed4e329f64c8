"""A chart's answer loses no spike and no NaN, whatever it leaves out."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from job import Job
from stabilitybackend.lineage.changes import Placed
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.runs.query import json_numbers, select, summary
from stabilitybackend.runs.store import RunStore


def _run(values: list[float]) -> tuple[RunStore, LineageFold]:
    fold, store = LineageFold(), RunStore()
    for change in fold.apply(Job().rows(range(1, len(values) + 1), {"loss": values})):
        assert isinstance(change, Placed)
        store.add(change)
    return store, fold


def test_without_a_bound_every_point_comes_back_in_full_resolution() -> None:
    values = [float(i % 7) for i in range(1_000)]
    (series,) = select(*_run(values), ["loss"])
    assert series.values.tolist() == values


def test_one_spike_among_a_hundred_thousand_points_is_in_every_bounded_answer() -> None:
    values = [1.0] * 100_000
    values[61_234] = 9.0
    store, fold = _run(values)
    for points in (4, 10, 100, 1_000):
        (series,) = select(store, fold, ["loss"], points=points)
        assert 9.0 in series.values.tolist()
        assert len(series.steps) <= points + 4


def test_a_single_nan_and_single_infinities_survive_down_sampling() -> None:
    values = [1.0] * 50_000
    values[10], values[20_000], values[49_000] = math.nan, math.inf, -math.inf
    (series,) = select(*_run(values), ["loss"], points=50)
    assert {11, 20_001, 49_001} <= set(series.steps.tolist())


def test_a_run_of_nothing_but_nan_is_bounded_and_still_nan() -> None:
    (series,) = select(*_run([math.nan] * 10_000), ["loss"], points=100)
    assert 2 <= len(series.steps) <= 110
    assert np.isnan(series.values).all()


def test_a_window_includes_both_of_its_ends() -> None:
    (series,) = select(*_run([0.0] * 100), ["loss"], start=10, stop=20)
    assert series.steps.tolist() == list(range(10, 21))


def test_an_unknown_metric_gives_no_entry() -> None:
    assert select(*_run([1.0]), ["nothing"]) == []


def test_non_finite_numbers_are_written_as_words() -> None:
    assert json_numbers(np.array([1.5, math.nan, math.inf, -math.inf])) == [1.5, "NaN", "Infinity", "-Infinity"]


def test_the_summary_counts_effective_and_dead_points_of_the_loss() -> None:
    job, fold, store = Job(), LineageFold(), RunStore()
    for frame in (job.rows(range(1, 101)), job.rolled_back(60, "a"), job.rows(range(61, 71))):
        for change in fold.apply(frame):
            if isinstance(change, Placed):
                store.add(change)
    found = summary(store, fold)
    assert (found["effective_points"], found["dead_points"], found["last_step"]) == (70, 40, 70)


def test_the_summary_knows_the_loss_and_the_newest_step_among_thousands_of_metrics() -> None:
    job, fold, store = Job(), LineageFold(), RunStore()
    frames = [job.rows([step], {f"layer/{step}": [0.0]}) for step in range(1, 301)]
    for frame in (*frames, job.rows([301], {"loss": [2.5]})):
        for change in fold.apply(frame):
            assert isinstance(change, Placed)
            store.add(change)
    found = summary(store, fold)
    assert (found["last_step"], found["latest"]["loss"], found["effective_points"]) == (301, 2.5, 1)


def test_ten_thousand_metrics_of_one_point_take_little_memory() -> None:
    job, fold, store = Job(), LineageFold(), RunStore()
    placed = list(fold.apply(job.rows([1], {f"layer/{n}": [0.0] for n in range(10_000)})))
    tracemalloc.start()
    for change in placed:
        assert isinstance(change, Placed)
        store.add(change)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 20e6


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=300),
    points=st.integers(4, 50),
)
def test_a_bounded_answer_holds_the_extremes_and_only_true_points(values: list[float], points: int) -> None:
    (series,) = select(*_run(values), ["loss"], points=points)
    truth = dict(enumerate(values, start=1))
    for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
        assert value == pytest.approx(truth[step], nan_ok=True)
    finite = [v for v in values if math.isfinite(v)]
    if finite:
        assert {min(finite), max(finite)} <= set(series.values.tolist())
    for kind in (math.isnan, lambda v: v == math.inf, lambda v: v == -math.inf):
        assert any(kind(v) for v in values) == any(kind(v) for v in series.values.tolist())
