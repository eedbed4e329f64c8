"""Whatever tree a run is, and however its points came: a chart shows what a plain account of the run says."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.storage.archive.cache import ByteCache
from stabilitybackend.storage.archive.location import open_location
from stabilitybackend.storage.archive.part import PartReader, write_part
from stabilitybackend.storage.points.store import RunStore
from stabilitybackend.storage.query.query import Answer, Series, select
from stabilitybackend.storage.query.request import SeriesRequest
from support.points.forked_tree import Tree, same, trees
from support.points.naive_store import NaiveStore

FEW = settings(max_examples=25, deadline=None)
#: Step and value of each row.
_Rows = list[tuple[int, float]]
MANY = settings(max_examples=60, deadline=None)


def _hot(tree: Tree) -> RunStore:
    store = RunStore()
    _add(store, tree.placed())
    return store


def _add(store: RunStore, packets: Iterable[Placed], first: int = 1) -> None:
    for number, placed in enumerate(packets, start=first):
        store.begin(f"{number}-0", 1)
        store.add(Batch.of([placed]))


def _select(store: RunStore, tree: Tree, view: str = "effective", **wish: object) -> Answer:
    return select(store.view(["m"]), tree.lineage(), SeriesRequest.of(["m"], view=view, **wish))  # type: ignore[arg-type]


def _points(series: Series) -> _Rows:
    return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def _told(answer: Answer) -> dict[tuple[int, bool], _Rows]:
    return {(s.segment, s.dead): _points(s) for s in answer.series}


def _equal(one: _Rows, other: _Rows) -> bool:
    return len(one) == len(other) and all(a[0] == b[0] and same(a[1], b[1]) for a, b in zip(one, other, strict=True))


@MANY
@given(tree=trees())
def test_the_effective_line_is_the_plain_account_of_the_run(tree: Tree) -> None:
    joined = [row for series in _select(_hot(tree), tree).series for row in _points(series)]
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
        assert set(map(repr, shown)) <= set(map(repr, every))
        assert {repr(every[0]), repr(every[-1])} <= set(map(repr, shown))
        buckets: dict[int, _Rows] = {}
        for step, value in every:
            buckets.setdefault(step >> series.level, []).append((step, value))
        for bucket in buckets.values():
            kept = [row for row in shown if bucket[0][0] <= row[0] <= bucket[-1][0]]
            finite = [value for _, value in bucket if math.isfinite(value)]
            assert not finite or {min(finite), max(finite)} <= {value for _, value in kept}
            for odd in (math.nan, math.inf, -math.inf):
                first = next((row for row in bucket if same(row[1], odd)), None)
                assert first is None or repr(first) in map(repr, kept)
    shown_finite = sum(int(np.isfinite(series.values).sum()) for series in thin.series)
    assert shown_finite <= points + 4 * len(thin.series)


@MANY
@given(tree=trees(), level=st.integers(0, 10), window=st.tuples(st.integers(0, 200), st.integers(0, 200)))
def test_the_buckets_of_any_window_add_up_to_its_rows(tree: Tree, level: int, window: tuple[int, int]) -> None:
    view = _hot(tree).view(["m"])
    first, last = sorted(window)
    for key in view.keys("m"):
        aggs = view.aggregates(key, first, last, level)
        rows = [v for s, v in tree.points()[key.segment] if first <= s <= last]
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
            size = max((abs(v) for rows in tree.points().values() for _, v in rows if math.isfinite(v)), default=0.0)
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
    browser: dict[tuple[int, int], list[float]] = {}
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
                for step, values in groupby(_points(series), key=itemgetter(0)):
                    browser[series.segment, step] = [value for _, value in values]
            cursor = f"{number}-0"
    for segment, rows in tree.points().items():
        steps = sorted(step for of, step in browser if of == segment)
        assert _equal([(step, value) for step in steps for value in browser[segment, step]], rows)


@MANY
@given(tree=trees(), weight=st.sampled_from([0.05, 0.6, 0.99, 0.9999]), start=st.integers(0, 150))
def test_the_smoothed_line_is_the_average_over_the_path_of_each_point(tree: Tree, weight: float, start: int) -> None:
    answer = _select(_hot(tree), tree, "all", smooth=weight, start=start)
    for series in answer.series:
        assert series.smoothed is not None
        curve = tree.curve(series.segment)
        for step, told in zip(series.steps.tolist(), series.smoothed.tolist(), strict=True):
            past = [value for at, value in curve if at <= step and math.isfinite(value)]
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
            rows = placed.steps[keep], placed.times[keep], placed.values[:, keep]
            store.add(Batch.of([Placed(placed.segment, "r0", 0, "n0", ["x"], *rows)]))
    if not store.keys("x"):
        return
    known = Tree(tree.parents, tree.forks, tree.head)
    for key in store.keys("x"):
        rows = store.rows(key)
        known.packets.append((key.segment, rows.steps.tolist(), rows.values.tolist()))
    answer = select(store.view(["m", "x"]), tree.lineage(), SeriesRequest.of(["m"], view="all", x="x"))
    shown = {(s.segment, step): x for s in answer.series for step, x in zip(s.steps.tolist(), s.xs, strict=True)}
    expected: dict[tuple[int, int], float] = {}
    unplaced = 0
    for (segment, dead), series in tree.entries().items():
        curve = known.curve(segment if dead else None)
        for step, _ in series:
            x = _between(curve, step)
            unplaced += x is None
            if x is not None:
                expected[segment, step] = x
    assert shown == pytest.approx(expected, rel=1e-9)
    assert answer.unplaced == unplaced


def _between(curve: _Rows, step: int) -> float | None:
    """Return the newest value at ``step``, or that on the line between its finite neighbours; None outside of them."""
    finite = [(s, v) for s, v in curve if math.isfinite(v)]
    low = next((row for row in reversed(finite) if row[0] <= step), None)
    high = next((row for row in finite if row[0] >= step), None)
    if low is None or high is None:
        return None
    part = 0.0 if low[0] == step else (step - low[0]) / (high[0] - low[0])
    return low[1] + part * (high[1] - low[1]) if part else low[1]
