"""A chart's answer loses no spike and no NaN, whatever it leaves out, and is never much longer than was asked for."""

from __future__ import annotations

import itertools
import math
import sys
import tracemalloc
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.lineage.batch import Batch
from stabilitybackend.storage.points.store import RunStore
from stabilitybackend.storage.query.query import Answer, Series, json_numbers, select
from stabilitybackend.storage.query.request import SeriesRequest
from support.job_frames import Job
from support.points.naive_store import NaiveRun


def _ask(run: NaiveRun, metric: str = "loss", **wish: Any) -> Answer:
    return select(run.store, run.lineage, SeriesRequest.of([metric], **wish))


def _run(values: list[float]) -> NaiveRun:
    return NaiveRun([Job().rows(range(1, len(values) + 1), {"loss": values})])


def _one(run: NaiveRun, **wish: Any) -> Series:
    (series,) = _ask(run, **wish).series
    return series


def _forked(rows: int, forks: int) -> NaiveRun:
    """Return a run of about ``rows`` rows that went back 20 steps ``forks`` times."""
    job, run, at = Job(), NaiveRun(), 0
    for fork in range(forks + 1):
        stop = at + rows // (forks + 1)
        run.feed(job.rows(range(at + 1, stop + 1)))
        at = stop - 20
        if fork < forks:
            run.feed(job.rolled_back(at, f"r{fork}"))
    return run


def test_without_a_bound_every_point_comes_back_in_full_resolution() -> None:
    values = [float(i % 7) for i in range(1_000)]
    series = _one(_run(values))
    assert (series.values.tolist(), series.level) == (values, 0)


def test_one_spike_among_twenty_thousand_points_is_in_every_bounded_answer() -> None:
    values = [1.0] * 20_000
    values[11_234] = 9.0
    run = _run(values)
    for points, start in itertools.product((4, 10, 100, 1_000), (None, 1, 11_000, 11_235)):
        series = _one(run, points=points, start=start)
        assert 9.0 in series.values.tolist()
        assert len(series.steps) <= points + 4


def test_a_single_nan_and_single_infinities_survive_down_sampling() -> None:
    values = [1.0] * 20_000
    values[10], values[9_000], values[19_000] = math.nan, math.inf, -math.inf
    series = _one(_run(values), points=50)
    assert {11, 9_001, 19_001} <= set(series.steps.tolist())


def test_a_run_of_nothing_but_nan_is_bounded_and_still_nan() -> None:
    series = _one(_run([math.nan] * 10_000), points=100)
    assert 2 <= len(series.steps) <= 110
    assert np.isnan(series.values).all()


def test_a_window_includes_both_of_its_ends() -> None:
    assert _one(_run([0.0] * 100), start=10, stop=20).steps.tolist() == list(range(10, 21))


def test_an_unknown_metric_gives_no_entry() -> None:
    assert _ask(_run([1.0]), "nothing").series == []


def test_non_finite_numbers_are_written_as_words() -> None:
    assert json_numbers(np.array([1.5, math.nan, math.inf, -math.inf])) == [1.5, "NaN", "Infinity", "-Infinity"]


def test_a_line_of_many_segments_is_not_longer_than_one_without_rollbacks() -> None:
    run = _forked(20_000, 50)
    answer = _ask(run, points=1_000)
    assert len(answer.series) == 51
    assert 500 <= sum(len(s.steps) for s in answer.series) <= 1_000 + 4 * 51


def test_all_segments_with_their_dead_points_share_the_bound_too() -> None:
    job, run = Job(), NaiveRun()
    for fork in range(20):
        run.feed(job.rows(range(1, 2_001)))
        run.feed(job.rolled_back(0, f"r{fork}"))
    answer = _ask(run, view="all", points=500)
    assert len(answer.series) == 20
    assert sum(len(s.steps) for s in answer.series) <= 500 + 4 * 20


def test_every_rank_of_a_metric_has_the_same_buckets() -> None:
    run = NaiveRun(Job(rank).rows(range(1, last), {"loss": [float(rank)] * (last - 1)})
                   for rank, last in ((0, 8_001), (1, 4_001)))  # fmt: skip
    assert len({series.level for series in _ask(run, points=100).series}) == 1


def test_a_line_with_fewer_rows_than_points_is_shown_as_it_is() -> None:
    steps = list(range(0, 1_000_000, 10_000))
    run = NaiveRun([Job().rows(steps, {"loss": [float(s) for s in steps]})])
    series = _one(run, points=200)
    assert (series.steps.tolist(), series.level) == (steps, 0)


