"""A rank that tells few steps, or none, does not hang for that; a job that tells few steps may hang all the same."""

from __future__ import annotations

import pytest

from stabilitybackend.judging.liveness.monitor import LivenessMonitor
from support.jobs.watched_job import START, Job, kinds, source, stack
from support.saved_state import taken_over

QUIET = {"step": -1, "step_start": 0.0, "phase": "", "phase_start": 0.0}


def _one_step_in(steps: int, job: Job, rank: int) -> None:
    """Let a rank that uses no phases tell one step in so many."""
    told = job.step - job.step % steps
    job.stuck[rank] = {"step": told, "step_start": START + told * job.step_s, "phase": "", "phase_start": 0.0}


def _run(job: Job, seconds: int, every: dict[int, int], *, moving: bool = True) -> list[tuple[str, str]]:
    said = []
    for _ in range(seconds):
        for rank, steps in every.items():
            before = job.stuck.get(rank, {}).get("step", 0)
            _one_step_in(steps, job, rank)
            if job.stuck[rank]["step"] > before:
                told = job.stuck[rank]
                job.monitor.logged(rank, source(rank, job.start), told["step"], told["step_start"])
        said += job.run(1, moving=moving)
    return kinds(said)


@pytest.mark.parametrize("phase", ["", "backward"])
def test_ranks_that_never_log_are_no_hang_while_one_does(phase: str) -> None:
    job = Job(nodes={"a": [0, 1, 2, 3]}, more={"phase": phase})
    job.stuck = dict.fromkeys((1, 2, 3), QUIET)
    assert job.run(2_000) == []
    (hang,) = [one for one in job.run(40, moving=False) if one.evidence["verdict"]["dump"]][:1]
    assert (hang.onset_step, hang.rank) == (job.step, None)
    assert hang.evidence["verdict"]["since"] > job.now - 45
    assert "step -1" not in hang.title + hang.text
    for rank in range(4):
        where = [("/job/loader.py", "next_batch")] if rank == 2 else [("/x/torch/distributed/c10d.py", "all_reduce")]
        job.answer(rank, stack=stack(*where), slot={})
    (hang,) = job.run(3, moving=False)
    assert hang.rank == 2
    assert "Rank 2 (node a) has waited for data, in next_batch (loader.py:10);" in hang.text


@pytest.mark.parametrize("seconds", [4, 60])
def test_a_job_in_which_only_rank_0_logs_hangs_within_a_minute_after_its_first_rows_too(seconds: int) -> None:
    job = Job(nodes={"a": [0, 1]}, more={"phase": "", "phase_start": 0.0})
    job.stuck[1] = QUIET
    for _ in range(seconds):
        job.run(1)
        job.monitor.logged(0, source(0), job.step, job.now)
    (hang,) = job.run(55, moving=False)[:1]
    assert (hang.kind, hang.onset_step, f"at step {job.step}" in hang.title) == ("hang", job.step, True)
    assert "before the first step" not in hang.text
    assert "behind the others by a step" not in str(hang.evidence["verdict"]["because"])


def test_a_rank_that_tells_no_steps_has_no_budget_that_a_page_could_hold_against_it() -> None:
    job = Job(nodes={"a": [0, 1]}, more={"phase": "", "phase_start": 0.0})
    job.stuck[1] = QUIET
    job.run(120)
    assert job.monitor.budget_s(0, source(0)) == 30.0
    assert job.monitor.budget_s(1, source(1)) is None


@pytest.mark.parametrize("late", [0, 1])
def test_of_ranks_that_declare_phases_and_tell_no_steps_the_earliest_phase_is_the_suspect(late: int) -> None:
    job = Job(nodes={"a": [0, 1, 2, 3]})
    for second in range(30):
        moved = {"step": -1, "step_start": 0.0, "phase_start": START + second}
        job.stuck = dict.fromkeys((1, 2, 3), moved)
        job.run(1)
    job.stuck[late] = {**job.stuck.get(late, {}), "phase": "data"}
    (hang,) = [one for one in job.run(30, moving=False) if one.kind == "hang"][:1]
    assert (hang.onset_step, hang.evidence["verdict"]["culprits"]) == (job.step, [late])


def test_a_rank_that_shows_its_first_step_late_is_taken_at_its_word_from_then_on() -> None:
    job = Job(nodes={"a": [0, 1, 2, 3]})
    job.stuck[2] = QUIET | {"phase": "forward"}
    job.run(20)
    job.stuck = {}
    job.run(20)
    stood = job.step
    job.stuck[2] = {"step": stood, "step_start": job.now, "phase_start": job.now}
    assert [hang.onset_step for hang in job.run(15)][:1] == [stood]


def test_ranks_that_log_one_step_in_fifty_are_neither_a_hang_nor_to_blame_for_one() -> None:
    job = Job(nodes={"a": [0, 1, 2, 3]}, step_s=1.0, more={"phase": "", "phase_start": 0.0})
    assert _run(job, 470, dict.fromkeys((1, 2, 3), 50)) == []
    assert _run(job, 40, {}, moving=False) == [("hang", "open")]
    assert (job.said[-1].onset_step, job.said[-1].evidence["suspects"]) == (470, [])


def test_ranks_that_log_their_first_steps_only_are_no_hang() -> None:
    job = Job(nodes={"a": [0, 1, 2, 3]}, step_s=1.0, more={"phase": "", "phase_start": 0.0})
    assert _run(job, 5, dict.fromkeys((1, 2, 3), 1)) == []
    assert job.run(900) == []


def test_a_rank_that_told_each_step_and_stands_alone_is_told_though_the_others_go_on() -> None:
    job = Job(nodes={"a": [0, 1, 2, 3]}, step_s=1.0)
    job.run(60)
    stood = job.step
    job.stuck[2] = {"step": stood, "step_start": job.now, "phase_start": job.now}
    (hang,) = job.run(15)
    assert (hang.kind, hang.rank, hang.onset_step) == ("hang", 2, stood)


def test_a_job_that_tells_one_step_in_a_hundred_hangs_after_five_of_them_and_not_before() -> None:
    job = Job(step_s=1.0)
    every = {0: 100, 1: 100}
    assert _run(job, 1_350, every) == []
    job.monitor, job.start = taken_over(job.monitor, LivenessMonitor("run")), 2
    assert _run(job, 1_150, every) == []  # the new processes know the pace of the old ones
    assert _run(job, 380, {}, moving=False) == []
    assert _run(job, 130, {}, moving=False) == [("hang", "open")]


def test_a_job_without_phases_may_stand_for_a_save_that_nobody_declared_and_is_told_within_a_minute() -> None:
    job = Job(more={"phase": "", "phase_start": 0.0})
    job.run(30)
    assert job.run(28, moving=False) == []
    assert kinds(job.run(12, moving=False)) == [("hang", "open")]
