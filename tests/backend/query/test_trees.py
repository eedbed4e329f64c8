"""Whatever tree a run is, and however its points came: a chart shows what a plain account of the run says."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitybackend.archive.cache import ByteCache
from stabilitybackend.archive.location import open_location
from stabilitybackend.archive.part import PartReader, write_part
from stabilitybackend.lineage.changes import Placed
from stabilitybackend.points.store import RunStore
from stabilitybackend.query.query import Answer, Series, select
from stabilitybackend.query.request import SeriesRequest
from support.points.forked_tree import Tree, same, trees
from support.points.naive_store import NaiveStore

FEW = settings(max_examples=25, deadline=None)
MANY = settings(max_examples=60, deadline=None)


def _hot(tree: Tree) -> RunStore:
    store = RunStore()
    _add(store, tree.placed())
    return store


def _add(store: RunStore, packets: Iterable[Placed], first: int = 1) -> None:
    for number, placed in enumerate(packets, start=first):
        store.begin(f"{number}-0", 1)
        store.add(placed)


def _select(store: RunStore, tree: Tree, view: str = "effective", **wish: object) -> Answer:
    return select(store.view(["m"]), tree.lineage(), SeriesRequest.of(["m"], view=view, **wish))  # type: ignore[arg-type]


def _points(series: Series) -> dict[int, float]:
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def _told(answer: Answer) -> dict[tuple[int, bool], dict[int, float]]:
    return {(s.segment, s.dead): _points(s) for s in answer.series}


def _equal(one: dict[int, float], other: dict[int, float]) -> bool:
    return list(one) == list(other) and all(same(one[step], other[step]) for step in one)


@MANY
@given(tree=trees())
def test_the_effective_line_is_the_plain_account_of_the_run(tree: Tree) -> None:
    joined: dict[int, float] = {}
    for series in _select(_hot(tree), tree).series:
        joined |= _points(series)
    assert _equal(joined, tree.curve())


@MANY
@given(tree=trees())
def test_all_holds_every_point_once_and_says_which_are_dead(tree: Tree) -> None:
    told, known = _told(_select(_hot(tree), tree, "all")), tree.entries()
    assert told.keys() == known.keys()
    assert all(_equal(told[key], known[key]) for key in known)


@MANY
@given(tree=trees(), points=st.integers(4, 40), view=st.sampled_from(["effective", "all"]))
def test_a_thinned_line_has_the_extremes_of_every_bucket_and_is_bounded(tree: Tree, points: int, view: str) -> None:
    store = _hot(tree)
    full, thin = _told(_select(store, tree, view)), _select(store, tree, view, points=points)
    assert _told(thin).keys() == full.keys()
    for series in thin.series:
        every, shown = full[series.segment, series.dead], _points(series)
        assert all(same(every[step], value) for step, value in shown.items())
        assert {min(every), max(every)} <= shown.keys()
        buckets: dict[int, dict[int, float]] = {}
        for step, value in every.items():
            buckets.setdefault(step >> series.level, {})[step] = value
        for bucket in buckets.values():
            kept = [shown[step] for step in bucket if step in shown]
            finite = [value for value in bucket.values() if math.isfinite(value)]
            assert not finite or {min(finite), max(finite)} <= set(kept)
            for odd in (math.nan, math.inf, -math.inf):
                first = next((step for step, value in bucket.items() if same(value, odd)), None)
                assert first is None or first in shown
    shown_finite = sum(int(np.isfinite(series.values).sum()) for series in thin.series)
    assert shown_finite <= points + 4 * len(thin.series)


@MANY
@given(tree=trees(), level=st.integers(0, 10), window=st.tuples(st.integers(0, 200), st.integers(0, 200)))
def test_the_buckets_of_any_window_add_up_to_its_rows(tree: Tree, level: int, window: tuple[int, int]) -> None:
    view = _hot(tree).view(["m"])
    first, last = sorted(window)
    for key in view.keys("m"):
        aggs = view.aggregates(key, first, last, level)
        rows = [v for s, v in tree.points()[key.segment].items() if first <= s <= last]
        assert int(aggs["count"].sum()) == sum(map(math.isfinite, rows))
        assert int(aggs["nan"].sum()) == sum(map(math.isnan, rows))
        assert int(aggs["pinf"].sum() + aggs["ninf"].sum()) == sum(map(math.isinf, rows))
        finite = [v for v in rows if math.isfinite(v)]
        assert float(aggs["sum"].sum()) == pytest.approx(math.fsum(finite), rel=1e-9, abs=1e-9 * sum(map(abs, finite)))


@FEW
@given(tree=trees(), cuts=st.sets(st.integers(1, 8), max_size=3), points=st.integers(4, 40))
def test_wherever_hot_and_cold_part_the_answers_are_those_of_all_points(
    tree: Tree, cuts: set[int], points: int
) -> None:
    naive, store, packets = NaiveStore(), RunStore(), tree.placed()
    for placed in packets:
        naive.add(placed)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(packets)), len(packets)]
    with TemporaryDirectory() as folder:
        location, cache = open_location(str(Path(folder))), ByteCache(1_000_000)
        for begin, end in pairwise(bounds):
            _add(store, packets[begin:end], begin + 1)
            if end < len(packets):
                sealed = store.cut(b"")
                part = write_part(
                    location, "r", f"p{end}", from_id=sealed.from_id, to_id=sealed.to_id,
                    series=sealed.contents(), frames=[], state=b"", created=0.0,
                )  # fmt: skip
                reader = PartReader(location, "r", part, cache)
                store.archived(1, reader, reader.keys())
        wishes = [{"view": "all"}, {"points": points}, {"points": points, "start": 20, "stop": 90, "smooth": 0.9}]
        for wish in wishes:
            request = SeriesRequest.of(["m"], **wish)  # type: ignore[arg-type]
            told = orjson.loads(select(store.view(["m"]), tree.lineage(), request).as_json())
            known = orjson.loads(select(naive, tree.lineage(), request).as_json())
            # The means are sums of floats: how the rows were grouped on the way shows in their last digits.
            size = max(
                (abs(v) for rows in tree.points().values() for v in rows.values() if math.isfinite(v)), default=0.0
            )
            assert _means(told) == pytest.approx(_means(known), rel=1e-9, abs=1e-9 * size, nan_ok=True)
            assert told == known


def _means(answer: dict[str, Any]) -> list[float]:
    """Take the means out of an answer; NaN for none."""
    means = [entry["buckets"].pop("mean") for entry in answer["series"] if "buckets" in entry]
    return [math.nan if mean is None else mean for entry in means for mean in entry]


@MANY
@given(tree=trees(), asks=st.sets(st.integers(1, 8)))
def test_a_browser_that_asks_for_news_has_what_a_full_answer_holds(tree: Tree, asks: set[int]) -> None:
    store, lineage, packets = RunStore(), tree.lineage(), tree.placed()
    browser: dict[tuple[int, int], float] = {}
    cursor = "0-0"
    for number, placed in enumerate(packets, start=1):
        _add(store, [placed], number)
        if number in asks or number == len(packets):
            view = store.view(["m"])
            newer = view.since(cursor)
            assert newer is not None
            news = select(view, lineage, SeriesRequest.of(["m"], view="all"), newer)
            assert not news.complete
            for series in news.series:
                browser |= {(series.segment, step): value for step, value in _points(series).items()}
            cursor = f"{number}-0"
    full = {(segment, step): v for segment, series in tree.points().items() for step, v in series.items()}
    assert browser.keys() == full.keys()
    assert all(same(browser[at], full[at]) for at in full)


@MANY
@given(tree=trees(), weight=st.sampled_from([0.05, 0.6, 0.99, 0.9999]), start=st.integers(0, 150))
def test_the_smoothed_line_is_the_average_over_the_path_of_each_point(tree: Tree, weight: float, start: int) -> None:
    answer = _select(_hot(tree), tree, "all", smooth=weight, start=start)
    for series in answer.series:
        assert series.smoothed is not None
        curve = tree.curve(series.segment)
        for step, told in zip(series.steps.tolist(), series.smoothed.tolist(), strict=True):
            past = [value for at, value in curve.items() if at <= step and math.isfinite(value)]
            assert told == pytest.approx(_average(past, weight), rel=1e-9, nan_ok=True)


def _average(values: list[float], weight: float) -> float:
    """Return the debiased moving average as TensorBoard computes it, with exact sums; NaN of no values."""
    if not values:
        return math.nan
    shares = [(1.0 - weight) * weight**age for age in range(len(values))]
    return math.fsum(v * s for v, s in zip(reversed(values), shares, strict=True)) / math.fsum(shares)


@MANY
@given(tree=trees(), other=trees())
def test_another_metric_as_x_is_read_from_the_path_of_each_point(tree: Tree, other: Tree) -> None:
    # The x metric has the tree of `tree` and rows of its own: those of `other` where they fit in.
    store = _hot(tree)
    for placed in other.placed():
        if placed.segment < len(tree.forks):
            keep = placed.steps > tree.forks[placed.segment]
            store.add(
                Placed(
                    placed.segment, "r0", 0, "n0", ["x"], placed.steps[keep], placed.times[keep], placed.values[:, keep]
                )
            )  # fmt: skip
    if not store.keys("x"):
        return
    known = Tree(tree.parents, tree.forks, tree.head)
    for key in store.keys("x"):
        rows = store.rows(key)
        known.packets.append((key.segment, rows.steps.tolist(), rows.values.tolist()))
    answer = select(store.view(["m", "x"]), tree.lineage(), SeriesRequest.of(["m"], view="all", x="x"))
    shown = {(s.segment, step): x for s in answer.series for step, x in zip(s.steps.tolist(), s.xs, strict=True)}
    expected: dict[tuple[int, int], float] = {}
    for (segment, dead), series in tree.entries().items():
        curve = known.curve(segment if dead else None)
        for step in series:
            x = _between(curve, step)
            if x is not None:
                expected[segment, step] = x
    assert shown == pytest.approx(expected, rel=1e-9)
    assert answer.unplaced == sum(map(len, tree.entries().values())) - len(expected)


def _between(curve: dict[int, float], step: int) -> float | None:
    """Return the value at ``step``, on the straight line between its finite neighbours; None outside of them."""
    finite = {s: v for s, v in curve.items() if math.isfinite(v)}
    low = max((s for s in finite if s <= step), default=None)
    high = min((s for s in finite if s >= step), default=None)
    if low is None or high is None:
        return None
    part = 0.0 if low == high else (step - low) / (high - low)
    return finite[low] + part * (finite[high] - finite[low])
