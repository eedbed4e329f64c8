"""A metric that no detector looks at leaves a note when it leaves its own past by far, and never an alarm."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from stabilitybackend.base.name_sets import NameSet
from stabilitybackend.judging.detection.naming.watched_report import watched_of
from stabilitybackend.judging.detection.other_metrics import BLOCK, MAX_METRICS, OtherMetrics
from stabilitybackend.lineage.batch import Placed
from stabilitybackend.runs.state import RunState
from support.job_frames import Job

ROWS = range(600)


def noisy(level: float, sigma: float, seed: int) -> list[float]:
    rng = random.Random(seed)
    return [level + rng.gauss(0, sigma) for _ in ROWS]


def jumped(values: Sequence[float], by: float, first: int = 400, last: int = 10_000) -> list[float]:
    return [value + (by if first <= step < last else 0.0) for step, value in enumerate(values)]


def run_of(metrics: Mapping[str, Sequence[float]], frames: int = 1) -> RunState:
    state, job = RunState("run", lambda: 5_000.0), Job()
    for part in np.array_split(np.arange(len(ROWS)), frames):
        state.apply(job.rows(part.tolist(), {n: [v[i] for i in part] for n, v in metrics.items()}), replayed=False)
    return state


def notes(state: RunState) -> list[tuple[str | None, int, str, str]]:
    return [(o.metric, o.onset_step, o.severity, o.state) for o in state.incidents.all() if o.kind == "metric_jump"]


@pytest.mark.parametrize("by", [0.5, -0.5])
@pytest.mark.parametrize("frames", [1, 600, 77])
def test_a_metric_that_leaves_its_past_is_one_note_however_rows_come(by: float, frames: int) -> None:
    metrics = {"loss": noisy(2, 0.02, 1), "router/entropy": jumped(noisy(1, 0.01, 2), by, last=440)}
    assert notes(run_of(metrics, frames)) == [("router/entropy", 400, "info", "recovered")]


def test_a_metric_that_stays_elsewhere_is_a_note_that_is_resolved() -> None:
    state = run_of({"loss": noisy(2, 0.02, 1), "kl": jumped(noisy(1, 0.01, 2), 3.0)})
    assert notes(state) == [("kl", 400, "info", "resolved")]
    assert [one.kind for one in state.incidents.all() if one.severity != "info"] == []


def test_a_note_names_as_many_points_as_there_were() -> None:
    state = run_of({"loss": noisy(2, 0.02, 1), "kl": jumped(noisy(1, 0.01, 2), 3.0)})
    assert "outside all of the 400 points before" in state.incidents.all()[0].text


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_loss_scale_that_is_halved_down_to_its_floor_is_one_note_that_says_so(rows: int) -> None:
    scale = [max(1.0, 65_536.0 * 0.5 ** (max(0, step - 399) // rows)) for step in ROWS]
    state = run_of({"loss": noisy(2, 0.02, 1), "train/loss_scale": scale})
    ((metric, onset, severity, _),) = notes(state)
    assert (metric, severity) == ("train/loss_scale", "info")
    assert 390 <= onset <= 400 + 6 * rows
    assert "halved 16 times" in state.incidents.all()[0].text


def test_a_loss_scale_that_grows_and_is_halved_at_times_leaves_no_note() -> None:
    scale = [65_536.0 * 2.0 ** ((step // 70) % 2 + (step // 200) % 3) for step in ROWS]
    assert notes(run_of({"loss": noisy(2, 0.02, 1), "loss_scale": scale})) == []


def test_metrics_that_leave_together_are_one_note() -> None:
    several = {f"layer/{at}/norm": jumped(noisy(1 + at, 0.01, at), 2.0, last=450) for at in range(12)}
    state = run_of({"loss": noisy(2, 0.02, 50), **several})
    assert [one[:3] for one in notes(state)] == [("layer/0/norm", 400, "info")]
    text = state.incidents.all()[0].text
    assert text.count("layer/") == 9
    assert "3 more" in text


@pytest.mark.parametrize("lead", [0, 10, -10])
def test_what_moves_with_the_loss_is_part_of_its_incident(lead: int) -> None:
    metrics = {
        "loss": jumped(noisy(2, 0.02, 1), 2.0, last=460),
        "router/entropy": jumped(noisy(1, 0.01, 2), 0.5, 400 - lead, 460),
    }
    state = run_of(metrics, 600)
    assert [one.kind for one in state.incidents.all() if one.severity != "info"] == ["spike"]
    assert [one for one in notes(state) if one[3] == "open"] == []
    assert all("part of the event" in one.text for one in state.incidents.all() if one.kind == "metric_jump")


QUIET: dict[str, Callable[[int], float]] = {
    "counter": lambda step: 512.0 * step if step < 400 else 512.0 * (step - 400),
    "timestamp": lambda step: 1.7e9 + 3 * step + (9_000 if step > 400 else 0),
    "constant": lambda step: 4.0 if step < 400 else 80.0,
    "flag": lambda step: float(step % 7 == 0) if step < 400 else 50.0,
    "schedule": lambda step: math.cos(step / 90) + (40.0 if step > 400 else 0.0),
    "seed": lambda step: float(random.Random(step).getrandbits(31)),
    "heavy tail": lambda step: random.Random(step).paretovariate(1.2),
    "saw": lambda step: step % 100 + random.Random(step).random(),
    "missing": lambda step: math.nan if step % 3 else random.Random(step).gauss(0, 1),
    "one point": lambda step: 1 + random.Random(step).gauss(0, 0.01) + (9.0 if step == 400 else 0.0),
    "random walk": lambda step: sum(random.Random(one).gauss(0, 1) for one in range(step)),
}  # fmt: skip


@pytest.mark.parametrize("shape", QUIET.values(), ids=QUIET)
def test_what_has_no_noise_of_its_own_or_is_usual_leaves_no_note(shape: Callable[[int], float]) -> None:
    assert notes(run_of({"loss": noisy(2, 0.02, 1), "x": [shape(step) for step in ROWS]})) == []


def test_a_run_that_went_back_begins_anew() -> None:
    state, job = RunState("run", lambda: 5_000.0), Job()
    metrics = {"loss": noisy(2, 0.02, 1), "kl": jumped(noisy(1, 0.01, 2), 3.0, 380)}
    state.apply(job.rows(range(400), {n: v[:400] for n, v in metrics.items()}), replayed=False)
    assert [one[:2] for one in notes(state)] == [("kl", 380)]
    state.apply(job.rolled_back(300, "key"), replayed=False)
    state.apply(
        job.rows(range(301, 600), {"loss": noisy(2, 0.02, 3)[:299], "kl": noisy(1, 0.01, 4)[:299]}), replayed=False
    )
    assert [(o.kind, o.dead) for o in state.incidents.all() if o.state == "open" and not o.dead] == []


def test_of_thousands_of_metrics_some_are_followed_and_the_run_has_their_number() -> None:
    state, job = RunState("run", lambda: 5_000.0), Job()
    columns = {f"p/{at}": [1.0, 1.1] for at in range(3_000)}
    state.apply(job.rows(range(2), {"loss": [2.0, 2.1], **columns}), replayed=False)
    told = watched_of(state.judge.names, state.store.metrics(), state.judge.followed)
    assert sum(one.text == "a note where it leaves its own past by far" for one in told.watched) == MAX_METRICS
    assert (told.unwatched_count, told.notes) == (3_000 - MAX_METRICS, [])


def test_rows_of_thousands_of_metrics_cost_no_more_for_those_that_are_not_followed() -> None:
    """The calls of a block of rows are those of the metrics that are followed, and of no other."""

    def calls(wide: int) -> int:
        others, count = OtherMetrics(), 0
        names = NameSet(f"p/{at}" for at in range(wide))
        values = np.random.default_rng(1).normal(1, 0.1, (wide, 20 * BLOCK))

        def is_other(metric: str) -> bool:
            nonlocal count
            count += 1
            return True

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            for at in range(0, 20 * BLOCK, 4):
                steps = np.arange(at, at + 4)
                others.take(Placed(0, "r0", 0, "n0", names, steps, steps * 1.0, values[:, at : at + 4]), is_other)
        finally:
            sys.setprofile(before)
        return count

    assert calls(20_000) <= 1.1 * calls(MAX_METRICS)
