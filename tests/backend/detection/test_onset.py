"""The onset of a slow climb is a band that holds its true beginning; that of a jump is exact."""

from __future__ import annotations

import random

import pytest

from stabilitybackend.judging.detection.evidence import onset_band

Points = list[tuple[int, float]]


def curve(begin: int, slope: float, steps: int, seed: int, every: int = 1) -> Points:
    """Return a loss that falls slowly and climbs from ``begin`` on, ever faster."""
    rng = random.Random(seed)
    climb = [slope * max(0, step - begin) ** 2 for step in range(0, steps, every)]
    return [
        (step, 3 - step / 4_000 + up + rng.gauss(0, 0.05))
        for step, up in zip(range(0, steps, every), climb, strict=True)
    ]


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("seed", range(8))
def test_the_band_of_a_climb_holds_the_step_at_which_it_began(seed: int, every: int) -> None:
    begin, seen = 600 * every, 760 * every
    points = curve(begin, 3e-5 / every**2, 800 * every, seed, every)
    onset = 690 * every  # where its detector puts it, far too late
    band = onset_band([p for p in points if p[0] < onset], [p for p in points if onset <= p[0] <= seen], onset, seen)
    assert band is not None
    assert band[0] <= begin <= band[1] == onset
    assert band[0] >= begin - 3 * (seen - begin)


def gradients(begin: int, growth: float, steps: int, seed: int) -> Points:
    """Return a gradient norm that rises while the run begins, and by ``growth`` a step from ``begin`` on."""
    rng = random.Random(seed)
    return [
        (step, (min(1.0, 0.5 + step / 200) + growth * max(0, step - begin)) * rng.gauss(1, 0.08))
        for step in range(steps)
    ]


@pytest.mark.parametrize("seed", range(8))
def test_a_climb_that_the_gradient_norm_announced_may_have_begun_when_that_one_rose(seed: int) -> None:
    points, onset, seen = curve(600, 1e-4, 660, seed), 630, 650
    before, since = [p for p in points if p[0] < onset], [p for p in points if onset <= p[0] <= seen]
    alone = onset_band(before, since, onset, seen)
    band = onset_band(before, since, onset, seen, gradients=gradients(480, 0.004, seen, seed))
    assert alone is not None
    assert band is not None
    assert band[0] <= 490 < alone[0]
    assert band[0] >= 480 - (seen - 480)


@pytest.mark.parametrize("begin", [0, 9_999])
@pytest.mark.parametrize("seed", range(4))
def test_a_gradient_norm_that_always_rises_or_never_does_says_little_about_when_a_climb_began(
    begin: int, seed: int
) -> None:
    points, onset, seen = curve(600, 1e-4, 660, seed), 630, 650
    before, since = [p for p in points if p[0] < onset], [p for p in points if onset <= p[0] <= seen]
    alone = onset_band(before, since, onset, seen)
    band = onset_band(before, since, onset, seen, gradients=gradients(begin, 0.002, seen, seed))
    assert alone is not None
    assert band is not None
    assert band[0] >= alone[0] - 64


def test_a_jump_has_no_band() -> None:
    points = [(step, value + 2 * (step >= 300)) for step, value in curve(900, 0, 310, 1)]
    assert onset_band(points[:300], points[300:], 300, 304) is None


@pytest.mark.parametrize("before", [[], [(0, 1.0)], [(step, float("nan")) for step in range(50)]])
def test_where_nothing_is_known_of_before_no_band_is_guessed(before: Points) -> None:
    assert onset_band(before, [(60, 2.0)], 60, 65) is None


def test_a_band_never_begins_before_the_run() -> None:
    points = curve(20, 1e-4, 120, 3)
    band = onset_band(points[:60], points[60:], 60, 119)
    assert band is None or band[0] >= 0


def test_a_jump_out_of_a_loss_that_falls_steeply_has_an_exact_onset_by_what_the_detector_measured() -> None:
    before = [(i, 3.0 + 7.0 * 0.93**i) for i in range(60)]
    assert onset_band(before, [(60, 4.0)], 60, 63) is not None
    assert onset_band(before, [(60, 4.0)], 60, 63, found=(3.1, 0.1)) is None
