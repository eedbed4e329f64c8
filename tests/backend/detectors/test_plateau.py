"""The plateau detector: a run that never learns, one that stopped, and flat curves that are fine."""

from __future__ import annotations

import math

import pytest

from stabilitybackend.detectors.engine.bank import DetectorBank
from stabilitybackend.detectors.engine.base import Finding, Row
from stabilitybackend.detectors.engine.context import Claim
from stabilitybackend.detectors.engine.synthetic import noisy, rows, smooth
from stabilitybackend.detectors.plateau import PlateauDetector

#: The loss of a model that knows nothing about 50,304 tokens.
UNIFORM = math.log(50_304)


def feed(values: list[float], every: int = 1, start: int = 0, **columns: list[float]) -> list[Finding]:
    bank = DetectorBank({"plateau": PlateauDetector})
    found = []
    for i, value in enumerate(values):
        columns_of_row = {name: column[i] for name, column in columns.items()}
        found += bank.feed_row(Row((start + i) * every, 1e9 + i, {"loss": value} | columns_of_row))
    assert bank.failures == {}
    return found


def stopped(level: float = 2.0, sigma: float = 0.003) -> list[float]:
    """A loss that falls for 500 points and then stands still for 2,500."""
    falls = [max(level, 8.0 - 6.0 * i / 500) for i in range(3_000)]
    return [a * b / 2.5 for a, b in zip(falls, noisy(3_000, seed=2, sigma=sigma), strict=True)]


@pytest.mark.parametrize("every", [1, 10, 100])
def test_a_run_that_stays_at_the_loss_of_a_model_that_knows_nothing_is_one_warning(every: int) -> None:
    found = feed(noisy(2_000, seed=1, sigma=0.003, level=UNIFORM), every)
    assert [(f.key, f.severity, f.state) for f in found] == [("plateau:loss:0", "warning", "open")]
    assert found[0].evidence["nearest_classes"] in (50_257, 50_304, 50_368)
    assert 500 <= found[0].step / every <= 800


def test_a_run_that_learns_only_how_frequent_its_tokens_are_never_learns() -> None:
    falls = [max(7.9, UNIFORM - 0.05 * i) for i in range(1_200)]
    found = feed([a * b / 2.5 for a, b in zip(falls, noisy(1_200, seed=1, sigma=0.004), strict=True)])
    assert [(f.severity, f.evidence["never_learnt"]) for f in found] == [("warning", True)]


def test_the_warm_up_of_the_learning_rate_does_not_count() -> None:
    values = noisy(1_400, seed=1, sigma=0.003, level=UNIFORM)
    rates = [1e-6 * (i + 1) for i in range(1_000)] + [1e-3] * 400
    assert feed(values, lr=rates) == []


def test_a_run_that_learns_after_all_is_recovered_and_keeps_its_severity() -> None:
    late = noisy(900, seed=1, sigma=0.003, level=UNIFORM) + [UNIFORM * max(0.3, 1 - i / 200) for i in range(400)]
    found = feed(late)
    assert [(f.state, f.severity) for f in found] == [("open", "warning"), ("recovered", "warning")]


def test_fine_tuning_starts_flat_and_is_no_alarm() -> None:
    assert {f.severity for f in feed(noisy(2_000, seed=1, sigma=0.02, level=1.7))} <= {"info"}


def test_a_log_that_begins_in_the_middle_of_a_run_never_says_that_it_does_not_learn() -> None:
    assert feed(noisy(2_000, seed=1, sigma=0.003, level=UNIFORM), start=29_000) == []


def test_a_loss_that_stopped_falling_at_full_speed_is_a_note() -> None:
    found = feed(stopped(), lr=[1e-3] * 3_000)
    assert [(f.severity, f.state) for f in found] == [("info", "open")]
    assert abs(found[0].onset_step - 500) <= 200


def test_a_run_whose_learning_rate_is_at_its_floor_is_silent() -> None:
    assert feed(stopped(), lr=[1e-3] * 500 + [1e-5] * 2_500) == []


def test_a_loss_that_still_falls_slowly_is_silent() -> None:
    assert feed([a * b / 2.5 for a, b in zip(smooth(4_000), noisy(4_000, seed=7, sigma=0.01), strict=True)]) == []


def test_a_note_ends_when_the_loss_falls_again() -> None:
    found = feed([*stopped(), *[1.5 + 0.001 * (i % 5) for i in range(600)]], lr=[1e-3] * 3_600)
    assert [f.state for f in found] == ["open", "recovered"]
    assert found[-1].recovered_step is not None
    assert found[-1].recovered_step >= 3_000


def test_what_a_spike_left_behind_is_a_note_that_names_the_spike() -> None:
    bank = DetectorBank({"plateau": PlateauDetector})
    context = bank.context
    values = [max(0.5, 5 - i / 50) for i in range(400)] + noisy(4_000, seed=3, sigma=0.001, level=4.727)
    found = []
    for i, row in enumerate(rows("loss", values)):
        if i == 400:
            context.claim("loss", Claim("spike", "spike:loss:400", "spike", 400))
        if i == 600:
            context.claim("loss", Claim("spike", "spike:loss:400", "spike", 400, row.step))
        found += bank.feed_row(row)
    assert [f.severity for f in found] == ["info"]
    assert found[0].evidence["nearest_classes"] == 113
    assert "spike:loss:400" in found[0].evidence["explained_by"][0]


def test_nan_in_between_changes_nothing() -> None:
    values = noisy(1_000, seed=1, sigma=0.003, level=UNIFORM)
    values[100:200:2] = [math.nan] * 50
    assert [f.severity for f in feed(values)] == ["warning"]


def test_a_language_model_far_below_its_first_loss_is_not_compared_with_a_number_of_classes() -> None:
    values = [a + math.log(113) - 2.0 for a in stopped(sigma=0.001)]
    [found] = feed(values, lr=[1e-3] * len(values))[:1]
    assert (found.evidence["never_learnt"], found.evidence["nearest_classes"]) == (False, None)
