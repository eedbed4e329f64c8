"""Two runs on the same data in the same order are recognised by their losses, whatever their weights."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stabilitybackend.judging.detectors.engine.long_past import PAST_BLOCK, LongPast
from stabilitybackend.judging.detectors.stats.fingerprint import (
    MAX_PLACES,
    WORD_POINTS,
    Fingerprints,
    SignWindow,
    places_alike,
    sign_words,
)
from stabilitybackend.judging.detectors.stats.same_order import same_order


def _past(batches: list[float], seed: int, fall: float = 0.2) -> LongPast:
    """Return what a model with noise of its own makes of the batches, on a curve that falls."""
    rng, past, prints = random.Random(seed), LongPast(), Fingerprints()
    losses = [
        (3 + batch) * (1 - fall * at / len(batches)) + 0.3 * rng.gauss(0, 1) * 0.05 for at, batch in enumerate(batches)
    ]
    for at in range(0, len(losses) - PAST_BLOCK + 1, PAST_BLOCK):
        prints.add(past, at, losses[at : at + PAST_BLOCK])
    return past


def _batches(count: int, seed: int) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(0, 0.05) for _ in range(count)]


def test_of_a_curve_that_is_like_itself_everywhere_the_first_places_are_looked_at() -> None:
    data = np.full(4_000, 200, np.uint8)
    assert places_alike(SignWindow.of(data), sign_words(data), len(data)) == [
        (0, WORD_POINTS + at) for at in range(MAX_PLACES)
    ]


def test_two_models_on_the_same_order_of_data_are_recognised_over_all_their_steps() -> None:
    [found] = same_order(_past(_batches(3_000, 1), seed=2), _past(_batches(3_000, 1), seed=3, fall=0.4))
    assert (found.first, found.other) == (found.other, found.first)
    assert found.first <= 64
    assert found.last == pytest.approx(3_000, abs=64)


def test_a_run_that_feeds_what_another_one_saw_later_is_recognised_with_that_step() -> None:
    data = _batches(6_000, 1)
    [found] = same_order(_past([*_batches(500, 7), *data[4_000:]], seed=2), _past(data, seed=3))
    assert found.first == pytest.approx(500, abs=64)
    assert found.other - found.first == 3_500


def test_other_data_and_other_orders_are_not() -> None:
    data = _batches(3_000, 1)
    shuffled = random.Random(5).sample(data, len(data))
    assert [same_order(_past(data, seed=2), _past(other, seed=3)) for other in (_batches(3_000, 4), shuffled)] == [
        [],
        [],
    ]


def test_sources_that_both_jobs_alternate_alike_are_not() -> None:
    one, other = ([(0.0, 0.6, 0.3, 1.0)[at % 4] + noise for at, noise in enumerate(_batches(3_000, s))] for s in (1, 2))
    assert same_order(_past(one, seed=2), _past(other, seed=3)) == []


def test_a_run_that_has_just_begun_is_not() -> None:
    assert same_order(_past(_batches(64, 1), seed=2), _past(_batches(3_000, 1), seed=3)) == []
