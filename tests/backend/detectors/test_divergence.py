"""The divergence detector: what a climb is, what is none, and how it ends."""

from __future__ import annotations

import math
import random

import pytest

from stabilitybackend.detectors.divergence import DivergenceDetector
from stabilitybackend.detectors.engine.bank import DetectorBank
from stabilitybackend.detectors.engine.base import Finding, Point, Row
from stabilitybackend.detectors.engine.context import Claim
from stabilitybackend.detectors.engine.synthetic import noisy, rows, smooth

ONSET = 600


def feed(values: list[float], every: int = 1, **columns: list[float]) -> list[Finding]:
    bank = DetectorBank({"divergence": DivergenceDetector})
    found = []
    for i, value in enumerate(values):
        row = Row(i * every, 1e9 + i, {"loss": value} | {name: column[i] for name, column in columns.items()})
        found += bank.feed_row(row)
    assert bank.failures == {}
    return found


def climbing(rise: float, over: int, after: int = 300, sigma: float = 0.004, seed: int = 3) -> list[float]:
    """A level with noise that rises by ``rise`` times itself over ``over`` points from ONSET on, and stays there."""
    values = noisy(ONSET + over + after, seed=seed, sigma=sigma)
    return [value * (1 + rise * min(1.0, max(0.0, (i - ONSET) / over))) for i, value in enumerate(values)]


@pytest.mark.parametrize("every", [1, 10, 100])
def test_a_climb_is_one_warning_whose_onset_is_where_it_began(every: int) -> None:
    found = feed(climbing(0.04, 60), every)
    assert len({finding.key for finding in found}) == 1
    assert (found[0].kind, found[0].state, found[0].severity) == ("divergence", "open", "warning")
    assert abs(found[0].onset_step / every - ONSET) <= 24
    assert found[0].step / every <= ONSET + 50


def test_a_slow_climb_below_the_noise_of_a_point_is_seen_by_its_long_medians() -> None:
    found = feed(climbing(0.08, 1_500, after=0, sigma=0.03))
    assert [finding.kind for finding in found][:1] == ["divergence"]
    assert found[0].onset_step <= found[0].step <= ONSET + 1_500


def test_a_climb_that_goes_on_becomes_critical_once() -> None:
    found = feed(climbing(0.5, 400, after=0))
    assert (found[0].severity, found[-1].severity) == ("warning", "critical")
    assert len(found) < 10


def test_a_climb_that_comes_back_is_recovered_and_gives_its_claim_back() -> None:
    bank = DetectorBank({"divergence": DivergenceDetector})
    found = []
    for row in rows("loss", climbing(0.04, 60, after=64) + noisy(200, seed=9, sigma=0.004)):
        found += bank.feed_row(row)
    assert [finding.state for finding in found][-1] == "recovered"
    assert found[-1].severity == "warning"
    assert found[-1].recovered_step is not None
    assert found[-1].recovered_step >= ONSET + 124
    held = bank.context.claimed("loss", "spike")
    assert held is None


def test_a_climb_that_stands_still_is_resolved_and_the_next_one_is_measured_from_there() -> None:
    first = climbing(0.06, 80, after=700)
    more = [value * 1.06 * (1 + 0.06 * min(1.0, max(0.0, (i - 300) / 80))) for i, value in enumerate(
        noisy(700, seed=8, sigma=0.004))]  # fmt: skip
    found = feed(first + more)
    assert len({finding.key for finding in found}) == 2
    second = next(finding for finding in found if finding.key != found[0].key)
    assert second.evidence["level_before"] == pytest.approx(2.5 * 1.06, rel=0.01)


def test_a_jump_is_no_climb() -> None:
    assert (
        feed([value * (1.1 if i >= ONSET else 1.0) for i, value in enumerate(noisy(1_200, seed=4, sigma=0.004))]) == []
    )


@pytest.mark.parametrize("period", [150, 400, 1_500])
def test_a_loss_that_wanders_is_no_climb(period: int) -> None:
    wave = [1 + 0.012 * math.sin(2 * math.pi * i / period) for i in range(4_000)]
    assert feed([a * b for a, b in zip(wave, noisy(4_000, seed=6, sigma=0.004), strict=True)]) == []


