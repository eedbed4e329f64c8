"""The repeat-data detector: data that the model has learnt already is told; correct resumes and drops are not."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from stabilitybackend.judging.detectors.curve.detector import CurvesDetector
from stabilitybackend.judging.detectors.engine.bank import DetectorBank
from stabilitybackend.judging.detectors.engine.base import Finding, Mark, Point, Row
from stabilitybackend.judging.detectors.engine.context import Claim
from stabilitybackend.judging.detectors.engine.row_blocks import QuietRows
from stabilitybackend.judging.detectors.repeat_data import RepeatDataDetector
from stabilitybackend.judging.detectors.stats.low_loss import WayBack

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


@pytest.mark.parametrize("seed", range(10, 20))
def test_the_end_of_a_low_loss_is_proved_in_its_own_noise_and_not_met_by_chance(seed: int) -> None:
    rng = random.Random(seed)
    way = WayBack(level=1.5, low=0.0, sigma=1.0)
    ends = [step for step in range(600) if way.add(step, rng.gauss(1.5 * (step >= 500), 1.0))]
    assert 500 <= ends[0] < 550
    assert way.first == pytest.approx(500, abs=20)


def test_a_low_loss_that_few_points_placed_too_low_goes_on_to_say_where_it_is() -> None:
    rng, way = random.Random(3), WayBack(level=2.0, low=-0.5, sigma=1.0)
    assert not any(way.add(step, rng.gauss(0.0, 1.0)) for step in range(500))
    assert way.low == pytest.approx(0.0, abs=0.15)


def test_a_spike_out_of_a_low_loss_is_left_to_others_at_once() -> None:
    bank = DetectorBank({"repeat_data": RepeatDataDetector})
    found = _found([*LOW[: FORK + 100], 5.0, 5.0], _mark(LEFT), bank)
    assert [f.state for f in found] == ["open", "recovered"]
    assert "another event" in found[-1].text
    assert bank.context.claimed("loss", "spike", within_steps=10) is None


def test_a_low_loss_gives_way_to_a_mixture_that_is_found_to_be_off_later_and_is_followed_without_a_word() -> None:
    bank = DetectorBank({"repeat_data": RepeatDataDetector})
    found = _found(LOW[: FORK + 60], _mark(LEFT), bank)
    bank.context.claim("ratio/web", Claim("mixture", "mixture:ratio/web:300", "data_mix_drift", FORK))
    for step in range(FORK + 60, len(LOW)):
        found += bank.feed_row(Row(step, 1e9 + step, {"loss": LOW[step]}))
    assert [f.state for f in found] == ["open", "resolved"]
    assert (found[-1].now_step, found[-1].evidence["explained_by"]) == (
        FORK + 60,
        [f"the data mixture is off since step {FORK}"],
    )
    assert bank.context.claims_since(FORK + 150)["loss"].detector == "repeat_data"


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


@pytest.mark.parametrize("seed", range(3))
def test_a_lower_loss_on_the_same_batches_is_of_the_resume_and_not_of_the_data(seed: int) -> None:
    usual = _noise(FORK + 100, seed=seed, sigma=0.06)
    first, *_ = _found([*usual[:FORK], *(loss - 0.3 for loss in usual[FORK:])], _mark(usual[FORK : FORK + 30]))
    assert first.evidence["level_after"] - first.evidence["level_before"] == pytest.approx(-0.3, abs=0.01)
    assert (first.kind, first.severity, first.onset_step) == ("resume_artifact", "warning", FORK)
    assert "the loader's place is restored" in first.text
    assert "learnt already" not in first.text


def test_sources_in_turn_do_not_prove_that_the_batches_are_the_same() -> None:
    low, left = ([loss + 0.4 * (i % 2) for i, loss in enumerate(losses)] for losses in (LOW, LEFT))
    first, *_ = _found(low, _mark(left))
    assert (first.kind, first.onset_step) == ("repeat_data", FORK)


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


def _repeated(at: int, points: int = 200, since: int = 0, alike: float = 0.0) -> list[float]:
    """Give losses whose batches from ``at`` on are those since ``since``, on a curve that falls.

    ``alike``: correlation of a batch with the one before it, as in unshuffled text.
    """
    rng, batches = random.Random(8), [0.0]
    for noise in _noise(at, seed=8, sigma=0.05):
        batches.append(alike * batches[-1] + (1 - alike**2) ** 0.5 * (noise - 2.5))
    again = [2.5 + batch for batch in [*batches[1:], *batches[1 + since : 1 + since + points]]]
    return [batch * (1 - 0.1 * step / len(again)) + rng.gauss(0, 0.03) for step, batch in enumerate(again)]


def _resumed(at: int) -> Mark:
    return Mark("fork", at, 1e9, f"another process went on after step {at - 1}", {"fork_step": at - 1, "changes": {}})


@pytest.mark.parametrize("alike", [0.0, 0.7])
@pytest.mark.parametrize("since", [0, 500])
def test_batches_that_come_again_since_a_resume_are_recognised_within_120_points(since: int, alike: float) -> None:
    (found,) = _found(_repeated(900, since=since, alike=alike), _resumed(900))
    assert (found.severity, found.onset_step, found.evidence["lag_points"]) == ("warning", 900, 900 - since)
    assert found.step <= 900 + 120
    assert found.evidence["fresh_data_step"] == pytest.approx(1_800 - since, abs=32)


def test_a_repetition_of_data_20_000_points_back_is_recognised_within_120_points() -> None:
    (found,) = _found(_repeated(20_500, since=500), _resumed(20_500))
    assert (found.severity, found.evidence["lag_points"]) == ("warning", 20_000)
    assert found.step <= 20_500 + 120


def test_a_repetition_ends_when_new_data_comes() -> None:
    first, last = _found([*_repeated(900, 300), *_noise(200, seed=3)], _resumed(900))
    assert (first.state, last.state) == ("open", "recovered")
    assert last.recovered_step == pytest.approx(1_200 + 48, abs=32)


def test_the_rise_when_new_data_follows_a_repetition_is_no_spike() -> None:
    known = [0.9 * loss for loss in _repeated(400, 400)[400:]]
    new = [loss + (0.9 if at < 6 else 0.0) for at, loss in enumerate(_noise(300, seed=3))]
    losses, spike = [*_repeated(400, 0), *known, *new], {"curve": CurvesDetector}
    alone = _found(losses, _resumed(400), DetectorBank(spike))
    both = _found(losses, _resumed(400), DetectorBank({**spike, "repeat_data": RepeatDataDetector}))
    assert {(f.kind, f.onset_step) for f in alone if f.severity == "warning"} == {("spike", 800)}
    assert {(f.kind, f.onset_step) for f in both if f.severity != "info"} == {("repeat_data", 400)}


def test_the_level_that_follows_a_repetition_is_no_noise_that_hides_the_next_spike() -> None:
    known = [0.6 * loss for loss in _repeated(400, 400)[400:]]
    new = [loss * (1.5 if 100 <= at < 103 else 1.0) for at, loss in enumerate(_noise(300, seed=3))]
    bank = DetectorBank({"curve": CurvesDetector, "repeat_data": RepeatDataDetector})
    found = _found([*_repeated(400, 0), *known, *new], _resumed(400), bank)
    assert [(f.kind, f.onset_step) for f in found if f.severity != "info" and f.state == "open"][-1] == ("spike", 900)


def test_what_a_rollback_discarded_is_no_data_that_was_seen() -> None:
    bank, losses = DetectorBank({"repeat_data": RepeatDataDetector}), _noise(1_600, seed=5, sigma=0.05)
    found = [f for step in range(1_300) for f in bank.feed_row(Row(step, 1e9 + step, {"loss": losses[step]}))]
    after = bank.rewind(900)
    for step in range(after + 1, 1_600):
        found += bank.feed_row(Row(step, 2e9 + step, {"loss": losses[step]}))
    assert found == []


def test_epochs_in_the_same_order_are_noted_once() -> None:
    losses = _repeated(900, 900)
    found = _found([*losses, *_noise(200, seed=3), *losses[:600]])
    assert [(f.severity, f.state, f.evidence["lag_points"]) for f in found] == [
        ("info", "open", 900),
        ("info", "recovered", 900),
    ]


def test_a_shuffled_second_epoch_is_no_alarm() -> None:
    batches = _noise(900, seed=8, sigma=0.05)
    again = random.Random(9).sample(batches, 900)
    assert _found(batches + again + random.Random(10).sample(batches, 900)) == []


def test_sources_that_alternate_are_the_structure_of_the_job_and_no_repetition() -> None:
    rng = random.Random(3)
    losses = [(2.0, 2.6, 2.3, 3.0)[step % 4] * (1 + rng.gauss(0, 0.01)) for step in range(3_000)]
    assert _found(losses) == []


@pytest.mark.parametrize("period", [20.0, 31.4, 62.8])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_equal_spikes_on_a_smooth_wave_are_no_data_that_was_seen(period: float, width: int) -> None:
    losses = [2.5 + 0.5 * math.sin(2 * math.pi * step / period) for step in range(800)]
    for first in (300, 560):
        losses[first : first + width] = [2 * loss for loss in losses[first : first + width]]
    assert _found(losses) == []


def test_a_loss_with_two_decimals_that_falls_evenly_repeats_nothing() -> None:
    assert _found([round(0.4 - 0.0002 * i, 2) for i in range(1_200)]) == []


def test_quiet_rows_are_taken_at_once_over_all_their_blocks_up_to_the_one_that_finds_known_data() -> None:
    new = _noise(600, seed=1)
    losses = [*new, *new[:100]]
    detector, steps = RepeatDataDetector(), list(range(len(losses)))
    detector.update(Point(0, "loss", losses[0], 0.0))
    rows = QuietRows(steps, [float(step) for step in steps], {"loss": losses}, {"loss": (min(losses), max(losses))})
    taken = detector.take_quiet(rows, 1, len(losses))
    [found] = detector.update(Point(taken, "loss", losses[taken], 0.0))
    assert (600 < taken < 700, found.now_step, found.evidence["lag_points"]) == (True, taken, 600)
