"""Equal batches on the effective path are reported within three steps, with the old step; nothing else is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.incidents import Incident
from stabilityclient.wire import Frame
from support.job_frames import Job

BATCHES = [f"batch {number}" for number in range(2_000)]


def run_of(frames: Iterable[Frame]) -> RunState:
    state = RunState("run", lambda: 1e9)
    for frame in frames:
        state.apply(frame, replayed=False)
    return state


def steps_of(job: Job, steps: Sequence[int], data: Sequence[int], **facts: Any) -> Iterator[Frame]:
    """A process takes the batches of ``data`` at ``steps`` and logs a loss at each."""
    for step, batch in zip(steps, data, strict=True):
        yield job.event("batch", step, fingerprint=BATCHES[batch], **facts)
        yield job.rows([step])


def repeats(state: RunState) -> list[Incident]:
    return [one for one in state.incidents.all() if one.kind == "repeat_data"]


def fresh(steps: int, first: int = 1) -> Iterator[Frame]:
    return steps_of(Job(), range(first, first + steps), range(first, first + steps))


def restarted(data: Sequence[int], first: int = 201) -> RunState:
    """A job that died at step 220 and was started again from the checkpoint of step ``first - 1``."""
    return run_of([*fresh(220), *steps_of(Job(start=2), range(first, first + len(data)), data)])


def test_a_loader_that_starts_over_after_a_restart_is_reported_within_three_steps() -> None:
    state = restarted(range(1, 4))

    (incident,) = repeats(state)
    assert (incident.onset_step, incident.now_step, incident.severity) == (201, 203, "warning")
    assert incident.evidence["earlier_step"] == 1
    assert incident.evidence["offset_steps"] == 200
    assert incident.evidence["since"] == "the restart from step 200"


def test_the_steps_of_the_discarded_branch_may_see_their_batches_again() -> None:
    assert not repeats(restarted(range(201, 260)))


def test_after_a_rollback_what_was_discarded_is_no_repeat() -> None:
    job = Job()
    frames = [*steps_of(job, range(1, 101), range(1, 101)), job.rolled_back(50, "d-1")]
    frames += steps_of(job, range(51, 120), range(51, 120))

    assert not repeats(run_of(frames))


def test_a_shared_or_equal_batch_now_and_then_is_no_repeat() -> None:
    data = [0 if step % 7 == 0 else step for step in range(1, 300)]
    data[250:252] = data[100:102]

    assert not repeats(run_of(steps_of(Job(), range(1, 300), data)))


def test_the_same_order_all_over_again_without_a_resume_is_said_once_as_info() -> None:
    data = [1 + step % 100 for step in range(1_000)]

    (incident,) = repeats(run_of(steps_of(Job(), range(1, 1_001), data)))

    assert (incident.severity, incident.state, incident.onset_step) == ("info", "resolved", 101)


def test_the_end_of_the_repetition_is_reported_with_how_much_it_was() -> None:
    state = restarted([*range(1, 51), *range(300, 310)])

    (incident,) = repeats(state)
    assert (incident.state, incident.recovered_step) == ("recovered", 251)
    assert incident.evidence["repeated_steps"] == 50


def test_one_batch_again_and_again_is_reported_as_a_stuck_loader() -> None:
    (incident,) = repeats(run_of(steps_of(Job(), range(1, 200), [*range(1, 101), *[101] * 99])))

    assert incident.title == "The same batch since step 102"
    assert incident.severity == "warning"


@pytest.mark.parametrize("order", ["by step", "by rank"])
def test_the_parts_of_all_ranks_are_one_batch(order: str) -> None:
    """Two ranks swap their parts after a restart on other nodes: the batch is the same."""
    one, two = Job(0, world_size=2), Job(1, world_size=2)
    pairs = list(zip(steps_of(one, range(1, 101), range(1, 101)), steps_of(two, range(1, 101), range(1001, 1101)),
                     strict=True))  # fmt: skip
    frames = [f for pair in pairs for f in pair] if order == "by step" else [p[i] for i in (0, 1) for p in pairs]
    one, two = Job(0, 2, world_size=2), Job(1, 2, world_size=2)
    for again in zip(steps_of(one, range(81, 91), range(1001, 1011)), steps_of(two, range(81, 91), range(1, 11)),
                     strict=True):  # fmt: skip
        frames += again

    (incident,) = repeats(run_of(frames))

    assert (incident.onset_step, incident.evidence["earlier_step"]) == (81, 1)


def test_the_id_of_a_step_is_known_on_every_branch() -> None:
    state = restarted(range(1, 30))
    tree = state.fold.tree

    assert state.batches.ids.on(tree.path(), 201) == state.batches.ids.on(tree.path(), 1)
    assert state.batches.ids.on(tree.path(0), 201) not in (None, state.batches.ids.on(tree.path(), 201))
    assert state.batches.ids.on(tree.path(), 500) is None
