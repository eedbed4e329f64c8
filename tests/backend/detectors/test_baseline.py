"""The baseline: robust numbers that are a few points old at most, and of now where one asks for it."""

from __future__ import annotations

import math
import random
import statistics
from collections import deque
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitybackend.detectors.stats.baseline import (
    LOCATION_EVERY_POINTS,
    NEWEST_POINTS,
    RECENT_POINTS,
    WINDOW_POINTS,
    YOUNG_POINTS,
    RobustBaseline,
)
from stabilitybackend.detectors.stats.levels import LARGEST
from stabilitybackend.saving import pack, unpack

_VALUES = st.lists(
    st.one_of(st.floats(-10, 10), st.sampled_from([0.0, 2.0, 2.5]), st.integers(0, 4).map(float)),
    min_size=1,
    max_size=300,
)


@settings(max_examples=60, deadline=None)
@given(values=_VALUES, cut=st.integers(0, 300))
def test_the_location_is_the_least_of_three_medians_also_after_it_was_saved(values: list[float], cut: int) -> None:
    baseline = RobustBaseline()
    seen: deque[float] = deque(maxlen=WINDOW_POINTS)
    for i, value in enumerate(values):
        if i == cut:
            baseline = unpack(RobustBaseline, pack(baseline), "baseline")
        baseline.learn(value)
        seen.append(value)
        baseline.refresh()
        newest = list(seen)
        expected = min(statistics.median(newest[-size:]) for size in (WINDOW_POINTS, RECENT_POINTS, NEWEST_POINTS))
        assert math.isclose(baseline.location(), expected, abs_tol=1e-12)


def test_a_new_level_forgets_the_old_one() -> None:
    baseline, fresh = RobustBaseline(), RobustBaseline()
    for i in range(200):
        baseline.learn(5.0 + 0.1 * (i % 3))
    level = [2.0 + 0.01 * (i % 4) for i in range(64)]
    baseline.restart(level)
    for value in level:
        fresh.learn(value)
    assert (baseline.location(), baseline.level(), baseline.scale()) == (fresh.location(), fresh.level(), fresh.scale())


def test_a_young_baseline_follows_every_point_and_an_old_one_every_sixteenth() -> None:
    rng = random.Random(1)
    baseline = RobustBaseline()
    answers: list[float] = []
    for _ in range(YOUNG_POINTS + 320):
        baseline.learn(3.0 + rng.gauss(0, 1))
        answers.append(baseline.location())
    changes = [i for i, (a, b) in enumerate(pairwise(answers)) if a != b and i > YOUNG_POINTS]
    assert {b - a for a, b in pairwise(changes)} == {LOCATION_EVERY_POINTS}


def test_blocks_and_single_values_give_the_same_level_and_a_like_scale() -> None:
    rng = random.Random(2)
    values = [2.0 + rng.gauss(0, 0.05) for _ in range(1_600)]
    single, blocks = RobustBaseline(), RobustBaseline()
    for i in range(0, len(values), 16):
        for value in values[i : i + 16]:
            single.learn(value)
        blocks.learn_block(values[i : i + 16])
    single.refresh()
    blocks.refresh()
    assert (single.location(), single.level(), single.points) == (blocks.location(), blocks.level(), 1_600)
    assert math.isclose(single.scale(), blocks.scale(), rel_tol=0.2)


def test_the_scale_is_finite_and_above_zero_for_any_values_of_a_loss() -> None:
    for values in ([0.0] * 50, [LARGEST, -LARGEST] * 40, [5e-324] * 40, [-3.0, -3.0, -2.0] * 20):
        baseline = RobustBaseline()
        for value in values:
            baseline.learn(value)
        baseline.refresh()
        assert 0 < baseline.scale() < math.inf
        assert math.isfinite(baseline.location())


def test_a_shift_moves_the_level_and_keeps_the_scale() -> None:
    rng = random.Random(3)
    baseline = RobustBaseline()
    for _ in range(300):
        baseline.learn(2.0 + rng.gauss(0, 0.05))
    baseline.refresh()
    location, scale = baseline.location(), baseline.scale()
    baseline.shift(1.0)
    assert math.isclose(baseline.location(), location + 1.0)
    assert baseline.scale() == scale


def test_a_steep_fall_does_not_pass_as_noise() -> None:
    rng = random.Random(4)
    baseline = RobustBaseline()
    for i in range(70):
        baseline.learn(2.0 + 8.0 * 0.93**i + rng.gauss(0, 0.03))
    assert baseline.scale() < 0.12
