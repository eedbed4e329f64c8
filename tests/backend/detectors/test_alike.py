"""Data that is read in its order: neighbouring batches share documents, and what they do together is no event."""

from __future__ import annotations

import random

import pytest

from stabilitybackend.detectors.divergence import DivergenceDetector
from stabilitybackend.detectors.engine.bank import DetectorBank
from stabilitybackend.detectors.engine.base import Finding, Row
from stabilitybackend.detectors.level_shift import LevelShiftDetector
from stabilitybackend.detectors.spike.detector import SpikeDetector
from stabilitybackend.detectors.stats.alike import STRETCH_POINTS, Alike

POINTS = 900


def _read_in_order(seed: int) -> list[float]:
    """Give the losses of batches that are cut from documents in a row, each some batches long and as hard as it is."""
    rng, losses, level, left = random.Random(seed), [], 0.0, 0
    for at in range(POINTS):
        if not left:
            level, left = rng.lognormvariate(0.0, 0.25), 1 + int(rng.expovariate(1 / 8))
        left -= 1
        losses.append((1.5 + 2 * 0.99**at) * level * (1 + rng.gauss(0, 0.15)))
    return losses


def _alarms(losses: list[float], every: int = 1) -> list[Finding]:
    bank = DetectorBank({"spike": SpikeDetector, "level_shift": LevelShiftDetector, "divergence": DivergenceDetector})
    found = [f for at, loss in enumerate(losses) for f in bank.feed_row(Row(at * every, 1e9 + at, {"loss": loss}))]
    assert not bank.failures
    return [f for f in found if f.severity != "info" and f.state == "open"]


def test_documents_that_are_read_in_their_order_raise_no_alarm() -> None:
    assert [f.key for seed in range(12) for f in _alarms(_read_in_order(seed))] == []


def test_where_one_of_twenty_steps_is_logged_neighbouring_points_are_none_in_the_data() -> None:
    assert {f.kind for seed in range(12) for f in _alarms(_read_in_order(seed), every=20)} >= {"spike"}


def test_what_is_far_above_all_documents_is_still_found() -> None:
    losses = [loss * (6.0 if 700 <= at < 708 else 1.0) for at, loss in enumerate(_read_in_order(3))]
    assert [(f.kind, f.onset_step) for f in _alarms(losses)] == [("spike", 700)]


def test_noise_below_the_least_that_counts_is_no_resemblance() -> None:
    rng, alike, loss = random.Random(2), Alike(), 0.0
    for _ in range(20):
        alike.add([loss := 0.7 * loss + rng.gauss(0, 0.1) for _ in range(STRETCH_POINTS)], least_sigma=1.0)
    assert alike.neighbours == pytest.approx(0, abs=0.1)


def test_neighbours_count_as_much_as_the_run_showed_over_its_past_and_its_slope_not_at_all() -> None:
    rng, falling, alike, loss = random.Random(1), Alike(), Alike(), 0.0
    for _ in range(20):
        falling.add([9 - 0.05 * at + rng.gauss(0, 0.1) for at in range(STRETCH_POINTS)])
        alike.add([loss := 0.7 * loss + rng.gauss(0, 0.1) for _ in range(STRETCH_POINTS)])
    assert (falling.neighbours, alike.neighbours) == (pytest.approx(0, abs=0.05), pytest.approx(0.7, abs=0.1))
