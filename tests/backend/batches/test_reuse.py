"""Samples that come again in other batches after a resume are found; passes that are declared or plain are no alarm."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.incidents import Incident
from stabilityclient.data.samples import event_data, taken
from stabilityclient.wire import Frame
from support.job_frames import Job

SAMPLES, BATCH = 16_000, 40


def run_of(frames: Iterable[Frame]) -> RunState:
    state = RunState("run", lambda: 1e9)
    for frame in frames:
        state.apply(frame, replayed=False)
    assert state.unreadable.view().named == []
    return state


def shuffled(seed: int, samples: int = SAMPLES) -> list[int]:
    order = list(range(samples))
    random.Random(seed).shuffle(order)
    return order


def steps_of(job: Job, steps: Sequence[int], order: Sequence[int], begin: int = 0, **facts: Any) -> Iterator[Frame]:
    """A process takes BATCH samples of ``order`` a step, from ``begin`` on, and logs a loss at each."""
    for step in steps:
        at = begin + (step - steps[0]) * BATCH
        ids = [order[i % len(order)] for i in range(at, at + BATCH)]
        yield job.event("batch", step, **event_data(taken(ids)), **facts)
        yield job.rows([step])


def repeats(state: RunState) -> list[Incident]:
    return [one for one in state.incidents.all() if one.kind == "repeat_data"]


def resumed(order: Sequence[int], begin: int = 0, **facts: Any) -> RunState:
    """200 steps of one order, half of the data, then a new process with another one."""
    first = steps_of(Job(), range(200), shuffled(1), **facts)
    return run_of([*first, *steps_of(Job(start=2), range(200, 300), order, begin, **facts)])


@pytest.mark.parametrize("facts", [{}, {"epoch": 0}], ids=["nothing declared", "one epoch"])
@pytest.mark.parametrize("seed", range(2, 7))
def test_a_new_order_after_a_resume_is_found(seed: int, facts: dict[str, Any]) -> None:
    (incident,) = repeats(resumed(shuffled(seed), **facts))

    assert incident.severity == "warning"
    assert 200 <= incident.onset_step <= incident.step <= 203
    assert incident.evidence["since"] == "the resume at step 200"
    assert incident.evidence["seen_share"] == pytest.approx(0.5, abs=0.25)


def test_the_right_resume_is_silent() -> None:
    assert not repeats(resumed(shuffled(1), 200 * BATCH))


def test_a_declared_epoch_in_another_order_is_silent() -> None:
    job = Job()
    frames = [*steps_of(job, range(400), shuffled(1), epoch=0), *steps_of(job, range(400, 800), shuffled(2), epoch=1)]

    assert not repeats(run_of(frames))


def test_a_new_order_within_a_declared_second_epoch_is_found() -> None:
    job = Job()
    frames = [*steps_of(job, range(400), shuffled(1), epoch=0), *steps_of(job, range(400, 600), shuffled(2), epoch=1)]
    frames += steps_of(Job(start=2), range(600, 700), shuffled(3), epoch=1)

    (incident,) = repeats(run_of(frames))
    assert (incident.severity, incident.evidence["since"]) == ("warning", "the resume at step 600")


def test_a_second_pass_that_nobody_declared_is_said_once_as_info() -> None:
    job = Job()
    frames = [f for epoch in range(3) for f in steps_of(job, range(400 * epoch, 400 * epoch + 400), shuffled(epoch))]

    (incident,) = repeats(run_of(frames))
    assert (incident.severity, incident.state) == ("info", "resolved")
    assert 400 <= incident.onset_step <= incident.step <= 404
    assert "is through" in incident.title


def test_a_worker_that_repeats_its_shard_is_no_pass_over_the_data() -> None:
    order = shuffled(1)
    stuck = [order[at % 96] if step >= 200 and at < 10 else order[step * BATCH + at]
             for step in range(260) for at in range(BATCH)]  # fmt: skip

    (incident,) = repeats(run_of(steps_of(Job(), range(260), stuck)))
    assert 200 <= incident.onset_step <= incident.step <= 208
    assert "is through" not in incident.title
    assert "a worker repeats its shard" in incident.text


@pytest.mark.parametrize("seed", range(5))
def test_drawing_with_replacement_over_a_resume_is_silent(seed: int) -> None:
    rng = random.Random(seed)
    order = [rng.randrange(SAMPLES) for _ in range(600 * BATCH)]
    frames = [*steps_of(Job(), range(300), order), *steps_of(Job(start=2), range(300, 600), order, 300 * BATCH)]

    assert not repeats(run_of(frames))


def test_after_a_rollback_the_discarded_samples_may_come_in_another_order() -> None:
    job, order = Job(), shuffled(1)
    frames = [*steps_of(job, range(200), order), job.rolled_back(99, "d-1")]
    rest = order[100 * BATCH :]
    random.Random(5).shuffle(rest)

    assert not repeats(run_of([*frames, *steps_of(job, range(100, 250), rest)]))
