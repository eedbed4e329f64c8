"""A thinned line says of each bucket what the mean of all its rows is, wherever they are and whatever forked."""

from __future__ import annotations

import math
import sys

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitybackend.lineage.batch import Batch
from stabilitybackend.storage.archive.aggregates import aggregate, means, regroup
from stabilitybackend.storage.archive.series import Rows
from stabilitybackend.storage.points.store import RunStore
from stabilitybackend.storage.query.query import select
from stabilitybackend.storage.query.request import SeriesRequest
from support.job_frames import Job
from support.points.forked_tree import Tree, trees
from support.points.naive_store import NaiveRun


def _store(tree: Tree) -> RunStore:
    store = RunStore()
    for number, placed in enumerate(tree.placed(), start=1):
        store.begin(f"{number}-0", 1)
        store.add(Batch.of([placed]))
    return store


@settings(max_examples=80, deadline=None)
@given(tree=trees(), points=st.integers(4, 40), view=st.sampled_from(["effective", "all"]))
def test_each_bucket_has_the_mean_of_all_its_finite_rows(tree: Tree, points: int, view: str) -> None:
    request = SeriesRequest.of(["m"], view=view, points=points)
    every = tree.entries()
    for series in select(_store(tree).view(["m"]), tree.lineage(), request).series:
        assert (series.buckets is None) == (series.level == 0)
        if series.buckets is None:
            continue
        rows = every[series.segment, series.dead]
        before = -1
        for last, mean, count in zip(
            series.buckets["last_step"].tolist(), means(series.buckets).tolist(), series.buckets["count"], strict=True
        ):
            inside = [v for step, v in rows if before < step <= last and math.isfinite(v)]
            size = max(map(abs, inside), default=0.0)
            expected = math.fsum(inside) / len(inside) if inside else math.nan
            assert (len(inside), mean) == (count, pytest.approx(expected, rel=1e-9, abs=1e-12 * size, nan_ok=True))
            before = last
        assert before == rows[-1][0]


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.floats(width=64), min_size=1, max_size=60), level=st.integers(0, 6))
def test_a_mean_lies_between_the_extremes_of_its_bucket(values: list[float], level: int) -> None:
    steps = np.arange(len(values), dtype=np.int64)
    fine = aggregate(Rows(steps, np.array(values), steps.astype(np.float64)), level)
    for aggs in (fine, regroup(fine, level + 2)):
        mean = means(aggs)
        known = ~np.isnan(mean)
        assert (aggs["count"][known] > 0).all()
        assert ((aggs["min"] <= mean) & (mean <= aggs["max"]))[known].all()


def test_a_mean_that_no_float_can_hold_is_null() -> None:
    run = NaiveRun([Job().rows(range(1, 101), {"loss": [sys.float_info.max] * 100})])
    answer = orjson.loads(select(run.store, run.lineage, SeriesRequest.of(["loss"], points=4)).as_json())
    assert set(answer["series"][0]["buckets"]["mean"]) == {None}


def test_a_bucket_of_nan_alone_has_no_mean() -> None:
    run = NaiveRun([Job().rows(range(1, 101), {"loss": [math.nan] * 100})])
    answer = orjson.loads(select(run.store, run.lineage, SeriesRequest.of(["loss"], points=4)).as_json())
    buckets = answer["series"][0]["buckets"]
    assert (set(buckets["mean"]), set(buckets["count"]), buckets["last"][-1]) == ({None}, {0}, 100)