def test_the_way_back_from_a_drop_at_the_end_of_an_epoch_is_no_climb() -> None:
    rng = random.Random(2)
    epochs = [2.5 * 0.95 ** (i // 220) * (1 + 0.03 * (i % 220) / 220) for i in range(1_500)]
    assert feed([value * (1 + rng.gauss(0, 0.004)) for value in epochs]) == []


def test_a_u_of_half_a_percent_is_no_climb() -> None:
    bent = [value * (1 + 0.005 * max(0.0, (i - 1_500) / 1_500)) for i, value in enumerate(smooth(3_000))]
    assert feed(bent) == []


def test_a_learning_rate_that_goes_back_up_explains_a_climb() -> None:
    values = climbing(0.03, 100)
    rates = [1e-3 if i < 200 else 1e-4 if i < ONSET - 20 else 1e-3 for i in range(len(values))]
    assert feed(values, lr=rates) == []


def test_a_learning_rate_above_all_before_is_named_and_no_excuse() -> None:
    values = climbing(0.04, 60)
    rates = [1e-3 * (1.03 ** max(0, i - ONSET)) for i in range(len(values))]
    assert [finding.severity for finding in feed(values, lr=rates)][:1] == ["warning"]


def test_an_event_of_another_detector_keeps_it_silent_and_its_new_level_is_the_usual_one() -> None:
    bank = DetectorBank({"divergence": DivergenceDetector})
    context = bank.context
    found = []
    for i, row in enumerate(rows("loss", climbing(0.3, 100, after=600))):
        if i == ONSET:
            context.claim("loss", Claim("spike", "spike:loss:600", "spike", ONSET))
        if i == ONSET + 200:
            context.claim("loss", Claim("spike", "spike:loss:600", "spike", ONSET, row.step))
        found += bank.feed_row(row)
    assert found == []


def test_a_spike_that_comes_back_is_no_end_of_the_climb_around_it() -> None:
    bank = DetectorBank({"divergence": DivergenceDetector})
    context = bank.context
    found = []
    for i, row in enumerate(rows("loss", climbing(0.3, 100, after=600))):
        if i == ONSET + 20:
            context.claim("loss", Claim("spike", "spike:loss:620", "spike", ONSET + 20))
        if i == ONSET + 30:
            context.claim("loss", Claim("spike", "spike:loss:620", "spike", ONSET + 20, row.step, back=True))
        found += bank.feed_row(row)
    assert [finding.state for finding in found][:1] == ["open"]
    assert abs(found[0].onset_step - ONSET) <= 8


def test_a_loss_around_0_that_wanders_is_no_climb_and_one_that_leaves_its_range_is() -> None:
    rng, level, wander = random.Random(8), 0.0, []
    for _ in range(8_000):  # a policy's loss: its level is 0, so that no rise is a small fraction of it
        level = 0.995 * level + rng.gauss(0, 0.01)
        wander.append(level + rng.gauss(0, 0.05))
    assert feed(wander) == []
    assert feed([-0.01] * 24 + [0.0004 * i for i in range(60)]) == []  # nobody knows its range yet
    found = feed(wander[:4_000] + [value + 0.005 * i for i, value in enumerate(wander[4_000:4_400])])
    assert [finding.state for finding in found][:1] == ["open"]


def test_a_curve_that_took_a_climb_back_is_told_of_again_when_it_climbs_much_further() -> None:
    tooth = [min(i, 160 - i) / 80 for i in range(160)] + [0.0] * 440
    noise = noisy(3_600, seed=4, sigma=0.004)
    for factor, told in ((1.0, 1), (3.0, 2)):
        heights = [0.0] * 600 + [0.08 * x for x in tooth] + [0.08 * factor * x for x in tooth * 4]
        keys = {finding.key for finding in feed([value * (1 + up) for value, up in zip(noise, heights, strict=True)])}
        assert len(keys) == told


def test_a_warm_restart_of_the_learning_rate_explains_a_climb_to_its_old_peak() -> None:
    values = climbing(0.05, 60)
    rates = [3e-4 * (1 - 0.9 * (i % ONSET) / ONSET) for i in range(len(values))]
    assert feed(values) != []
    assert feed(values, lr=rates) == []


def test_nan_within_a_climb_changes_nothing() -> None:
    values = climbing(0.1, 100, after=0)
    values[ONSET + 40 : ONSET + 60 : 4] = [math.nan] * 5
    found = feed(values + [math.nan] * 64)
    assert len({finding.key for finding in found}) == 1
    assert found[-1].state == "open"


def test_of_two_spellings_of_the_loss_the_first_one_counts() -> None:
    detector = DivergenceDetector()
    values = climbing(0.1, 100)
    found = []
    for i, value in enumerate(values):
        detector.update(Point(i, "loss", 2.5, 0.0))
        found += detector.update(Point(i, "train/loss", value, 0.0))
    assert found == []


def test_a_higher_sensitivity_finds_a_smaller_climb() -> None:
    values = climbing(0.012, 100, sigma=0.001)
    bold = DivergenceDetector(sensitivity=2.0)
    assert feed(values) == []
    assert [f.kind for i, value in enumerate(values) for f in bold.update(Point(i, "loss", value, 0.0))][:1] == [
        "divergence"
    ]
