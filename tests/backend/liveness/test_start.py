"""Before the first step: ranks that do not come, in the first start of a job or in a later one."""

from __future__ import annotations

import pytest

from stabilitybackend.judging.liveness.job_snapshot import JobStart
from support.jobs.stalled_job import C10D, PROBED, RUN, answered, stands, told, verdict
from support.jobs.watched_job import START, Job, source, stack

RENDEZVOUS = "/venv/lib/python3.11/site-packages/torch/distributed/rendezvous.py"


def before_the_first_step(here: list[int], world: int, seconds: int = 12) -> Job:
    """Return a job that waits in its start, of which only the ranks `here` have come."""
    waiting = {"step": -1, "step_start": 0.0, "phase": "init", "expect_s": 6.0, "phase_start": START + 1.0}
    job = Job(nodes={"a": here}, more={**PROBED, "world_size": world, **waiting})
    job.run(seconds, moving=False)
    return job


JOINS = stack((RENDEZVOUS, "_create_c10d_store"), (C10D, "init_process_group"), (RUN, "main"))


def test_before_the_first_step_the_ranks_that_never_came_are_the_missing_peers() -> None:
    job = before_the_first_step([0, 1, 2], world=4)
    assert told(job) == ("peer_missing", [3])
    found = answered(job, {rank: {"stack": JOINS} for rank in (0, 1, 2)})
    assert found.title == "The job hangs before its first step: rank 3 has not come"
    assert found.text.startswith("Rank 3 has not come; the other 3 have waited in init_process_group.")
    assert found.evidence["verdict"]["confidence"] == "high"
    assert "may be the cause" not in found.text


def test_where_few_ranks_report_the_others_are_suspects_only_once_one_is_seen_to_wait_for_them() -> None:
    job = before_the_first_step([0], world=4)
    assert told(job) == ("overdue", [0])
    found = answered(job, {0: {"stack": JOINS}})
    assert told(job) == ("peer_missing", [1, 2, 3])
    assert found.evidence["verdict"]["confidence"] == "medium"
    assert told(before_the_first_step([0], world=1)) == ("overdue", [0])


@pytest.mark.parametrize("word", ["ordered", "told", "silent"])
def test_a_job_that_comes_up_on_fewer_ranks_runs_and_finishes_without_those_that_are_no_more(word: str) -> None:
    job = Job(nodes={"a": [0, 1], "b": [2]})
    job.run(10)
    job.silent = {"b"} if word == "silent" else set()
    for rank in (0, 1) if word == "silent" else range(3):
        job.dies(rank, **({"ordered": "c-1"} if word == "ordered" else {}))
    job.run(5, moving=False)
    assert job.monitor.status(job.now)[0] == "crashed"
    # The agent of node a still tells of the old rank 2, which was there before; b's may say nothing for ever.
    job.start, job.nodes, job.stuck = 60_000_000_000, {"a": [0, 1]}, {}
    job.monitor.newest_start = JobStart(60.0, 2)
    job.run(20)
    assert job.monitor.status(job.now) == ("running", "")
    job.tell("a", [job.slot(0), job.slot(1), job.slot(0) | {"rank": 2, "source": source(2), "alive": False}])
    job.dies(2)  # the word of its agent comes at last
    assert [found.state for found in job.run(5)] == []
    assert job.monitor.status(job.now) == ("running", "")
    job.event("finish", 0)
    job.event("finish", 1)
    job.tell("a", [job.slot(0) | {"rank": 2, "source": source(2), "alive": False}])
    assert job.monitor.status(job.now) == ("finished", "")


def test_a_death_is_over_when_the_job_goes_on_without_the_ranks_that_died() -> None:
    job = Job(nodes={"a": [0, 1], "b": [2, 3]})
    job.run(10)
    job.silent = {"a"}  # its node is lost, the launcher ends the others and starts two ranks on node b
    job.dies(2)
    job.dies(3)
    job.run(5, moving=False)
    job.start, job.nodes, job.stuck = 60_000_000_000, {"b": [0, 1]}, {}
    job.monitor.newest_start = JobStart(60.0, 2)
    (over,) = [found for found in job.run(60) if found.kind == "process_death"]
    assert (over.state, "is none of its ranks any more" in over.text) == ("resolved", True)
    assert job.monitor.status(job.now) == ("running", "")
    assert [found.title for found in job.said if found.state == "open"][1:] == []


def test_another_process_under_the_runs_id_takes_no_rank_from_a_job_that_runs() -> None:
    job = Job(nodes={"a": [0, 1, 2, 3]})
    job.run(10)
    job.monitor.newest_start = JobStart(60.0, 1)
    job.run(5)
    job.dies(2)
    job.run(3)
    assert job.monitor.status(job.now)[0] == "crashed"


def test_after_a_new_start_the_ranks_that_did_not_come_back_are_the_missing_peers() -> None:
    job = stands({}, seconds=0)
    for rank in range(4):
        job.dies(rank)
    job.run(3, moving=False)
    job.start, job.nodes, job.stuck = 60_000_000_000, {"a": [0, 1], "b": [3]}, {}
    job.more |= {"step": -1, "step_start": 0.0, "phase": "init", "expect_s": 6.0, "phase_start": job.now}
    job.run(4, moving=False)
    assert job.monitor.status(job.now) == ("running", "In init.")
    job.run(12, moving=False)
    assert told(job) == ("peer_missing", [2])
    assert verdict(job)["confidence"] == "high"
    assert verdict(job)["blind"][0] == "rank 2: not connected since the job was restarted"
    assert job.monitor.status(job.now)[0] == "stalled"
