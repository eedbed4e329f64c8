"""The level-shift detector: jumps that last, what explains them, and drops that are no alarm."""

from __future__ import annotations

import math

import pytest

from stabilitybackend.detectors.engine.bank import DetectorBank
from stabilitybackend.detectors.engine.base import Finding, Mark, Row
from stabilitybackend.detectors.engine.context import Claim
from stabilitybackend.detectors.engine.synthetic import noisy, rows, smooth
from stabilitybackend.detectors.level_shift import LevelShiftDetector

JUMP = 600


def feed(values: list[float], every: int = 1, **columns: list[float]) -> list[Finding]:
    bank = DetectorBank({"level_shift": LevelShiftDetector})
    found = []
    for i, value in enumerate(values):
        row = Row(i * every, 1e9 + i, {"loss": value} | {name: column[i] for name, column in columns.items()})
        found += bank.feed_row(row)
    assert bank.failures == {}
    return found


def jumping(factor: float, lasts: int = 500, sigma: float = 0.005, seed: int = 3) -> list[float]:
    """A level with noise that is ``factor`` times as high for ``lasts`` points from JUMP on, then as before."""
    values = noisy(JUMP + lasts + 200, seed=seed, sigma=sigma)
    return [value * (factor if JUMP <= i < JUMP + lasts else 1.0) for i, value in enumerate(values)]


@pytest.mark.parametrize("every", [1, 10, 100])
def test_a_jump_upwards_that_lasts_and_nothing_explains_is_one_warning(every: int) -> None:
    found = feed(jumping(1.04, 900)[:-200], every)
    assert [(finding.state, finding.severity) for finding in found] == [("open", "warning"), ("resolved", "warning")]
    assert len({finding.key for finding in found}) == 1
    assert abs(found[0].onset_step / every - JUMP) <= 2
    assert found[0].step / every - JUMP <= 48
    assert found[0].evidence["rise_percent"] == pytest.approx(4.0, abs=0.6)


@pytest.mark.parametrize("level", [1e-3, 1e-5])
def test_a_loss_near_zero_that_doubles_and_stays_is_a_warning(level: float) -> None:
    beginning = smooth(400, start=5.0, end=level, half_life=6.0)
    found = feed([*beginning, *(level * value / 2.5 for value in jumping(2.0, sigma=0.05))])
    up = [finding for finding in found if finding.evidence["direction"] == "up"]
    assert {finding.severity for finding in up} == {"warning"}
    assert abs(up[0].onset_step - (400 + JUMP)) <= 2


def test_a_jump_that_is_back_within_its_time_recovers() -> None:
    found = feed(jumping(1.05, 80))
    assert [finding.state for finding in found] == ["open", "recovered"]
    assert found[-1].recovered_step is not None
    assert found[-1].recovered_step >= JUMP + 80


def test_a_jump_that_does_not_last_is_none() -> None:
    assert feed(jumping(1.05, 16)) == []


@pytest.mark.parametrize(("name", "before", "after"), [("lr", 1e-4, 1e-3), ("batch_size", 256.0, 64.0)])
def test_a_jump_upwards_that_the_run_explains_is_known_and_no_alarm(name: str, before: float, after: float) -> None:
    values = jumping(1.05)
    # A rate that fell before is not in its warm-up any more.
    column = [2 * before if i < 100 else before if i < JUMP else after for i in range(len(values))]
    found = [finding for finding in feed(values, **{name: column}) if finding.evidence["direction"] == "up"]
    assert [(finding.severity, finding.state) for finding in found] == [("info", "resolved")]
    assert str(after if name == "batch_size" else 0.001).rstrip("0").rstrip(".") in found[0].evidence["explained_by"][0]


def test_a_jump_at_a_fork_is_known() -> None:
    bank = DetectorBank({"level_shift": LevelShiftDetector})
    found = []
    for i, row in enumerate(rows("loss", jumping(1.05))):
        if i == JUMP:
            bank.mark(Mark("fork", row.step, row.time, "the run went back", {"fork_step": row.step - 1}))
        found += bank.feed_row(row)
    assert [(finding.severity, finding.evidence["explained_by"]) for finding in found][:1] == [
        ("info", ["fork: the run went back"])
    ]


def test_a_drop_with_the_learning_rate_is_known_and_names_the_rate() -> None:
    learnt = [value * 2 for value in noisy(200, seed=1, sigma=0.005)] + jumping(0.95, 900)
    rates = [1e-3 if i < 200 + JUMP else 1e-4 for i in range(len(learnt))]
    found = [finding for finding in feed(learnt, lr=rates) if finding.onset_step > 300]
    assert [(finding.severity, finding.state, finding.evidence["direction"]) for finding in found][:1] == [
        ("info", "resolved", "down")
    ]
    assert found[0].evidence["explained_by"] == ["lr_jump: the learning rate went from 0.001 to 0.0001"]
    assert "no alarm" in found[0].text


