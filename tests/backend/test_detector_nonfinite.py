"""The non-finite detector: at once, one event, and its end."""

from __future__ import annotations

import math

from stabilitybackend.detectors.contract import Finding, Point
from stabilitybackend.detectors.nonfinite import NonfiniteDetector


def feed(rows: list[dict[str, float]]) -> list[Finding]:
    detector = NonfiniteDetector()
    return [
        finding
        for step, row in enumerate(rows)
        for metric, value in row.items()
        for finding in detector.update(Point(step, metric, value, 0.0))
    ]


def test_the_first_nan_of_the_loss_is_critical_at_once() -> None:
    found = feed([{"loss": 2.0}, {"loss": math.nan}])
    assert [(f.kind, f.severity, f.state, f.onset_step, f.step) for f in found] == [
        ("nonfinite", "critical", "open", 1, 1)
    ]


def test_loss_and_gradient_norm_are_one_event_that_gets_worse() -> None:
    found = feed([{"grad_norm": math.inf, "loss": 2.0}, {"grad_norm": math.nan, "loss": math.nan}])
    assert [(f.key, f.severity, f.metric) for f in found] == [
        ("nonfinite:grad_norm:0", "info", "grad_norm"),
        ("nonfinite:grad_norm:0", "critical", "loss"),
    ]
    assert found[-1].evidence["values"] == {"grad_norm": {"Infinity": 1, "NaN": 1}, "loss": {"NaN": 1}}


def test_it_is_over_after_ten_finite_steps_and_names_the_first_of_them() -> None:
    rows = [{"loss": 2.0}, *[{"loss": math.nan}] * 3, *[{"loss": 2.0, "grad_norm": 1.0}] * 11]
    found = feed(rows)
    assert [(f.state, f.recovered_step, f.now_step) for f in found] == [("open", None, 1), ("recovered", 4, 14)]


def test_nine_finite_steps_are_not_enough() -> None:
    rows = [*[{"loss": math.nan}], *[{"loss": 2.0}] * 9, *[{"loss": math.nan}], *[{"loss": 2.0}] * 9]
    assert [f.state for f in feed(rows)] == ["open"]


def test_one_that_comes_back_soon_is_the_same_event_and_one_that_comes_late_is_another() -> None:
    nan, good = {"loss": math.nan}, {"loss": 2.0}
    soon = feed([nan, *[good] * 15, nan])
    late = feed([nan, *[good] * 40, nan])
    assert [f.key for f in soon] == ["nonfinite:loss:0"] * 3
    assert [f.key for f in late] == ["nonfinite:loss:0", "nonfinite:loss:0", "nonfinite:loss:41"]
