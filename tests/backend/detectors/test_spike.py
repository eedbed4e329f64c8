"""The spike detector: what opens, when, once, and how it ends."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from stabilitybackend.detectors.engine.base import Finding, Point
from stabilitybackend.detectors.engine.synthetic import eventful, noisy, points, smooth
from stabilitybackend.detectors.spike.detector import SpikeDetector

ONSET = 200


def feed(values: list[float], detector: SpikeDetector | None = None, every: int = 1) -> list[Finding]:
    spike = detector or SpikeDetector()
    return [finding for point in points("loss", values, every) for finding in spike.update(point)]


def with_spike(lasts: int, height: float = 1.0, after: int = 300, seed: int = 5) -> list[float]:
    """A level with noise of 3 %, raised by ``height`` times itself for ``lasts`` points from ONSET on."""
    values = noisy(ONSET + lasts + after, seed=seed)
    for i in range(lasts):
        values[ONSET + i] *= 1 + height
    return values


def story(found: list[Finding]) -> list[tuple[str, str | None, str]]:
    return [(finding.state, finding.recovery, finding.severity) for finding in found]


@pytest.mark.parametrize("seed", range(4))
def test_of_a_loss_near_zero_that_varies_by_factors_two_odd_batches_are_no_spike_and_ten_are(seed: int) -> None:
    dice = random.Random(seed)
    values = [0.05 * math.exp(dice.gauss(0.0, 0.8)) for _ in range(600)]
    odd, high = list(values), list(values)
    odd[ONSET : ONSET + 2] = [1.2, 0.9]
    high[ONSET : ONSET + 10] = [1.0] * 10
    assert [finding for finding in feed(odd) if finding.severity != "info"] == []
    first = next(finding for finding in feed(high) if finding.severity != "info")
    assert (first.onset_step, first.step < ONSET + 10) == (ONSET, True)


def test_a_loss_of_exactly_zero_among_high_points_near_zero_is_a_usual_point() -> None:
    dice = random.Random(1)
    values = [0.05 * math.exp(dice.gauss(0.0, 0.8)) for _ in range(400)]
    values[ONSET : ONSET + 4] = [1.2, 0.9, 0.9, 0.0]
    values[ONSET + 40 : ONSET + 44] = [1.2, 0.9, 0.0, -0.1]
    assert {finding.onset_step for finding in feed(values) if finding.severity != "info"} <= {ONSET, ONSET + 40}


def test_a_spike_opens_at_its_second_point_and_names_its_first() -> None:
    first = feed(with_spike(30))[0]
    assert (first.kind, first.onset_step, first.step, first.state) == ("spike", ONSET, ONSET + 1, "open")
    assert first.key == f"spike:loss:{ONSET}"
    assert first.evidence["level_before"] == pytest.approx(2.5, rel=0.02)


def test_a_spike_that_is_back_within_ten_points_is_fast_and_stays_a_warning() -> None:
    found = feed(with_spike(5))
    assert story(found) == [("open", "pending", "warning"), ("recovered", "fast", "warning")]
    assert found[-1].recovered_step == ONSET + 5


def test_a_spike_that_comes_back_later_is_slow() -> None:
    values = noisy(600, seed=1)
    for i in range(60):
        values[ONSET + i] *= 1 + 1.5 * (1 - i / 60)
    found = feed(values)
    assert story(found)[-1] == ("recovered", "slow", "warning")
    assert len({finding.key for finding in found}) == 1


def test_a_spike_that_stays_up_is_told_to_be_for_good_and_critical_within_a_hundred_points() -> None:
    found = feed(with_spike(120, after=0))
    assert story(found)[:2] == [("open", "pending", "warning"), ("open", "none", "critical")]
    assert found[1].now_step <= ONSET + 100


def test_a_spike_that_rises_on_is_for_good_after_fifty_points() -> None:
    values = noisy(300, seed=2)
    for i in range(100):
        values[ONSET + i] *= 1.5 + 0.02 * i
    verdict = next(finding for finding in feed(values) if finding.recovery == "none")
    assert verdict.now_step - ONSET <= 51


def test_each_odd_batch_leaves_one_note_and_no_alarm_however_high() -> None:
    values = noisy(600, seed=3)
    for step in (150, 420):
        values[step] *= 4
    found = feed(values)
    assert [finding.onset_step for finding in found] == [150, 420]
    assert set(story(found)) == {("recovered", "fast", "info")}


def test_two_odd_batches_with_usual_ones_between_them_are_no_alarm() -> None:
    values = noisy(600, seed=3)
    for step in (170, 173):
        values[step] *= 4
    assert {finding.severity for finding in feed(values)} == {"info"}


def test_spikes_in_a_train_are_each_found_while_the_loss_falls_over_decades() -> None:
    onsets = range(600, 1_400, 55)
    values = [value * 0.02 for value in noisy(1_500, seed=11, sigma=0.1)]
    values[:500] = [4.0 * 0.985**i + value for i, value in enumerate(values[:500])]
    for onset in onsets:
        for i in range(20):
            values[onset + i] *= 1 + 6 * 0.85**i
    opened = {finding.onset_step for finding in feed(values) if finding.severity != "info"}
    assert opened == set(onsets)


def test_a_spike_early_in_a_short_run_is_found_while_the_loss_still_falls() -> None:
    rng = random.Random(4)
    values = [value * (1 + rng.gauss(0, 0.03)) for value in smooth(200, start=6.0, end=2.0, half_life=30)]
    for i in range(80, 100):
        values[i] += 1.5
    found = feed(values)
    assert found[0].onset_step == 80
    assert found[0].step <= 82


def test_the_level_is_not_learnt_from_the_spike() -> None:
    spike = SpikeDetector()
    first = feed(with_spike(80, after=40), spike)[0]
    again = [Point(1_000 + i, "loss", value, 0.0) for i, value in enumerate([5.0] * 10)]
    second = next(finding for point in again for finding in spike.update(point))
    assert second.evidence["level_before"] == pytest.approx(first.evidence["level_before"], rel=0.02)


def test_a_level_that_stays_is_accepted_and_a_spike_on_top_of_it_is_a_new_event() -> None:
    values = [*noisy(ONSET, seed=6), *noisy(400, seed=7, level=5.0), *[11.0] * 20, *noisy(100, seed=8, level=5.0)]
    found = feed(values)
    keys = list(dict.fromkeys(finding.key for finding in found))
    assert keys == [f"spike:loss:{ONSET}", f"spike:loss:{ONSET + 400}"]
    first = [finding for finding in found if finding.key == keys[0]]
    assert first[-1].state == "open"
    assert first[-1].evidence["level_after"] == pytest.approx(5.0, rel=0.05)
    assert found[-1].recovery == "slow"


@pytest.mark.parametrize("stays", [0.0, 0.05, 0.2, 0.4])
@pytest.mark.parametrize("gap", [0, 60])
def test_a_spike_after_one_that_did_not_recover_is_an_event_of_its_own(stays: float, gap: int) -> None:
    def falling(count: int, seed: int) -> list[float]:
        return [v * (1 + stays + math.exp(-i / 100)) for i, v in enumerate(noisy(count, seed=seed, sigma=0.01))]

    found = feed([*noisy(300, seed=5, sigma=0.01), *falling(100 + gap, 6), *falling(60, 7)])
    assert len({finding.key for finding in found if finding.severity != "info"}) == 2


def test_an_event_whose_level_was_accepted_still_recovers_under_its_own_key() -> None:
    values = [*noisy(ONSET, seed=6), *noisy(400, seed=7, level=5.0), *noisy(100, seed=8)]
    found = feed(values)
    assert {finding.key for finding in found} == {f"spike:loss:{ONSET}"}
    assert (found[-1].state, found[-1].recovered_step) == ("recovered", ONSET + 400)


def test_a_run_that_learns_its_way_down_from_the_new_level_has_not_recovered_but_the_event_is_over() -> None:
    falling = [value * (2.0 - i / 1_500) for i, value in enumerate(noisy(1_800, seed=7, sigma=0.01))]
    found = feed([*noisy(ONSET, seed=6, sigma=0.01), *falling])
    assert story(found)[-1] == ("resolved", "none", "critical")


def test_a_spike_that_comes_again_at_once_is_the_same_event() -> None:
    values = noisy(400, seed=9)
    for step in (*range(ONSET, ONSET + 6), *range(ONSET + 10, ONSET + 16)):
        values[step] *= 2
    found = feed(values)
    assert {finding.key for finding in found} == {f"spike:loss:{ONSET}"}
    assert [finding.state for finding in found] == ["open", "recovered", "open", "recovered"]


def test_nan_inside_a_spike_counts_as_high_and_ends_nothing() -> None:
    values: list[Any] = with_spike(20, after=50)
    values[ONSET + 4 : ONSET + 10] = [math.nan] * 6
    found = feed(values)
    assert [finding.state for finding in found] == ["open", "recovered"]
    assert found[-1].recovered_step == ONSET + 20


def test_sparse_logging_changes_steps_but_not_the_verdict() -> None:
    found = feed(with_spike(5), every=100)
    assert story(found) == story(feed(with_spike(5)))
    assert found[0].onset_step == 100 * ONSET


def test_the_loss_under_any_name_and_the_losses_of_data_sets_are_wanted() -> None:
    spike = SpikeDetector()
    names = ("loss", "train/loss", "loss/text", "val_loss", "grad_norm")
    assert [name for name in names if spike.wants(name)] == ["loss", "train/loss", "loss/text"]
    assert spike.update(Point(1, "grad_norm", 1e9, 0.0)) == []


def test_the_curves_of_the_law_hold_events_for_it() -> None:
    assert [bool(feed(values)) for values in eventful()] == [True, True, True, False, False]


@pytest.mark.parametrize("seed", range(12))
def test_the_delay_is_a_few_steps_over_many_seeds(seed: int) -> None:
    found = feed(with_spike(40, height=0.6, seed=100 + seed))
    assert found[0].onset_step == ONSET
    assert found[0].step - ONSET <= 3
    assert len({finding.key for finding in found}) == 1


@pytest.mark.parametrize(("level", "height"), [(0.0, 4.0), (2.5, 1e30)])
def test_a_percentage_that_says_nothing_is_not_said(level: float, height: float) -> None:
    values = [value - 2.5 + level for value in noisy(300, seed=2, sigma=0.004)]
    values[ONSET : ONSET + 4] = [height] * 4
    assert "%" not in feed(values)[0].text


@pytest.mark.parametrize(("stays", "severity"), [(1.045, "warning"), (1.1, "critical")])
def test_a_loss_that_stays_up_is_critical_when_it_stays_far_up(stays: float, severity: str) -> None:
    found = feed([value * (stays if i >= ONSET else 1.0) for i, value in enumerate(noisy(500, seed=5, sigma=0.003))])
    assert (found[-1].recovery, found[-1].severity) == ("none", severity)


def test_the_first_points_of_a_loss_around_0_prove_nothing() -> None:
    assert feed([-0.02, 0.01, 0.02, -0.01, 0.01, 0.0, 0.02, 0.05, 0.06, 0.04, 0.0, -0.01] * 3) == []
