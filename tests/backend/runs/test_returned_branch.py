"""What a run shows once it returned to a branch that it had left: its incidents, points and costs."""

from __future__ import annotations

import random
from collections.abc import Callable

from stabilitybackend.runs.state import RunState
from stabilitybackend.storage.query import query
from stabilityclient.wire import Frame
from support.job_frames import Job

ROOT = {"segment": 0, "segment_key": ""}


def noisy(spike_at: int | None = None, seed: int = 1) -> Callable[[int], float]:
    """A falling loss with noise, and a spike of some steps where wanted."""

    def value(step: int) -> float:
        noise = random.Random(step * 7919 + seed).gauss(0.0, 0.02)
        spike = 3.0 if spike_at is not None and spike_at <= step < spike_at + 6 else 0.0
        return 2.0 + 10.0 / (step + 10) + noise + spike

    return value


def rows(job: Job, first: int, last: int, loss: Callable[[int], float]) -> list[Frame]:
    """A frame for each twenty steps, as a live job sends them."""
    return [
        job.rows(steps, {"loss": [loss(step) for step in steps]})
        for at in range(first, last + 1, 20)
        if (steps := range(at, min(at + 20, last + 1)))
    ]


def state_after(*frames: Frame) -> RunState:
    state = RunState("run", lambda: 5_000.0)
    for frame in frames:
        state.apply(frame, replayed=False)
    return state


def spikes(state: RunState) -> list[tuple[int, bool, int]]:
    found = [one for one in state.incidents.all() if one.kind == "spike"]
    return sorted((one.onset_step, one.dead, one.segment) for one in found)


def test_a_spike_of_the_branch_is_known_again_and_that_of_the_one_left_for_it_is_dead() -> None:
    job = Job()
    first = rows(job, 1, 600, noisy(spike_at=500))
    state = state_after(*first)
    assert spikes(state) == [(500, False, 0)]
    for frame in (job.rolled_back(450, "c-1", command_id="c-1"), *rows(job, 451, 520, noisy(spike_at=480, seed=2))):
        state.apply(frame, replayed=False)
    assert spikes(state) == [(480, False, 1), (500, True, 0)]
    back = [job.rolled_back(580, "c-2", command_id="c-2", branch=ROOT), *rows(job, 581, 640, noisy())]
    for frame in back:
        state.apply(frame, replayed=False)
    assert spikes(state) == [(480, True, 1), (500, False, 0)]


def test_detectors_are_as_if_the_other_branch_had_never_been() -> None:
    job, straight = Job(), Job()
    frames = rows(job, 1, 600, noisy())
    frames += [job.rolled_back(300, "c-1"), *rows(job, 301, 420, lambda step: 9.0 + step / 100)]
    frames += [job.rolled_back(560, "c-2", branch=ROOT), *rows(job, 561, 900, noisy(spike_at=800))]
    returned = state_after(*frames)
    plain = rows(straight, 1, 560, noisy()) + rows(straight, 561, 900, noisy(spike_at=800))
    never = state_after(*plain)
    alive = {(one.kind, one.onset_step) for one in returned.incidents.all() if not one.dead and one.kind != "resume"}
    assert alive == {(one.kind, one.onset_step) for one in never.incidents.all()}
    assert returned.judge.newest_step == never.judge.newest_step == 900


def test_each_step_is_once_on_the_effective_line() -> None:
    job = Job()
    frames = [*rows(job, 1, 60, noisy()), job.rolled_back(20, "c-1"), *rows(job, 21, 40, noisy())]
    frames += [job.rolled_back(50, "c-2", branch=ROOT), *rows(job, 51, 70, noisy())]
    state = state_after(*frames)
    steps = [step for step, *_ in query.effective_rows(state.store, state.fold, ["loss"], 0, 0)]
    assert steps == list(range(1, 71))
