"""After any crash and relaunch every row is stored once, on the branch that the trainer itself knows it was on."""

from __future__ import annotations

import random
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.storage.points.store import RunStore
from stabilityclient.wire import Frame
from support.job_frames import Job
from support.jobs.relaunched_jobs import CrashingJob
from support.points.full_curve import entries

STRIDES = ([1, 1, 1], [1, 1, 5], [3, 2, 1], [10, 10, 10])


def _job(seed: int, ranks: int, launches: int, strides: list[int], **more: bool) -> CrashingJob:
    return CrashingJob(random.Random(seed), ranks, 1 + seed % 2, strides, launches, **more)


def _check(job: CrashingJob, ranks: int, frames: Iterable[Frame]) -> None:
    fold, store, placed = LineageFold(), RunStore(), list[Placed]()
    for frame in frames:
        for change in fold.apply(frame):
            if isinstance(change, Placed):
                store.add(Batch.of([change]))
                placed.append(change)
    effective: dict[int, dict[int, float]] = {rank: {} for rank in range(ranks)}
    for entry in entries(store, fold, "loss"):
        assert entry.rank is not None
        for step, value in zip(entry.steps.tolist(), entry.values.tolist(), strict=True):
            assert step not in effective[entry.rank], f"step {step} is in the effective curve twice"
            effective[entry.rank][step] = value
    assert effective == {rank: job.effective(rank) for rank in range(ranks)}
    held = fold.pending()
    assert [sum(len(p.steps) for p in placed + held if p.rank == rank) for rank in range(ranks)] == [
        job.logged(rank) for rank in range(ranks)
    ]


_JOBS = st.tuples(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 7), st.sampled_from(STRIDES))


@settings(max_examples=300, deadline=None)
@given(story=_JOBS)
def test_rows_that_arrive_as_they_were_logged_land_on_the_trainers_branch(
    story: tuple[int, int, int, list[int]],
) -> None:
    seed, ranks, launches, strides = story
    job = _job(seed, ranks, launches, strides)
    _check(job, ranks, job.as_it_happened())


# One backlog in thousands, or order, can't be known (lineage/launches.py says which): the same are tried each time.
@settings(max_examples=300, deadline=None, derandomize=True)
@given(story=_JOBS)
def test_a_backlog_of_one_node_lands_on_the_trainers_branch(story: tuple[int, int, int, list[int]]) -> None:
    seed, ranks, launches, strides = story
    job = _job(seed, ranks, launches, strides)
    _check(job, ranks, job.nodes_apart(random.Random(seed)))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(story=_JOBS)
def test_backlogs_in_any_order_land_on_the_trainers_branch(story: tuple[int, int, int, list[int]]) -> None:
    seed, ranks, launches, strides = story
    job = _job(seed, ranks, launches, strides)
    _check(job, ranks, job.in_any_order(random.Random(seed)))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, 10**6))
def test_what_redis_lost_and_an_agent_sends_again_oldest_source_first_lands_on_the_trainers_branch(seed: int) -> None:
    job = CrashingJob(random.Random(seed), 2, 1, [1, 1], 7)
    _check(job, 2, job.after_losses(random.Random(seed)))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(story=_JOBS)
def test_launches_that_no_launcher_tells_apart_land_on_the_trainers_branch(
    story: tuple[int, int, int, list[int]],
) -> None:
    seed, ranks, launches, strides = story
    job = _job(seed, ranks, launches, strides, told_apart=False)
    _check(job, ranks, job.nodes_apart(random.Random(seed)))


def test_a_rank_whose_last_step_was_the_checkpoints_is_on_the_branch_of_its_launch_whoever_is_heard_first() -> None:
    old, new = [Job(rank, 1, 2) for rank in (0, 1)], [Job(rank, 2, 2) for rank in (0, 1)]
    before = [old[0].rows(range(1, 109)), old[1].rows(range(1, 101))]
    told = [_forks([*before, new[a].rows(range(101, 111)), new[b].rows(range(101, 111))]) for a, b in ((0, 1), (1, 0))]
    assert told == [[(0, 100, "restart", [0, 1])]] * 2


def test_what_the_launch_before_had_logged_beyond_the_checkpoint_may_come_after_the_relaunch() -> None:
    old, new = [Job(rank, 1, 2) for rank in (0, 1)], [Job(rank, 2, 2) for rank in (0, 1)]
    frames = [old[0].rows(range(1, 95)), old[1].rows(range(1, 101)), new[1].rows(range(101, 111))]
    assert _forks(frames) == [(0, 100, "resume", [1])]
    assert _forks([*frames, old[0].rows(range(95, 109))]) == [(0, 100, "restart", [1])]


def test_a_rank_that_starts_late_is_of_the_launch_whose_first_rank_has_logged_its_settings_meanwhile() -> None:
    old, new = [Job(rank, 1, 2) for rank in (0, 1)], [Job(rank, 2, 2) for rank in (0, 1)]
    new[1].info.started += 5.0
    frames = [job.rows(range(1, 101)) for job in old]
    frames += [new[0].rows([0], {"params": [1.0]}), new[1].event("start")]
    for job in new:
        job.wait(6.0)  # for each other
    frames += [new[0].rows(range(81, 91))]
    assert _forks([*frames, new[1].rows(range(81, 91))]) == [(0, 80, "restart", [0, 1])]


def test_ranks_that_do_not_wait_for_each_other_are_of_one_launch_while_they_run_together() -> None:
    old, new = [Job(rank, 1, 2) for rank in (0, 1)], [Job(rank, 2, 2) for rank in (0, 1)]
    frames = [job.rows(range(1, 101)) for job in old]
    new[1].info.started += 2.0
    first = [new[0].rows(range(81, 86)), new[1].event("start")]
    for job in new:
        job.wait(3.0)
    frames += [*first, new[0].rows(range(86, 91)), new[1].rows(range(81, 91))]
    assert _forks(frames) == [(0, 80, "restart", [0, 1])]


def _forks(frames: Iterable[Frame]) -> list[tuple[int | None, int, str, list[int]]]:
    fold = LineageFold()
    for frame in frames:
        fold.apply(frame)
    return [(s.parent, s.fork_step, s.cause, sorted(s.entered)) for s in fold.tree][1:]
