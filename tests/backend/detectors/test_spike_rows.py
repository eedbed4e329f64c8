"""The spike detector on whole rows: data sets, gradient norm, learning rate, and input that is no curve."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import pytest

from stabilitybackend.detectors.divergence import DivergenceDetector
from stabilitybackend.detectors.engine.bank import DetectorBank
from stabilitybackend.detectors.engine.base import Finding, Row
from stabilitybackend.detectors.engine.synthetic import noisy
from stabilitybackend.detectors.nonfinite import NonfiniteDetector
from stabilitybackend.detectors.spike.detector import MAX_TRACKERS, SpikeDetector

ONSET = 300
COUNT = 500


def feed(columns: Mapping[str, Sequence[float]], every: int = 1) -> list[Finding]:
    bank = DetectorBank({"nonfinite": NonfiniteDetector, "spike": SpikeDetector})
    found = []
    for i in range(max(map(len, columns.values()))):
        values = {name: column[i] for name, column in columns.items() if i < len(column)}
        found += bank.feed_row(Row(i * every, float(i), values))
    assert bank.failures == {}
    return found


def raised(values: list[float], points: int, factor: float, first: int = ONSET) -> list[float]:
    return [value * (factor if first <= i < first + points else 1) for i, value in enumerate(values)]


def story(found: list[Finding]) -> list[tuple[str, str | None, str | None]]:
    return [(finding.key, finding.dataset, finding.recovery) for finding in found]


def test_a_spike_of_one_data_set_that_moves_the_loss_is_one_incident_of_the_loss() -> None:
    code, prose = raised(noisy(COUNT, 1), 20, 2.5), noisy(COUNT, 2)
    total = [(a + b) / 2 for a, b in zip(code, prose, strict=True)]
    found = feed({"loss": total, "loss/code": code, "loss/prose": prose})
    assert story(found) == [("spike:loss:300", None, "pending"), ("spike:loss:300", None, "slow")]


def test_a_data_set_that_hardly_moves_the_loss_is_a_warning_of_its_own() -> None:
    code = raised(noisy(COUNT, 3), 30, 2.5)
    found = feed({"loss": noisy(COUNT, 4), "loss/code": code, "loss/prose": noisy(COUNT, 5)})
    assert story(found) == [("spike:loss/code:300", "code", "pending"), ("spike:loss/code:300", "code", "slow")]
    assert {finding.severity for finding in found} == {"warning"}


def test_several_data_sets_at_once_without_a_loss_are_one_incident_that_names_none() -> None:
    columns = {f"loss/{name}": raised(noisy(COUNT, seed), 30, 2.0) for seed, name in enumerate("abc")}
    found = feed(columns)
    assert len({finding.key for finding in found}) == 1
    assert {finding.dataset for finding in found} == {None}


def test_a_spike_within_a_divergence_of_the_whole_loss_is_part_of_it_for_data_sets_too() -> None:
    climb = [1 + max(0.0, 0.002 * (i - 200)) for i in range(COUNT)]
    raises = [up * (3.0 if 400 <= i < 420 else 1.0) for i, up in enumerate(climb)]
    columns = {name: [value * up for value, up in zip(noisy(COUNT, seed), raises, strict=True)]
               for seed, name in enumerate(("loss", "loss/code", "loss/text"))}  # fmt: skip
    bank = DetectorBank({"divergence": DivergenceDetector, "spike": SpikeDetector})
    rows = [Row(i, float(i), {name: column[i] for name, column in columns.items()}) for i in range(COUNT)]
    assert {finding.kind for row in rows for finding in bank.feed_row(row)} == {"divergence"}


def test_a_short_blip_of_one_data_set_is_nothing() -> None:
    assert feed({"loss": noisy(COUNT, 6), "loss/code": raised(noisy(COUNT, 7), 1, 5.0)}) == []


def test_data_sets_beyond_the_bound_are_passed_over() -> None:
    many = {f"loss/{i}": [2.0] for i in range(2 * MAX_TRACKERS)}
    bank = DetectorBank({"spike": SpikeDetector})
    for step in range(3):
        bank.feed_row(Row(step, 0.0, {name: column[0] for name, column in many.items()}))
    assert len(bank.state()["spike"]) < MAX_TRACKERS * 1_500


@pytest.mark.parametrize(("every", "norm", "severity"), [(100, 20.0, "warning"), (1, 20.0, "info"), (100, 1.0, "info")])
def test_one_logged_point_is_an_alarm_where_it_stands_for_many_steps_and_the_norm_jumped(
    every: int, norm: float, severity: str
) -> None:
    rows = {"loss": raised(noisy(COUNT, 8), 1, 1.6), "grad_norm": raised(noisy(COUNT, 9, level=0.5), 1, norm)}
    assert {finding.severity for finding in feed(rows, every)} == {severity}


@pytest.mark.parametrize(("every", "past"), [(1, 1_000), (100, ONSET)])
def test_a_high_point_and_a_lower_one_after_it_are_an_event_where_neighbours_are_known_not_to_resemble_each_other(
    every: int, past: int
) -> None:
    values = noisy(past + 200, 20, sigma=0.02)
    values[past : past + 2] = [2.5 * 1.22, 2.5 * 1.13]
    assert {finding.severity for finding in feed({"loss": values}, every)} == {"warning"}


@pytest.mark.parametrize(("factor", "severity"), [(1.3, "info"), (2.5, "warning")])
def test_a_rise_with_the_learning_rate_is_info_unless_it_is_large(factor: float, severity: str) -> None:
    rate = [1e-3 if i < 100 else 1e-4 if i < ONSET else 1e-3 for i in range(COUNT)]
    first = feed({"loss": raised(noisy(COUNT, 12, sigma=0.01), 30, factor), "lr": rate})[0]
    assert first.severity == severity
    assert first.evidence["explained_by"] == ["lr_jump: the learning rate went from 0.0001 to 0.001"]


def test_a_loss_that_is_logged_under_two_names_is_one_loss() -> None:
    loss = raised(noisy(COUNT, 13), 20, 2.0)
    assert len({finding.key for finding in feed({"train/loss": loss, "loss": loss})}) == 1


def test_an_explosion_in_the_first_points_is_seen() -> None:
    values = [6.0 * 0.97**i for i in range(20)] + [9.0, 14.0, 25.0, 60.0]
    assert story(feed({"loss": values}))[0] == ("spike:loss:20", None, "pending")


def test_an_overflow_is_one_incident_of_not_being_finite() -> None:
    values = [*noisy(ONSET, 14), *[1e308] * 3, *[math.inf] * 50]
    assert {finding.kind for finding in feed({"loss": values})} == {"nonfinite"}


def with_lone_outliers(seed: int) -> list[float]:
    """20,000 points of which 2 % are 50 to 150 % high, each alone but for chance."""
    rng = random.Random(seed)
    return [v * (rng.uniform(1.5, 2.5) if rng.random() < 0.02 else 1) for v in noisy(20_000, 100 + seed, sigma=0.02)]


@pytest.mark.soak
def test_a_run_that_has_shown_many_lone_outliers_raises_an_alarm_in_50_000_points_at_most() -> None:
    found = [finding for seed in range(3, 8) for finding in feed({"loss": with_lone_outliers(seed)})]
    alarms = {(f.key, f.text) for f in found if f.severity != "info" and f.onset_step > 1_000 and f.state == "open"}
    assert len(alarms) <= 2


def test_a_spike_in_a_run_with_many_lone_outliers_is_found() -> None:
    assert story(feed({"loss": [*with_lone_outliers(5), *noisy(8, 17, level=5.0)]}))[-1][-1] == "pending"


def test_a_run_with_many_lone_outliers_gets_a_note_in_500_points_at_most() -> None:
    assert len(feed({"loss": with_lone_outliers(3)})) <= 20_000 / 500


@pytest.mark.parametrize(
    "values",
    [
        [2.0] * COUNT,
        [0.0] * COUNT,
        [-3.0 + 0.01 * (i % 5) for i in range(COUNT)],
        [float(i % 4) for i in range(COUNT)],
        [1e308, -1e308] * (COUNT // 2),
        [5e-324 * (i % 3) for i in range(COUNT)],
        [0.01 / (1 + i) for i in range(COUNT)],
    ],
    ids=["constant", "zero", "negative", "integer", "huge", "denormal", "vanishing"],
)
def test_strange_but_calm_curves_give_no_spike(values: list[float]) -> None:
    assert [finding for finding in feed({"loss": values}) if finding.kind == "spike"] == []


def test_a_spike_of_a_negative_loss_is_seen() -> None:
    values = raised([-v for v in noisy(COUNT, 18)], 20, 0.2)
    assert story(feed({"loss": values}))[0][0] == f"spike:loss:{ONSET}"


def test_a_loss_that_was_away_for_ten_thousand_steps_is_judged_when_it_is_back() -> None:
    bank = DetectorBank({"spike": SpikeDetector})
    found = []
    for i, value in enumerate(noisy(ONSET, 19) + [6.0] * 5):
        step = i if i < ONSET else i + 10_000
        found += bank.feed_row(Row(step, 0.0, {"loss": value}))
    assert found[0].onset_step == ONSET + 10_000