def test_a_sudden_drop_after_a_plateau_is_shown_and_no_alarm() -> None:
    curve = noisy(1_200, seed=4, sigma=0.01)
    dropping = [value * (2.0 if i < 100 else 1.0 if i < JUMP else max(0.2, 1 - (i - JUMP) / 20)) for i, value in
                enumerate(curve)]  # fmt: skip
    found = [finding for finding in feed(dropping) if finding.onset_step > 300]
    assert [(finding.severity, finding.state) for finding in found] == [("info", "resolved")]


def test_a_staircase_is_told_a_few_times_only() -> None:
    stairs = [value * 0.9 ** (i // 300) for i, value in enumerate(noisy(9_000, seed=5, sigma=0.004))]
    found = feed(stairs)
    assert {finding.severity for finding in found} == {"info"}
    assert len({finding.key for finding in found}) <= 5


def test_the_steep_beginning_of_a_run_is_no_shift() -> None:
    assert feed([value * (1 + 0.01 * math.sin(i)) for i, value in enumerate(smooth(1_500, half_life=10.0))]) == []


def test_an_event_of_another_detector_keeps_it_silent_before_and_after() -> None:
    bank = DetectorBank({"level_shift": LevelShiftDetector})
    context = bank.context
    found = []
    for i, row in enumerate(rows("loss", jumping(1.5))):
        if i == JUMP + 2:
            context.claim("loss", Claim("spike", "spike:loss:600", "spike", JUMP))
        if i == JUMP + 150:
            context.claim("loss", Claim("spike", "spike:loss:600", "spike", JUMP, row.step))
        found += bank.feed_row(row)
    assert [finding for finding in found if finding.severity != "info"] == []


def test_a_rollback_takes_a_jump_of_the_dead_branch_back() -> None:
    bank = DetectorBank({"level_shift": LevelShiftDetector})
    dead = rows("loss", jumping(1.05)[: JUMP + 100])
    assert [finding.state for row in dead for finding in bank.feed_row(row)] == ["open"]
    after = bank.rewind(JUMP - 10)
    again = rows("loss", noisy(2_000, seed=3, sigma=0.005))
    assert [finding for row in again if row.step > after for finding in bank.feed_row(row)] == []


def test_nan_in_between_changes_nothing() -> None:
    values = jumping(1.04, 900)[:-200]
    values[100:160:3] = [math.nan] * 20
    assert [finding.state for finding in feed(values)] == ["open", "resolved"]


def test_a_loss_that_is_no_number_any_more_does_not_hold_the_claim() -> None:
    found = feed(jumping(1.04, 900)[: JUMP + 60] + [math.nan] * 200)
    assert [finding.state for finding in found] == ["open", "resolved"]


def test_a_second_step_of_a_staircase_grows_the_open_event_which_becomes_critical_and_ends() -> None:
    values = noisy(JUMP + 400, seed=3, sigma=0.005)
    for i in range(JUMP, len(values)):
        values[i] *= 1.1 if i < JUMP + 80 else 1.4
    found = feed(values)
    assert len({finding.key for finding in found}) == 1
    assert [finding.severity for finding in found] == ["warning", "critical", "critical"]
    assert found[-1].state == "resolved"


def test_a_loss_logged_with_two_decimals_does_not_jump_by_one_of_them() -> None:
    losses = [round(0.155 + 0.00002 * i + x - 2.5, 2) for i, x in enumerate(noisy(3_000, seed=6, sigma=0.0004))]
    assert len(set(losses)) > 2
    assert feed(losses) == []


def test_a_jump_that_went_back_is_told_once_however_often_it_comes() -> None:
    values = noisy(3_600, seed=7, sigma=0.004)
    values = [value * (1.04 if i > JUMP and (i - JUMP) // 400 % 2 == 0 else 1.0) for i, value in enumerate(values)]
    assert len({finding.key for finding in feed(values) if finding.severity != "info"}) == 1


def test_noise_that_grew_is_learnt_from_the_jumps_that_go_back() -> None:
    quiet, noise = noisy(300, 30, sigma=0.002), [noisy(700, seed, sigma=0.12) for seed in range(6)]
    found = [finding.onset_step for loud in noise for finding in feed(quiet + loud) if finding.severity != "info"]
    assert [onset for onset in found if onset >= 500] == []
