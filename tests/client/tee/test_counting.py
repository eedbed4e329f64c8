"""Where a script gives W&B no step, its rows come at the step of its training, and at the count of rows without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import stabilityclient
from stabilityclient.tee.counting import Counting
from stabilityclient.tee.recording import Recording

Start = Callable[..., stabilityclient.Run]


class Case(NamedTuple):
    """Rows of values, some with a step that the call gives, and the steps at which they come.

    ``axes``: step metric -> of which metrics. ``elsewhere``: a step that another library was told before.
    """

    rows: list[dict[str, Any]]
    steps: list[int]
    given: list[int] | None = None
    axes: dict[str, str] = {}  # noqa: RUF012 - a tuple's default
    step_key: str | None = None
    elsewhere: int | None = None


def _rows(name: str, *steps: Any) -> list[dict[str, Any]]:
    return [{name: step, "loss": 1.0} for step in steps]


CASES = {
    "the count": Case(_rows("x", 7, 7, 7), [0, 1, 2]),
    "nanoGPT": Case(_rows("iter", 0, 250, 500), [0, 250, 500]),
    "Lightning": Case(_rows("trainer/global_step", 49, 99), [49, 99]),
    "a step in a float": Case(_rows("global_step", 10.0, 20.0), [10, 20]),
    "no whole number": Case(_rows("iter", 0.5, "x", None), [0, 1, 2]),
    "a step that is given": Case(_rows("iter", 1, 1), [5, 10], given=[5, 10]),
    "the axis that define_metric names": Case(_rows("seen", 0, 8, 16), [0, 8, 16], axes={"seen": "*"}),
    "a step of its own for some metrics": Case(_rows("custom_step", 0, 5), [0, 5], axes={"custom_step": "loss"}),
    "another axis of some metrics": Case(_rows("epoch", 9, 9), [0, 1], axes={"epoch": "val/*"}),
    "the steps of an evaluation": Case(_rows("val/step", 9, 9), [0, 1], axes={"val/step": "val/*"}),
    "a row without the step": Case([{"iter": 3}, {"x": 1}, {"iter": 6}, {"x": 1}], [3, 3, 6, 6]),
    "a count within the epoch": Case(_rows("step", 0, 1, 2, 0, 1, 2), [0, 1, 2, 3, 4, 5]),
    "a declared axis that goes back": Case(_rows("seen", 0, 8, 0, 8), [0, 8, 0, 8], axes={"seen": "*"}),
    "the key that somebody names": Case(_rows("tokens", 0, 100), [0, 100], step_key="tokens"),
    "steps elsewhere": Case(_rows("x", 1, 1), [40, 40], elsewhere=40),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_row_comes_at_the_step_of_the_training(start: Start, case: Case) -> None:
    recording = Recording(start(), print, case.step_key)
    if case.elsewhere is not None:
        recording.note_step("TensorBoard", case.elsewhere)
    counting = Counting(recording, "W&B", 0)
    for step_metric, of in case.axes.items():
        counting.declare(step_metric, of)
    steps = []
    for row, given in zip(case.rows, case.given or [None] * len(case.rows), strict=True):
        steps.append(counting.place(row, given))
        counting.commit()

    assert steps == case.steps
