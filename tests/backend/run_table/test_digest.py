"""The small curve of a whole run keeps what one would miss, and tokens are only counted where they are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabilitybackend.run_table.digest_updates import POINTS, curve, curve_metric, token_metric
from stabilitybackend.run_table.rows import unit_of_speed
from stabilitybackend.schema.pages.run_table import RunCurve
from stabilitybackend.storage.query.query import select
from stabilitybackend.storage.query.request import SeriesRequest
from support.job_frames import Job
from support.points.naive_store import NaiveRun


def logged(rows: int, every: int, hole: range = range(0)) -> RunCurve:
    """Return the curve of a run that logged ``rows`` rows, one each ``every`` steps, without those of a hole."""
    numbers = [row for row in range(rows) if row not in hole]
    noise = np.random.default_rng(rows).normal(0.0, 0.05, len(numbers))
    run = NaiveRun([Job().rows([every * row for row in numbers], {"loss": [2.0 + one for one in noise.tolist()]})])
    answer = select(run.store, run.lineage, SeriesRequest.of(["loss"], view="effective", points=POINTS))
    found = curve("loss", answer.series[0].steps, answer.series[0].values, 1 << answer.level)
    assert found is not None
    return found


def test_one_spike_among_a_million_steps_is_in_the_curve_and_does_not_flatten_it() -> None:
    values = np.linspace(4.0, 2.0, 1_000_000)
    values[700_000] = 1e9
    found = curve("loss", np.arange(1_000_000), values)
    assert found is not None
    assert (len(found.low), found.high[42], found.least) == (60, 100, 2.0)
    assert found.most < 5
    assert found.low[0] is not None
    assert found.low[0] > 90


def test_values_that_are_no_numbers_are_marked_and_drawn_nowhere() -> None:
    values = np.array([3.0, np.nan, 2.0, np.inf])
    found = curve("loss", np.arange(4), values)
    assert found is not None
    assert (found.odd, found.low) == ([1, 3], [100, None, 0, None])


@pytest.mark.parametrize("every", [1, 7, 10, 30, 250])
@pytest.mark.parametrize("rows", [2, 40, 59, 600, 1_327])
def test_a_curve_of_a_log_without_a_hole_has_none(rows: int, every: int) -> None:
    assert None not in logged(rows, every).low


@pytest.mark.parametrize("every", [1, 10])
def test_a_hole_in_the_log_is_a_hole_in_the_curve(every: int) -> None:
    found = logged(900, every, hole=range(300, 600)).low
    assert found[21:39] == [None] * 18
    assert None not in found[:19] + found[41:]


@pytest.mark.parametrize("values", [[np.nan, np.nan], [1.0, 1.0], [-1e308, 1e308]])
def test_odd_values_give_a_curve_all_the_same(values: list[float]) -> None:
    assert curve("loss", np.arange(2), np.array(values)) is not None


@given(st.lists(st.floats(width=64), min_size=2, max_size=300))
def test_a_curve_is_within_its_box_whatever_was_logged(values: list[float]) -> None:
    found = curve("x", np.arange(len(values)), np.array(values))
    assert found is not None
    for low, high in zip(found.low, found.high, strict=True):
        assert (low is None) == (high is None)
        assert low is None or high is None or 0 <= low <= high <= 100


def test_a_single_step_is_no_curve() -> None:
    assert curve("loss", np.array([5]), np.array([1.0])) is None


def test_a_run_without_a_loss_shows_what_may_be_one_else_its_first_metric() -> None:
    assert curve_metric(["gpu/0/util", "reward", "ppo/value_loss"], None) == "reward"
    assert curve_metric(["clock", "lm/xent"], None) == "lm/xent"
    assert curve_metric(["reward"], "train/loss") == "train/loss"
    assert curve_metric([], None) is None


def test_tokens_are_those_of_a_metric_that_counts_them() -> None:
    assert token_metric(["loss", "train/num_input_tokens_seen"]) == ("train/num_input_tokens_seen", True)
    assert token_metric(["tokens"]) == ("tokens", False)  # may be of one step: it has to rise
    assert token_metric(["tokens_per_s", "tokens/web"]) is None


def test_a_speed_has_the_unit_that_its_name_says() -> None:
    assert [unit_of_speed(name) for name in ("throughput/device/tokens_per_sec", "tps", "samples_per_s", "mfu")] == [
        "tokens/s per GPU", "tokens/s", "samples/s", "",
    ]  # fmt: skip
