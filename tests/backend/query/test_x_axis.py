"""Points stand where their time or another metric says, and what has no place is left out and counted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from stabilitybackend.lineage.batch import Placed
from stabilitybackend.storage.query.query import Answer, Series, select
from stabilitybackend.storage.query.request import SeriesRequest
from support.job_frames import Job
from support.points.naive_store import NaiveRun


def _ask(run: NaiveRun, **wish: Any) -> Answer:
    return select(run.store, run.lineage, SeriesRequest.of(["loss"], **wish))


def _xs(series: Series) -> dict[int, float]:
    assert series.xs is not None
    return dict(zip(series.steps.tolist(), series.xs.tolist(), strict=True))


def _timed(times: list[float]) -> NaiveRun:
    """Return a run whose step n + 1 was logged at ``times[n]``."""
    run, rows = NaiveRun(), len(times)
    noise = np.random.default_rng(1).normal(size=(1, rows))
    run.store.add(Placed(0, "r0", 0, "n0", ["loss"], np.arange(1, rows + 1), np.array(times), noise))
    return run


def test_full_resolution_by_time_has_the_log_times_themselves() -> None:
    times = [100.0, 100.5, 107.0, 107.25]
    (series,) = _ask(_timed(times), x="time").series
    assert list(_xs(series).values()) == times


def test_by_time_a_thinned_line_is_within_half_a_pixel_also_beside_a_pause_inside_a_bucket() -> None:
    pace = np.full(8_000, 0.5)
    pace[2_345] += 600.0
    pace[6_000:] *= 3.0  # longer sequences from here on: slower, but even
    times = np.cumsum(pace)
    (series,) = _ask(_timed(times.tolist()), x="time", points=200).series
    assert series.level > 4
    off = [abs(x - times[step - 1]) for step, x in _xs(series).items()]
    assert max(off) <= float(times[-1] - times[0]) / 4_000


def _tokens(logged: dict[int, float], steps: int = 100, rank: int = 0) -> NaiveRun:
    job = Job()
    run = NaiveRun([job.rows(range(1, steps + 1))])
    run.feed(Job(rank, start=1).rows(list(logged), {"tokens": list(logged.values())}) if rank else
             job.rows(list(logged), {"tokens": list(logged.values())}))  # fmt: skip
    return run


def test_between_two_rows_of_the_x_metric_the_place_is_on_the_line_between_them() -> None:
    answer = _ask(_tokens({10: 1_000.0, 20: 3_000.0, 30: math.nan, 40: 4_000.0}), x="tokens")
    xs = _xs(answer.series[0])
    assert (xs[10], xs[15], xs[20], xs[30], xs[40]) == pytest.approx((1_000.0, 2_000.0, 3_000.0, 3_500.0, 4_000.0))


def test_points_before_and_after_all_that_is_known_of_x_are_left_out_and_counted() -> None:
    answer = _ask(_tokens({10: 1_000.0, 40: 4_000.0}), x="tokens", smooth=0.9)
    (series,) = answer.series
    assert (series.steps[0], series.steps[-1], answer.unplaced) == (10, 40, 69)
    assert series.smoothed is not None
    assert len(series.smoothed) == len(series.steps)


def test_a_rank_that_does_not_log_x_takes_it_from_the_lowest_that_does() -> None:
    answer = _ask(_tokens({1: 10.0, 100: 1_000.0}, rank=3), x="tokens")
    assert _xs(answer.series[0])[100] == 1_000.0


def test_a_window_between_two_rows_of_x_is_placed_by_them() -> None:
    answer = _ask(_tokens({10: 1_000.0, 40: 4_000.0}), x="tokens", start=20, stop=25)
    assert _xs(answer.series[0]) == pytest.approx({s: 100.0 * s for s in range(20, 26)})


def test_across_a_fork_x_goes_on_from_the_parent_and_a_dead_branch_keeps_its_own() -> None:
    job = Job()
    run = NaiveRun([job.rows(range(1, 21)), job.rows([10, 20], {"tokens": [100.0, 900.0]})])
    run.feed(job.rolled_back(10, "k"))
    run.feed(job.rows(range(11, 21)))
    run.feed(job.rows([20], {"tokens": [200.0]}))
    entries = {(s.segment, s.dead): _xs(s) for s in _ask(run, view="all", x="tokens").series}
    assert entries[1, False][15] == pytest.approx(150.0)
    assert entries[0, True][15] == pytest.approx(500.0)


@pytest.mark.parametrize("shape", ["rising", "steps", "noisy"])
def test_by_another_metric_a_thinned_line_is_within_a_pixel(shape: str) -> None:
    steps = np.arange(1, 8_001)
    tokens = {
        "rising": steps * 4_096.0,
        "steps": np.where(steps < 3_333, 0.0, 1e6) + steps,
        "noisy": np.random.default_rng(2).normal(size=len(steps)),
    }[shape]
    run = _timed(list(range(len(steps))))
    run.store.add(Placed(0, "r0", 0, "n0", ["tokens"], steps, steps * 1.0, tokens[None, :]))
    (series,) = _ask(run, x="tokens", points=200).series
    assert series.level > 4
    off = [abs(x - tokens[step - 1]) for step, x in _xs(series).items()]
    assert max(off) <= float(np.ptp(tokens)) / 2_000


def test_older_points_come_as_news_once_x_says_where_they_stand() -> None:
    job = Job()
    run = NaiveRun([job.rows(range(1, 26)), job.rows([10], {"tokens": [100.0]})])
    newer = run.feed(job.rows([20], {"tokens": [200.0]}))
    (series,) = select(run.store, run.lineage, SeriesRequest.of(["loss"], x="tokens"), newer).series
    assert _xs(series) == pytest.approx({step: 10.0 * step for step in range(11, 21)})
