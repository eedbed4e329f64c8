"""A process that starts over into the same log is told as that, by more than its loss; a spike of any height is not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from stabilitybackend.judging.detectors.curve.detector import CurvesDetector
from stabilitybackend.judging.detectors.engine.bank import DetectorBank
from stabilitybackend.judging.detectors.engine.base import Finding, Mark
from stabilitybackend.judging.detectors.starts_over import StartsOverDetector
from stabilitybackend.judging.incidents.affecting import accepted
from stabilitybackend.runs.state import RunState
from support.job_frames import Job

AGAIN = 500


def hours(scale: float, seed: int, rows: int = 900) -> list[float]:
    """Return a loss that falls, and from AGAIN on falls as it did at first."""
    rng = random.Random(seed)
    at = [step if step < AGAIN else step - AGAIN for step in range(rows)]
    return [scale * (1.8 + 3 * math.exp(-step / 100) + rng.gauss(0, 0.03)) for step in at]


def rate(step: int) -> float:
    at = step if step < AGAIN else step - AGAIN
    return 3e-4 * min(1.0, (at + 1) / 60)


def found(columns: dict[str, list[float]], block: int = 900) -> list[Finding]:
    bank = DetectorBank({one.name: one for one in (StartsOverDetector, CurvesDetector)})
    said: list[Finding] = []
    rows = len(columns["loss"])
    for at in range(0, rows, block):
        steps = list(range(at, min(at + block, rows)))
        part = {name: values[at : at + block] for name, values in columns.items()}
        said += [one for _, one in bank.feed_rows(list(part), steps, [float(step) for step in steps], part)]
    return said


def signs(which: str) -> dict[str, list[float]]:
    known: dict[str, Callable[[int], float]] = {
        "lr": rate,
        "epoch": lambda step: float((step % AGAIN) // 200),
        "trainer/global_step": lambda step: float(step % AGAIN),
    }
    return {which: [known[which](step) for step in range(900)]}


@pytest.mark.parametrize("block", [1, 37, 900])
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("which", ["lr", "epoch", "trainer/global_step"])
def test_the_first_hour_again_is_told_at_its_second_point_and_no_spike_beside_it(
    which: str, scale: float, block: int
) -> None:
    said = found({"loss": hours(scale, 1), **signs(which)}, block)
    told = [(one.detector, one.severity, one.onset_step, one.step) for one in said if one.state == "open"]
    assert told == [("starts_over", "critical", AGAIN, AGAIN + 1)]
    assert "This is the first hour again" in said[0].text
    assert which in said[0].text or "learning rate" in said[0].text


@pytest.mark.parametrize("seed", range(3))
def test_a_spike_to_the_first_loss_without_another_sign_is_none(seed: int) -> None:
    rng = random.Random(seed)
    losses = [1.8 + 3 * math.exp(-step / 100) + rng.gauss(0, 0.03) for step in range(900)]
    losses[AGAIN : AGAIN + 20] = [4.8 + rng.gauss(0, 0.03) for _ in range(20)]
    columns = {
        "loss": losses,
        "lr": [3e-4 * min(1.0, (step + 1) / 60) for step in range(900)],
        "epoch": [float(step // 200) for step in range(900)],
    }
    assert {one.kind for one in found(columns)} == {"spike"}


def test_a_schedule_that_restarts_and_an_epoch_that_begins_are_silent() -> None:
    rng = random.Random(6)
    losses = [1.8 + 3 * math.exp(-step / 100) + rng.gauss(0, 0.03) + 0.2 * (step % 300 < 20) for step in range(900)]
    rates = [3e-4 * 0.5 * (1 + math.cos(math.pi * (step % 300) / 300)) for step in range(900)]
    columns = {"loss": losses, "lr": rates, "iteration": [float(step % 300) for step in range(900)]}
    assert [one for one in found(columns) if one.detector == "starts_over"] == []


@pytest.mark.parametrize(("cause", "told"), [("restart", ["open"]), ("command", [])])
def test_a_run_that_was_started_again_at_its_first_step_is_told_and_an_ordered_one_is_not(
    cause: str, told: list[str]
) -> None:
    detector, first = StartsOverDetector(), hours(1.0, 1)[:AGAIN]
    left = {"loss": list(enumerate(first))}
    data = {"fork_step": -1, "cause": cause, "reason": "", "changes": {}, "last_step": 499, "left_behind": left}
    bank = DetectorBank({"starts_over": StartsOverDetector})
    assert detector.name in bank.detectors
    bank.mark(Mark("fork", 0, 0.0, "the run went back to step -1", data))
    again = hours(1.0, 2)[:100]
    said = bank.feed_rows(["loss"], list(range(100)), [float(step) for step in range(100)], {"loss": again})
    assert [one.state for _, one in said] == told


@pytest.mark.parametrize("which", ["lr", "epoch"])
def test_a_first_hour_again_is_not_given_up_once_training_has_come_down_to_where_it_was(which: str) -> None:
    state, columns = RunState("run", lambda: 5_000.0), {"loss": hours(1.0, 1), **signs(which)}
    state.apply(Job().rows(range(900), columns), replayed=False)
    [told] = [one for one in state.incidents.all() if one.key == f"starts_over:loss:{AGAIN}"]
    assert (told.state, told.recovered_step is not None, accepted(told)) == ("resolved", True, False)
    assert told.suggestion is not None
    assert "did not come back" not in told.suggestion.text
