"""The gradient norm: a fact to look at, never an alarm, and few of them."""

from __future__ import annotations

import math
import random

from stabilitybackend.detectors.engine.bank import DetectorBank
from stabilitybackend.detectors.engine.base import Finding, Row
from stabilitybackend.detectors.grad_norm import GradNormDetector
from stabilitybackend.detectors.spike.detector import SpikeDetector

ONSET = 300


def norms(count: int, seed: int, spread: float = 0.1, level: float = 0.5) -> list[float]:
    rng = random.Random(seed)
    return [level * math.exp(rng.gauss(0, spread)) for _ in range(count)]


def feed(values: list[float], losses: list[float] | None = None) -> list[Finding]:
    bank = DetectorBank({"spike": SpikeDetector, "grad_norm": GradNormDetector})
    rng = random.Random(9)
    found = []
    for step, value in enumerate(values):
        loss = losses[step] if losses else 2.0 + rng.gauss(0, 0.03)
        found += bank.feed_row(Row(step, float(step), {"loss": loss, "grad_norm": value}))
    return [finding for finding in found if finding.detector == "grad_norm"]


def test_a_jump_without_an_effect_on_the_loss_is_one_info_that_ends() -> None:
    values = norms(600, seed=1)
    for i in range(5):
        values[ONSET + i] = 8.0
    found = feed(values)
    assert [(f.state, f.severity, f.onset_step, f.step) for f in found] == [
        ("open", "info", ONSET, ONSET + 1),
        ("recovered", "info", ONSET, ONSET + 1),
    ]
    assert found[-1].recovered_step == ONSET + 5
    assert 14 < found[-1].evidence["ratio"] < 18


def test_one_high_point_alone_is_nothing() -> None:
    values = norms(600, seed=2)
    values[ONSET] = 50.0
    assert feed(values) == []


def test_two_high_points_with_a_usual_one_between_them_are_nothing() -> None:
    values = norms(600, seed=3)
    values[ONSET] = values[ONSET + 2] = 50.0
    assert feed(values) == []


def test_a_loss_spike_that_is_followed_already_tells_of_the_norm_itself() -> None:
    values, losses = norms(600, seed=4), [2.0 + 0.01 * (i % 5) for i in range(600)]
    for i in range(20):
        values[ONSET + 2 + i] = 9.0
        losses[ONSET + i] = 4.0
    assert feed(values, losses) == []


def test_a_norm_with_a_heavy_tail_gives_few_findings_in_many_points() -> None:
    rng = random.Random(5)
    values = [value * (rng.uniform(5, 40) if rng.random() < 0.02 else 1) for value in norms(12_000, seed=6)]
    assert len({finding.key for finding in feed(values)}) <= 4


def test_values_that_are_no_norm_are_passed_over() -> None:
    values = norms(600, seed=7)
    values[100:140] = [0.0, -1.0, math.nan, math.inf, 1e308] * 8
    assert feed(values) == []


def test_a_norm_that_stays_high_ends_as_its_new_level() -> None:
    values = norms(ONSET, seed=8) + norms(900, seed=9, level=30.0)
    found = feed(values)
    assert [f.state for f in found] == ["open", "resolved"]
    assert found[-1].now_step - ONSET <= 260
