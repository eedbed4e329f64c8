"""The words about an event of a curve: each sentence follows from the life of the event, and from no more."""

from __future__ import annotations

import math
import random
from itertools import product

import pytest

from stabilitybackend.judging.detectors.curve.detector import CurvesDetector
from stabilitybackend.judging.detectors.curve.engine import CurveEvent
from stabilitybackend.judging.detectors.curve.report import batch_of, text_of, title_of
from stabilitybackend.judging.detectors.engine.base import Point

KINDS = ("spike", "level_shift", "divergence")
#: (life, recovery, recovered step, new level) as the engine gives them together.
LIVES = [
    ("rising", "pending", None, None),
    ("up", "pending", None, None),
    ("coming back", "pending", None, None),
    ("back", "fast", 104, None),
    ("back", "slow", 190, None),
    ("back", "slow", 400, 2.5),
    ("new level", "pending", None, 2.5),
    ("new level", "none", None, 2.5),
    ("regained", "none", None, 2.5),
]
EVENTS = [
    CurveEvent(
        100,
        101,
        kind,
        "warning",
        2.0,
        0.02,
        3.0,
        103,
        life=life,
        recovery=recovery,
        points=256,
        recovered_step=back,
        new_level=level,
    )
    for kind, (life, recovery, back, level) in product(KINDS, LIVES)
]


def test_every_life_of_an_event_has_words_of_its_own() -> None:
    endings = {
        life: text_of(event, "loss", 420, [], []).partition("onset at step 100.")[2]
        for event, (_, life) in zip(EVENTS, product(KINDS, LIVES), strict=True)
    }
    assert len(set(endings.values())) == len(LIVES)
    assert all(endings.values())


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: f"{event.kind}-{event.life}-{event.recovery}")
def test_a_title_is_true_of_what_the_curve_does_now(event: CurveEvent) -> None:
    title = title_of(event, "loss")
    assert ("climbs" in title) == (event.kind == "divergence" and event.life == "rising")
    assert "jumps" not in title


def test_what_stays_is_told_with_its_level_and_not_with_its_peak_alone() -> None:
    texts = [text_of(event, "loss", 420, [], []) for event in EVENTS if event.life == "new level"]
    assert all("from 2 to 3 (+50 %)" in text and "2.5 (+25 %)" in text for text in texts)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: f"{event.kind}-{event.life}-{event.recovery}")
def test_a_smaller_batch_is_guessed_only_while_the_gradient_norm_stays_higher(event: CurveEvent) -> None:
    assert bool(batch_of(event)) == ((event.life, event.recovery) == ("new level", "none"))


@pytest.mark.parametrize("seed", range(6))
def test_an_event_that_settles_while_it_still_moves_is_not_called_flat(seed: int) -> None:
    rng = random.Random(seed)
    losses = [2.0 * math.exp(rng.gauss(0, 0.01)) for _ in range(1_200)]
    for at in range(600, 1_200):
        losses[at] *= 1.6 + 0.15 * math.sin((at - 600) / rng.uniform(14, 15))
    detector = CurvesDetector()
    found = [one for step, loss in enumerate(losses) for one in detector.update(Point(step, "loss", loss, 0.0))]
    settled = [one for one in found if one.evidence.get("life") == "new level"]
    assert settled
    assert not any("flat" in one.text for one in settled)
