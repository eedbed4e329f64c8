"""A loss or gradient norm that stands at one value is named, whatever its scale; what rounds or learns is not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from stabilitybackend.judging.detectors.curve.detector import CurvesDetector
from stabilitybackend.judging.detectors.engine.bank import DetectorBank
from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.detectors.frozen import FrozenDetector
from stabilitybackend.judging.detectors.nonfinite import NonfiniteDetector

Curve = Callable[[int], float]


def found(*, block: int = 64, **curves: Curve) -> list[Finding]:
    """Return what is found in 600 rows, given ``block`` at a time."""
    bank = DetectorBank({one.name: one for one in (NonfiniteDetector, FrozenDetector, CurvesDetector)})
    rows = {name: [of(step) for step in range(600)] for name, of in curves.items()}
    said: list[Finding] = []
    for at in range(0, 600, block):
        steps = list(range(at, min(at + block, 600)))
        columns = {name: values[at : at + block] for name, values in rows.items()}
        said += [one for _, one in bank.feed_rows(list(columns), steps, [float(s) for s in steps], columns)]
    return [one for one in said if one.severity != "info"]


def noisy(scale: float, seed: int, digits: int | None = None) -> Curve:
    rng = random.Random(seed)
    values = [scale * (2.0 + rng.gauss(0, 0.05)) for _ in range(600)]
    return lambda step: values[step] if digits is None else round(values[step], digits)


@pytest.mark.parametrize("block", [1, 7, 600])
@pytest.mark.parametrize(("scale", "digits"), [(0.01, None), (1.0, None), (1.0, 2), (100.0, 1)])
def test_a_loss_that_is_exactly_0_is_critical_and_no_learning(scale: float, digits: int | None, block: int) -> None:
    curve = noisy(scale, 1, digits)
    said = found(loss=lambda step: curve(step) if step < 400 else 0.0, block=block)
    assert [(one.kind, one.severity, one.onset_step, one.state) for one in said] == [
        ("frozen", "critical", 400, "open")
    ]
    assert said[0].step <= 406


@pytest.mark.parametrize("block", [1, 7, 600])
@pytest.mark.parametrize("digits", [None, 4, 2])
def test_a_loss_that_stands_at_one_value_is_told_and_its_end_as_well(digits: int | None, block: int) -> None:
    curve = noisy(1.0, 2, digits)
    said = found(loss=lambda step: curve(step) if not 300 <= step < 400 else 2.0, block=block)
    assert [(one.state, one.onset_step) for one in said] == [("open", 300), ("recovered", 300)]
    assert said[1].recovered_step is not None
    assert 400 <= said[1].recovered_step < 410


def test_a_gradient_norm_of_0_is_told_and_one_at_its_bound_is_not() -> None:
    norm = noisy(0.3, 3)
    zero = found(loss=noisy(1.0, 4), grad_norm=lambda step: norm(step) if step < 200 else 0.0)
    clipped = found(loss=noisy(1.0, 4), grad_norm=lambda step: norm(step) if step < 200 else 1.0)
    assert [(one.kind, one.metric, one.severity) for one in zero] == [("frozen", "grad_norm", "warning")]
    assert clipped == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "curve",
    [
        lambda rng: [0.0] * 600,
        lambda rng: [0.0 if rng.random() < 0.3 else rng.random() for _ in range(600)],
        lambda rng: [round(2 * 0.97**step, 4) for step in range(600)],
        lambda rng: [round(0.69 + rng.gauss(0, 0.003), 2) for _ in range(600)],
        lambda rng: [float(step // 50) + 1 for step in range(600)],
    ],
    ids=["0 from the first step", "0 now and then", "learnt to 0", "two digits", "stairs"],
)
def test_what_rounds_or_is_0_by_design_is_silent(curve: Callable[[random.Random], list[float]], seed: int) -> None:
    values = curve(random.Random(seed))
    assert [one for one in found(loss=lambda step: values[step]) if one.kind == "frozen"] == []


def test_a_norm_that_is_nan_beside_a_loss_of_0_is_named_as_what_it_is() -> None:
    loss, norm = noisy(1.0, 5), noisy(0.3, 6)
    said = found(
        loss=lambda step: loss(step) if step < 300 else 0.0,
        grad_norm=lambda step: norm(step) if step < 300 else float("nan"),
    )
    assert {one.kind for one in said} == {"nonfinite"}
    assert said[-1].title == "Gradient norm not finite since step 300"
    assert "with a loss of exactly 0" in said[-1].text
