"""The non-finite detector: at once, one event, and its end."""

from __future__ import annotations

import math
import random

import pytest

from stabilitybackend.judging.detectors.engine.bank import DetectorBank
from stabilitybackend.judging.detectors.engine.base import Finding, Point, Row
from stabilitybackend.judging.detectors.nonfinite import NonfiniteDetector


def feed(rows: list[dict[str, float]]) -> list[Finding]:
    detector = NonfiniteDetector()
    return [
        finding
        for step, row in enumerate(rows)
        for metric, value in row.items()
        for finding in detector.update(Point(step, metric, value, 0.0))
    ]


def test_the_first_nan_of_the_loss_is_critical_at_once() -> None:
    found = feed([{"loss": 2.0}, {"loss": math.nan}])
    assert [(f.kind, f.severity, f.state, f.onset_step, f.step) for f in found] == [
        ("nonfinite", "critical", "open", 1, 1)
    ]


def test_loss_and_gradient_norm_are_one_event_that_gets_worse() -> None:
    found = feed([{"grad_norm": math.inf, "loss": 2.0}, {"grad_norm": math.nan, "loss": math.nan}])
    assert [(f.key, f.severity, f.metric) for f in found] == [
        ("nonfinite:grad_norm:0", "info", "grad_norm"),
        ("nonfinite:grad_norm:0", "critical", "loss"),
    ]
    assert found[-1].evidence["values"] == {"grad_norm": {"Infinity": 1, "NaN": 1}, "loss": {"NaN": 1}}


def test_a_loss_that_is_lost_after_the_gradient_norm_is_told_with_its_own_first_step() -> None:
    rows = [{"grad_norm": math.inf, "loss": 2.0}] * 2 + [{"grad_norm": math.inf, "loss": math.nan}]
    told = feed(rows)[-1]
    assert (told.title, told.onset_step) == ("Loss not finite since step 2", 0)
    assert told.text.startswith(
        "The loss has not been finite since step 2, the gradient norm since step 0. From step 0 on"
    )


def test_an_incident_that_is_open_counts_no_values_that_grow_meanwhile() -> None:
    rows = [{"loss": 2.0}, *[{"loss": math.nan}] * 3, *[{"loss": 2.0}] * 11]
    assert [f.text.split(".")[0].split(";")[0] for f in feed(rows)] == [
        "The loss was NaN at step 1",
        "The loss was not finite from step 1 to 3 (3 values)",
    ]


def test_it_is_over_after_ten_finite_steps_and_names_the_first_of_them() -> None:
    rows = [{"loss": 2.0}, *[{"loss": math.nan}] * 3, *[{"loss": 2.0, "grad_norm": 1.0}] * 11]
    found = feed(rows)
    assert [(f.state, f.recovered_step, f.now_step) for f in found] == [("open", None, 1), ("recovered", 4, 14)]


def test_nine_finite_steps_are_not_enough() -> None:
    rows = [*[{"loss": math.nan}], *[{"loss": 2.0}] * 9, *[{"loss": math.nan}], *[{"loss": 2.0}] * 9]
    assert [f.state for f in feed(rows)] == ["open"]


def test_one_that_comes_back_soon_is_the_same_event_and_one_that_comes_late_is_another() -> None:
    nan, good = {"loss": math.nan}, {"loss": 2.0}
    soon = feed([nan, *[good] * 15, nan])
    late = feed([nan, *[good] * 40, nan])
    assert [f.key for f in soon] == ["nonfinite:loss:0"] * 3
    assert [f.key for f in late] == ["nonfinite:loss:0", "nonfinite:loss:0", "nonfinite:loss:41"]


def feed_rows(rows: list[dict[str, float]]) -> list[Finding]:
    bank = DetectorBank({"nonfinite": NonfiniteDetector})
    found = [finding for step, row in enumerate(rows) for finding in bank.feed_row(Row(step, float(step), row))]
    assert bank.failures == {}
    return found


CALM = {"loss": 2.0, "grad_norm": 1.0, "loss/code": 2.5}


def test_a_single_overflow_of_the_gradient_norm_is_info_and_three_in_a_row_are_a_warning() -> None:
    bad = CALM | {"grad_norm": math.inf}
    assert [f.severity for f in feed_rows([*[CALM] * 60, bad, *[CALM] * 8])] == ["info"]
    assert [f.severity for f in feed_rows([*[CALM] * 60, *[bad] * 3])] == ["info", "warning"]


@pytest.mark.parametrize(("points", "stands"), [(24, False), (32, True), (300, True)])
def test_a_gradient_norm_that_stays_lost_beside_a_finite_loss_is_no_routine(points: int, stands: bool) -> None:
    bad = CALM | {"grad_norm": math.inf}
    last = feed_rows([*[CALM] * 60, *[bad] * points])[-1]
    assert (last.severity, "the weights stand still" in last.text, "routine" in last.text) == (
        "warning",
        stands,
        not stands,
    )


