"""However many ranks a crash takes with it, and however far apart in time, it is one incident with one root."""

from __future__ import annotations

from typing import Any

import pytest

from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.liveness import monitor as module
from support.jobs.watched_job import Job, kinds, source

PASSED_ON = {"type": "DistBackendError", "message": "NCCL error: remote process exited or there was a network error"}


def nodes(count: int, each: int = 8) -> Job:
    """Return a job that trains on so many nodes of 8 ranks."""
    job = Job(nodes={f"n{at:03}": list(range(at * each, at * each + each)) for at in range(count)})
    job.run(10)
    return job


def ranks(job: Job) -> list[int]:
    return [rank for held in job.nodes.values() for rank in held]


def deaths(job: Job) -> list[Finding]:
    return [finding for finding in job.said if finding.kind == "process_death"]


@pytest.mark.parametrize("count", [8, 128])
def test_all_ranks_that_fail_after_one_that_raised_are_one_incident_that_counts_them(count: int) -> None:
    job = nodes(count)
    for rank in reversed(ranks(job)):  # the root is told last but a few
        job.event("exception", rank, {"type": "ValueError", "message": "bad shard"} if rank == 5 else PASSED_ON)
    job.run(1, moving=False)
    for rank in ranks(job):
        job.dies(rank, cause="exit_code", exit_code=1)
    job.run(5, moving=False)
    (said, *_) = deaths(job)
    assert {finding.key for finding in deaths(job)} == {said.key}
    assert said.title == f"Rank 5 ended with ValueError; {8 * count - 1} ranks of {count} nodes died after it"
    assert "ValueError: bad shard" in said.text
    assert (said.rank, said.evidence["verdict"]["culprits"]) == (5, [5])
    last = deaths(job)[-1]
    assert (last.evidence["rank_count"], last.evidence["node_count"]) == (8 * count, count)
    assert len(last.evidence["deaths"]) == 16


def test_what_is_known_beside_a_death_is_looked_up_for_those_that_are_described_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    known_beside = module.known_beside

    def counted(dead: Any, every: Any) -> dict[str, Any]:
        asked.append(dead.rank)
        return known_beside(dead, every)

    monkeypatch.setattr(module, "known_beside", counted)
    job = nodes(64)
    for rank in ranks(job):
        job.event("exception", rank, PASSED_ON)
    for rank in ranks(job):
        job.dies(rank, cause="exit_code", exit_code=1)
    job.run(2, moving=False)
    assert len(asked) <= 2 * 16 + 1, "each look is one over all ranks"


def test_deaths_that_come_seconds_apart_join_the_incident_and_are_no_new_one() -> None:
    job = nodes(8)
    for rank in ranks(job):
        job.event("exception", rank, PASSED_ON if rank else {"type": "ValueError", "message": "bad shard"})
        if rank % 4 == 0:
            job.run(1, moving=False)
    job.run(1, moving=False)
    assert len({finding.key for finding in deaths(job)}) == 1
    assert kinds(job.run(5, moving=False)) == []


def test_a_launcher_that_comes_to_rank_after_rank_while_others_run_again_is_one_incident() -> None:
    job = nodes(8)
    for rank in ranks(job):
        job.dies(rank, cause="signal", signal=15, signal_name="SIGTERM")
        if rank >= 4:
            job.stuck[rank - 4] = {"source": source(rank - 4, 2), "alive": True}
        job.run(1, moving=False)
    assert len({finding.key for finding in deaths(job)}) == 1


def test_a_rank_that_crashes_by_itself_after_the_job_went_on_is_an_incident_of_its_own() -> None:
    job = nodes(2)
    job.dies(3, cause="crash", signal=11, signal_name="SIGSEGV")
    job.run(2, moving=False)
    job.stuck[3] = {"source": source(3, 2), "alive": True}
    job.run(10)
    job.dies(7, cause="crash", signal=7, signal_name="SIGBUS")
    job.run(2, moving=False)
    assert kinds(deaths(job)) == [("process_death", state) for state in ("open", "resolved", "open")]
    assert len({finding.key for finding in deaths(job)}) == 2
