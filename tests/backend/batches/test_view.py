"""The answer about a run's data: samples counted on the effective path, common ones, and what is missing."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from stabilitybackend.judging.batches.view import Stretch, view_of
from stabilitybackend.runs.archiving.snapshot import freeze, thaw
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.batches import Batches
from stabilityclient.data.samples import event_data, taken
from stabilityclient.wire import Frame
from support.job_frames import Job


def steps_of(job: Job, first: int, batches: Sequence[Any], **facts: Any) -> Iterator[Frame]:
    """A process takes these batches from step ``first`` on, and logs a loss at each."""
    for step, ids in enumerate(batches, first):
        yield job.event("batch", step, **event_data(taken(ids)), **facts)
        yield job.rows([step])


def run_of(frames: Iterator[Frame] | Sequence[Frame]) -> RunState:
    state = RunState("run", lambda: 1e9)
    for frame in frames:
        state.apply(frame, replayed=False)
    return state


def view(state: RunState, stretches: tuple[Stretch, Stretch] | None = None, **sizes: int) -> Batches:
    return view_of(state.batches, state.fold.tree.path(), sizes, stretches)()


def parts(order: Sequence[int], size: int) -> list[list[int]]:
    return [list(order[at : at + size]) for at in range(0, len(order), size)]


def test_small_batches_are_counted_exactly() -> None:
    batches = [{"web": ids, "code": [7, 8]} for ids in parts(range(100), 10)]
    web, code = sorted(view(run_of(list(steps_of(Job(), 0, batches))), web=400).datasets, key=lambda one: -one.distinct)

    assert (web.name, web.seen, web.distinct, web.one_in) == ("web", 100, 100, 1)
    assert (web.once, web.twice, web.never) == (1.0, 0.0, 0.75)
    assert (code.name, code.seen, code.distinct, code.more, code.error) == ("code", 20, 2, 1.0, 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_of_large_batches_the_shares_are_known_to_their_error(seed: int) -> None:
    order = list(range(60_000))
    random.Random(seed).shuffle(order)
    again = order[:20_000]
    random.Random(seed + 1).shuffle(again)

    (all_,) = view(run_of(list(steps_of(Job(), 0, parts([*order, *again], 400))))).datasets

    assert all_.one_in == 32
    assert all_.twice == pytest.approx(1 / 3, abs=4 * all_.error)
    assert all_.distinct == pytest.approx(60_000, rel=0.1)
    assert all_.more == 0.0


def test_new_samples_fall_where_known_ones_come() -> None:
    order = list(range(4_000))
    found = view(run_of(list(steps_of(Job(), 0, parts([*order, *order[::-1]], 40))))).new_samples

    assert (found[0].first, found[-1].last) == (0, 199)
    assert {one.new for one in found if one.last < 99} == {1.0}
    assert {one.new for one in found if one.first > 101} == {0.0}


def test_a_small_data_set_that_comes_again_weighs_as_much_as_it_has_samples() -> None:
    batches = [{"web": list(range(at * 96, at * 96 + 96)), "code": [1, 2, 3, 4]} for at in range(400)]
    found = view(run_of(list(steps_of(Job(), 0, batches)))).new_samples

    assert sum(one.new for one in found[1:]) / len(found[1:]) == pytest.approx(0.96, abs=0.01)


def test_two_stretches_have_their_common_samples_counted_in_any_order() -> None:
    order = list(range(320))
    frames = steps_of(Job(), 0, parts([*order, *order[100:200][::-1]], 10))

    found = view(run_of(list(frames)), ((0, 31), (32, 41))).overlap

    assert found is not None
    assert (found.in_first, found.in_second, found.in_both) == (320, 100, 100)


def test_discarded_samples_do_not_count() -> None:
    job = Job()
    frames = [*steps_of(job, 0, parts(range(200), 10)), job.rolled_back(9, "d-1")]
    frames += steps_of(job, 10, parts(range(200, 300), 10))

    (all_,) = view(run_of(frames)).datasets
    assert (all_.seen, all_.once) == (200, 1.0)


@pytest.mark.parametrize(
    ("second", "note"),
    [
        ([list(range(at, at + 20)) for at in range(500, 700, 20)], "a batch has 20 samples, before 10"),
        ([[[at, at + 1]] * 10 for at in range(10)], "ids are made of tokens[2], before of ids"),
    ],
    ids=["another batch size", "tokens for ids"],
)
def test_what_can_not_be_compared_is_said(second: list[Any], note: str) -> None:
    import numpy as np

    job = Job()
    frames = [*steps_of(job, 0, parts(range(300), 10))]
    frames += steps_of(job, 30, [np.array(one) if isinstance(one[0], list) else one for one in second])

    assert any(note in text for text in view(run_of(frames)).notes)


def test_missing_ids_of_ranks_and_steps_are_said() -> None:
    one, two = Job(0, world_size=2), Job(1, world_size=2)
    frames = []
    for step in range(300):
        frames += steps_of(one, step, [[step]] if not 100 <= step < 110 else [])
        frames += steps_of(two, step, [[1_000 + step]] if step % 50 and not 100 <= step < 110 else [])

    notes = " ".join(view(run_of(frames)).notes)

    assert "10 steps between others have no ids" in notes
    assert "ids of some ranks are missing" in notes


def test_the_same_is_known_after_a_restart_of_the_server() -> None:
    order = list(range(16_000))
    random.Random(1).shuffle(order)
    frames = list(steps_of(Job(), 0, parts(order[:12_000], 40)))
    state = thaw(freeze(run_of(frames)), "run", lambda: 1e9)
    rest = list(steps_of(Job(start=2), 300, parts(order[::-1][:8_000], 40)))

    for frame in rest:
        state.apply(frame, replayed=False)
    other = run_of([*frames, *rest])

    assert view(state) == view(other)
    assert [one.title for one in state.incidents.all()] == [one.title for one in other.incidents.all()]