def test_one_segment_is_shown_with_its_living_and_its_dead_part() -> None:
    job = Job()
    run = NaiveRun([job.rows(range(1, 11)), job.rolled_back(5, "k"), job.rows([6, 7])])
    found = [(s.segment, s.dead, s.steps.tolist()) for s in _ask(run, view="segment:0").series]
    assert found == [(0, False, [1, 2, 3, 4, 5]), (0, True, [6, 7, 8, 9, 10])]


def test_one_rank_or_the_lowest_that_logs_is_picked() -> None:
    run = NaiveRun(Job(rank).rows([1, 2], {"loss": [0.0, 1.0]}) for rank in (3, 1, 2))
    assert [s.rank for s in _ask(run).series] == [1, 2, 3]
    assert [s.rank for s in _ask(run, rank="2").series] == [2]
    assert [s.rank for s in _ask(run, rank="primary").series] == [1]
    assert _ask(run, rank="7").series == []


def test_rows_about_which_nothing_is_decided_are_strays_in_all() -> None:
    run = NaiveRun([Job().rows(range(1, 101)), Job(start=2).rows([50])])
    assert [s.stray for s in _ask(run).series] == [False]
    assert [(s.stray, s.dead, s.steps.tolist()) for s in _ask(run, view="all").series[1:]] == [(True, True, [50])]


def test_launches_that_died_in_their_first_steps_are_all_found_each_by_its_process() -> None:
    run = NaiveRun(
        [Job(start=start).rows(range(1, last + 1)) for start, last in ((1, 5), (2, 1), (3, 2), (4, 1), (5, 5))]
    )
    dead = [s for s in _ask(run, view="all").series if s.dead]
    assert [(s.stray, s.source, s.steps.tolist(), s.values.round().tolist()) for s in dead] == [
        (False, "", [1, 2, 3, 4, 5], [1000.0] * 5),
        (True, "r0-2", [1], [2000.0]),
        (True, "r0-3", [1, 2], [3000.0] * 2),
        (True, "r0-4", [1], [4000.0]),
    ]


def test_only_what_came_after_the_cursor_is_answered_with_all_rows_of_its_steps() -> None:
    job = Job()
    run = NaiveRun([job.rows(range(1, 101)), job.rolled_back(60, "a"), job.rows(range(61, 71))])
    newer = run.feed(job.rows([71, 72], {"loss": [1.0, 2.0]})) + run.feed(job.rows([72, 73], {"loss": [5.0, 6.0]}))
    answer = select(run.store, run.lineage, SeriesRequest.of(["loss"], points=100), newer)
    assert not answer.complete
    assert [(s.segment, s.steps.tolist(), s.values.tolist()) for s in answer.series] == [
        (1, [71, 72, 72, 73], [1.0, 2.0, 5.0, 6.0])
    ]


def test_late_points_of_a_dead_segment_are_no_news_of_the_effective_line() -> None:
    old, job = Job(1), Job()
    run = NaiveRun([old.rows(range(1, 50)), job.rows(range(1, 101)), job.rolled_back(60, "a"), job.rows([61, 62])])
    newer = run.feed(old.rows(range(50, 81)))
    wish = {"points": 100}
    effective = select(run.store, run.lineage, SeriesRequest.of(["loss"], **wish), newer)
    every = select(run.store, run.lineage, SeriesRequest.of(["loss"], view="all", **wish), newer)
    assert [(s.dead, s.steps.tolist()) for s in effective.series] == [(False, list(range(50, 61)))]
    assert [(s.dead, s.steps.tolist()) for s in every.series] == [
        (False, list(range(50, 61))),
        (True, list(range(61, 81))),
    ]


def test_a_flood_of_news_is_thinned_like_everything_else() -> None:
    job, run = Job(), NaiveRun()
    run.feed(job.rows(range(1, 11)))
    newer = run.feed(job.rows(range(11, 5_011), {"loss": [1.0] * 3_000 + [7.0] + [1.0] * 1_999}))
    (series,) = select(run.store, run.lineage, SeriesRequest.of(["loss"], points=100), newer).series
    assert len(series.steps) <= 104
    assert 7.0 in series.values