def test_a_data_set_that_is_absent_from_some_batches_from_the_start_on_is_silent() -> None:
    rows = [CALM | {"loss/code": math.nan if i % 3 else 2.5} for i in range(400)]
    assert feed_rows(rows) == []


def test_a_data_set_with_that_habit_is_news_when_it_stays_away_for_longer_than_ever() -> None:
    rows = [CALM | {"loss/code": math.nan if i % 3 or i > 200 else 2.5} for i in range(300)]
    found = feed_rows(rows)
    assert [(f.severity, f.dataset) for f in found] == [("warning", "code")]
    assert found[0].now_step - 200 <= 10


def test_first_overflows_of_loss_scaling_are_silent() -> None:
    assert feed_rows([CALM | {"grad_norm": math.inf if i < 4 else 1.0} for i in range(100)]) == []


def test_rare_skipped_steps_over_a_long_run_give_few_infos() -> None:
    rows = [CALM | {"grad_norm": math.inf if i % 100 == 99 else 1.0} for i in range(3_000)]
    found = feed_rows(rows)
    assert {f.severity for f in found} == {"info"}
    assert len({f.key for f in found}) <= 4


def test_a_run_that_is_not_a_number_from_its_first_row_is_told_after_five_with_its_first_step() -> None:
    found = feed_rows([{"loss": math.inf}, *[{"loss": math.nan}] * 20])
    assert [(f.severity, f.onset_step, f.now_step) for f in found] == [("critical", 0, 4)]
    assert found[0].evidence["values"] == {"loss": {"Infinity": 1, "NaN": 4}}
    assert "since step 0." in found[0].text


def test_a_nan_before_the_first_loss_is_silent() -> None:
    assert feed_rows([{"loss": math.nan}, *[CALM] * 50]) == []


@pytest.mark.parametrize("norm", ["grad_norm", "optim/total_grad_norm"])  # judged before the loss, and after it
def test_a_loss_of_exactly_zero_beside_a_lost_gradient_is_a_lost_loss(norm: str) -> None:
    calm, lost = {"loss": 2.0, norm: 0.5}, {"loss": 0.0, norm: math.nan}
    assert [f.severity for f in feed_rows([*[calm] * 60, lost])][-1] == "critical"


def test_a_loss_of_zero_alone_is_nothing() -> None:
    assert feed_rows([*[CALM] * 60, *[{"loss": 0.0, "grad_norm": 0.0}] * 60]) == []


@pytest.mark.parametrize("value", [1e308, -1e308, math.inf, 3.5e38])
def test_an_overflow_is_told_as_infinite(value: float) -> None:
    found = feed_rows([*[CALM] * 60, {"loss": value}, {"loss": math.nan}])
    assert [f.severity for f in found] == ["critical"]
    assert list(found[0].evidence["values"]["loss"]) == ["Infinity" if value > 0 else "-Infinity"]


def test_all_losses_at_once_are_one_incident_of_the_loss() -> None:
    found = feed_rows([*[CALM] * 60, *[dict.fromkeys(CALM, math.nan)] * 30])
    assert len({f.key for f in found}) == 1
    assert (found[-1].metric, found[-1].severity) == ("loss", "critical")
    assert len(found) <= 4


def test_the_event_holds_the_loss_while_it_lasts_and_gives_it_back() -> None:
    bank = DetectorBank({"nonfinite": NonfiniteDetector})
    for step in range(100):
        bank.feed_row(Row(step, 0.0, {"loss": math.nan if 60 <= step < 63 else 2.0}))
        held = bank.context.claimed("loss", "spike")
        assert (held is not None) == (60 <= step < 73)


def test_data_sets_that_are_absent_from_most_batches_are_no_alarm_whenever_they_join() -> None:
    rng = random.Random(3)
    rows = []
    for i in range(1_200):
        row = {"loss": 2.0}
        for part in range(64 if i >= 600 else 32):
            row[f"loss/{part}"] = 2.0 if rng.random() < 0.15 else math.nan
        rows.append(row)
    assert [finding for finding in feed_rows(rows) if finding.severity != "info"] == []


def test_a_loss_that_follows_a_data_set_long_after_is_an_event_of_its_own() -> None:
    rows = [{"loss": math.nan if i >= 700 else 2.0, "loss/a": math.nan if i >= 300 else 2.0} for i in range(720)]
    last = {finding.key: finding for finding in feed_rows(rows)}
    assert [(f.key, f.severity, f.state) for f in last.values()] == [
        ("nonfinite:loss/a:300", "warning", "resolved"),
        ("nonfinite:loss:700", "critical", "open"),
    ]
