"""The repeat-data detector: data that the model has learnt already is told; correct resumes and drops are not."""

from __future__ import annotations

import random
from typing import Any

import pytest

from stabilitybackend.detectors.engine.bank import DetectorBank
from stabilitybackend.detectors.engine.base import Finding, Mark, Row
from stabilitybackend.detectors.engine.context import Claim
from stabilitybackend.detectors.repeat_data import RepeatDataDetector

FORK = 300


def _noise(count: int, seed: int, sigma: float = 0.03) -> list[float]:
    rng = random.Random(seed)
    return [2.5 * (1 + rng.gauss(0, sigma)) for _ in range(count)]


def _mark(left: list[float] | None = None, **changes: Any) -> Mark:
    branch = [(FORK + i, loss) for i, loss in enumerate(left or [])]
    data = {"fork_step": FORK - 1, "cause": "restart", "changes": changes, "left_behind": {"loss": branch}}
    return Mark("fork", FORK, 1e9, f"the run went back to step {FORK - 1}", data)


def _found(
    losses: list[float], mark: Mark | None = None, bank: DetectorBank | None = None, **row: float
) -> list[Finding]:
    bank = bank or DetectorBank({"repeat_data": RepeatDataDetector})
    found: list[Finding] = []
    for step, loss in enumerate(losses):
        if mark is not None and step == mark.step:
            found += bank.mark(mark)
        found += bank.feed_row(Row(step, 1e9 + step, {"loss": loss} | (row if step >= FORK else {"lr": 1e-3})))
    assert not bank.failures
    return found


LEFT = _noise(100, seed=2)
LOW = [*_noise(FORK, seed=1), *(0.9 * loss for loss in _noise(150, seed=3)), *_noise(100, seed=4)]


def test_a_loss_below_the_left_branch_after_a_fork_is_told_and_ends_with_the_jump_back() -> None:
    first, last = _found(LOW, _mark(LEFT))
    assert (first.kind, first.severity, first.onset_step, first.state) == ("repeat_data", "warning", FORK, "open")
    assert first.step <= FORK + 20
    assert last.state == "recovered"
    assert last.recovered_step == pytest.approx(FORK + 150, abs=4)


def test_a_spike_out_of_a_low_loss_is_left_to_others_at_once() -> None:
    bank = DetectorBank({"repeat_data": RepeatDataDetector})
    found = _found([*LOW[: FORK + 100], 5.0, 5.0], _mark(LEFT), bank)
    assert [f.state for f in found] == ["open", "recovered"]
    assert "another event" in found[-1].text
    assert bank.context.claimed("loss", "spike", within_steps=10) is None


def test_the_jump_back_stays_claimed_for_32_points_so_that_nobody_calls_it_a_spike() -> None:
    held = []
    for points in (160, 200):
        bank = DetectorBank({"repeat_data": RepeatDataDetector})
        _found(LOW[: FORK + points], _mark(LEFT), bank)
        held.append(bank.context.claimed("loss", "spike") is not None)
    assert held == [True, False]


def test_without_a_left_branch_the_level_before_the_fork_is_the_measure() -> None:
    assert [finding.state for finding in _found(LOW, _mark())] == ["open", "recovered"]


def test_the_same_data_at_the_same_steps_is_a_correct_resume() -> None:
    usual = _noise(FORK + 200, seed=1)
    assert _found(usual, _mark(usual[FORK : FORK + 100])) == []


def test_another_order_of_the_data_at_the_same_level_is_no_alarm() -> None:
    assert [f for seed in range(10, 20) for f in _found(_noise(FORK + 200, seed=seed), _mark(LEFT))] == []


def test_a_lower_learning_rate_explains_a_lower_loss() -> None:
    assert _found(LOW, _mark(LEFT), lr=1e-4) == []


def test_what_the_rollback_was_told_to_change_makes_it_a_note() -> None:
    found = _found(LOW, _mark(LEFT, seed=7))
    assert {finding.severity for finding in found} == {"info"}


def test_a_lower_loss_of_another_mixture_is_left_to_the_drift() -> None:
    bank = DetectorBank({"repeat_data": RepeatDataDetector})
    bank.context.claim("ratio/a", Claim("data_mix_drift", "data_mix_drift:ratio/a:300", "data_mix_drift", FORK))
    assert {finding.severity for finding in _found(LOW, _mark(LEFT), bank)} == {"info"}


def test_a_left_branch_that_was_sick_is_no_measure() -> None:
    usual = _noise(FORK + 200, seed=1)
    assert _found(usual, _mark([1.5 * loss for loss in LEFT])) == []


def test_an_order_of_batches_that_comes_again_is_recognised_by_the_residuals() -> None:
    rng, batches = random.Random(8), _noise(900, seed=8, sigma=0.05)
    losses = [
        (0.9 if step >= 900 else 1.0) * batches[step % 900] * (1 - 0.0001 * step) + rng.gauss(0, 0.03)
        for step in range(1_100)
    ]
    (found,) = _found(losses)
    assert (found.severity, found.evidence["lag_points"]) == ("warning", 900)
    assert 880 <= found.onset_step <= 960


def test_a_shuffled_second_epoch_is_no_alarm() -> None:
    batches = _noise(900, seed=8, sigma=0.05)
    again = random.Random(9).sample(batches, 900)
    assert _found(batches + again + random.Random(10).sample(batches, 900)) == []


def test_sources_that_alternate_are_the_structure_of_the_job_and_no_repetition() -> None:
    rng = random.Random(3)
    losses = [(2.0, 2.6, 2.3, 3.0)[step % 4] * (1 + rng.gauss(0, 0.01)) for step in range(3_000)]
    assert _found(losses) == []


def _epochs(drops: list[float], *, drift: float, points: int = 40) -> list[float]:
    rng, level, losses = random.Random(6), 4.6, []
    for drop in [0.0, *drops]:
        level -= drop
        losses += [level + drift * i / points + rng.gauss(0, 0.015) for i in range(points)]
        level += drift
    return losses


def test_the_third_drop_at_equal_distances_is_an_alarm_and_so_are_further_ones() -> None:
    opened = [f for f in _found(_epochs([0.25] * 5, drift=0.03)) if f.state == "open"]
    assert [finding.onset_step for finding in opened] == [120, 160, 200]
    assert opened[0].evidence["period_steps"] == pytest.approx(40)


def test_drops_that_become_smaller_are_cuts_of_the_learning_rate() -> None:
    assert _found(_epochs([0.6, 0.4, 0.25, 0.15], drift=0.0)) == []


def test_drops_between_which_the_loss_falls_are_learning() -> None:
    assert _found(_epochs([0.25] * 5, drift=-0.2)) == []


def test_after_eight_epochs_further_drops_are_notes() -> None:
    opened = [f for f in _found(_epochs([0.25] * 16, drift=0.03)) if f.state == "open"]
    assert [f.severity for f in opened][:9] == ["warning"] * 8 + ["info"]


def test_a_loss_with_two_decimals_that_falls_evenly_has_no_epochs() -> None:
    assert _found([round(0.4 - 0.0002 * i, 2) for i in range(1_200)]) == []