def test_a_chart_of_very_many_ranks_gets_fewer_points_of_each_and_still_every_spike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stabilitybackend.storage.query.query.MANY_LINES_POINTS", 2_000)
    run = NaiveRun()
    for rank in range(80):
        values = [2.0] * 300
        values[rank + 100] = 9.0
        run.feed(Job(rank, world_size=80).rows(range(300), {"loss": values}))
    found = select(run.store, run.lineage, SeriesRequest.of(["loss"], points=200)).series
    assert len(found) == 80
    assert sum(len(entry.steps) for entry in found) <= 3_000
    assert all(9.0 in entry.values for entry in found)


def test_an_answer_larger_than_people_can_use_is_refused_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stabilitybackend.storage.query.query.MAX_ANSWER_POINTS", 99)
    with pytest.raises(BadRequest, match="about 100 points asked for"):
        _ask(_run([0.0] * 100))
    assert len(_one(_run([0.0] * 100), points=20).steps) <= 24


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"view": "effektive"}, "view is 'effektive', expected effective, all or segment:<id>"),
        ({"view": "segment:-1"}, "view is 'segment:-1', expected"),
        ({"rank": "-1"}, "rank is '-1', expected"),
        ({"start": 20, "stop": 10}, "start is 20 and stop is 10, expected start <= stop"),
        ({"points": 3}, "points is 3, expected 4 to 1000000"),
        ({"smooth": 1.0}, "smooth is 1.0, expected 0"),
        ({"smooth": math.nan}, "smooth is nan, expected 0"),
        ({"x": ""}, "x is empty"),
        ({"x": "tokns"}, "x is 'tokns', expected step, time or a metric"),
        ({"view": "segment:1"}, "view is segment:1, expected segment:0 to segment:0"),
    ],
)
def test_a_wrong_parameter_is_named_with_what_is_expected(wish: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        _ask(_run([1.0]), **wish)
    assert caught.value.message.startswith(message)
    assert caught.value.hint


def test_the_answer_is_json_whose_numbers_are_those_of_the_points() -> None:
    run = _run([0.1, math.nan, 1e300])
    told = orjson.loads(_ask(run, x="time", smooth=0.5).as_json(cursor="7-0"))
    (entry,) = told.pop("series")
    assert told == {"level": 0, "x": "time", "unplaced": 0, "complete": True, "problems": [], "cursor": "7-0"}
    smoothed = entry.pop("smoothed")
    assert entry == {
        "metric": "loss", "segment": 0, "dead": False, "stray": False, "rank": 0, "node": None, "level": 0,
        "steps": [1, 2, 3], "values": [0.1, "NaN", 1e300], "xs": pytest.approx([1000.1, 1000.2, 1000.3]),
    }  # fmt: skip
    assert smoothed[:2] == pytest.approx([0.1, 0.1])


def test_what_could_not_be_read_is_said_beside_the_rest() -> None:
    run = _run([1.0, 2.0])
    run.store.problems.append("part p1 is cut short")
    answer = _ask(run)
    assert (answer.problems, answer.series[0].values.tolist()) == (["part p1 is cut short"], [1.0, 2.0])


@pytest.mark.parametrize("wish", [{"x": "huge"}, {"x": "time"}, {"smooth": 0.5}, {"smooth": 0.9999}])
def test_the_largest_numbers_there_are_break_nothing(wish: dict[str, Any]) -> None:
    huge = [sys.float_info.max, -sys.float_info.max, 5e-324, math.nan] * 500
    run = NaiveRun([Job().rows(range(1, 2_001), {"loss": huge, "huge": huge[::-1]})])
    for points in (20, None):
        (series,) = _ask(run, points=points, **wish).series
        assert {sys.float_info.max, -sys.float_info.max} <= set(series.values.tolist())


def test_ten_thousand_metrics_of_one_point_take_little_memory() -> None:
    store = RunStore()
    placed = NaiveRun().feed(Job().rows([1], {f"layer/{n}": [0.0] for n in range(10_000)}))
    tracemalloc.start()
    for rows in placed:
        store.add(Batch.of([rows]))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 20e6


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=300),
    points=st.integers(4, 50),
)
def test_a_bounded_answer_holds_the_extremes_and_only_true_points(values: list[float], points: int) -> None:
    series = _one(_run(values), points=points)
    truth = dict(enumerate(values, start=1))
    for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
        assert value == pytest.approx(truth[step], nan_ok=True)
    finite = [v for v in values if math.isfinite(v)]
    if finite:
        assert {min(finite), max(finite)} <= set(series.values.tolist())
    for kind in (math.isnan, lambda v: v == math.inf, lambda v: v == -math.inf):
        assert any(kind(v) for v in values) == any(kind(v) for v in series.values.tolist())
