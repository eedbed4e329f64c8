"""What each rank does is judged once, in the server: who stalls, who waits for it, who is behind, silent or gone."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from stabilitybackend.judging.liveness.rank_status import RankStatuses
from stabilitybackend.schema.gpus import GPUS, GpuState
from stabilitybackend.schema.ranks import RANKS, RankStatus
from support.jobs.watched_job import START, Job, source

#: Where a rank stalls, from the 60th second on.
STOOD = {"step": 120, "step_start": START + 60, "phase": "backward", "phase_start": START + 60.1}
LATE = STOOD | {"phase": "data", "phase_start": START + 60}


def _job(ranks: int = 16) -> Job:
    nodes: dict[str, list[int]] = {}
    for rank in range(ranks):
        nodes.setdefault(f"n{rank // 8}", []).append(rank)
    job = Job(nodes=nodes)
    job.run(60)
    return job


def _stalls(job: Job, stuck: dict[int, dict[str, Any]], seconds: int = 74) -> None:
    job.stuck = stuck
    job.run(seconds, moving=False)


def _judged(job: Job, *culprits: int) -> RankStatuses:
    return job.monitor.statuses(set(culprits), job.now)


def _words(judged: RankStatuses) -> list[str]:
    ranks = sorted(judged.of, key=lambda name: int(name[1:].split("-")[0]))
    return [judged.of[name] for name in ranks]


def test_pages_get_what_follows_from_each_status_of_a_rank_and_each_state_of_a_gpu_worst_first() -> None:
    assert list(RANKS["statuses"]) == [*get_args(RankStatus)]
    assert list(GPUS["states"]) == [*get_args(GpuState)[::-1], "none"]


def test_all_ranks_of_a_job_that_makes_its_steps_run() -> None:
    assert _judged(_job()) == RankStatuses({source(rank): "running" for rank in range(16)}, [])


def test_the_rank_furthest_back_is_past_its_budget_and_all_others_wait_for_it() -> None:
    job = _job()
    _stalls(job, dict.fromkeys(range(16), STOOD) | {5: LATE})
    assert _words(_judged(job)) == ["waits"] * 5 + ["over"] + ["waits"] * 10


def test_where_all_stall_at_one_place_nobody_is_told_apart() -> None:
    job = _job()
    _stalls(job, dict.fromkeys(range(16), STOOD))
    assert _words(_judged(job)) == ["over"] * 16


def test_a_dead_rank_is_whom_all_others_wait_for() -> None:
    job = _job()
    _stalls(job, dict.fromkeys(range(16), STOOD) | {9: STOOD | {"alive": False}})
    assert _words(_judged(job)) == ["waits"] * 9 + ["dead"] + ["waits"] * 6


@pytest.mark.parametrize(
    ("culprit", "status"),
    [
        (LATE, "over"),
        (STOOD | {"alive": False}, "dead"),
        (STOOD | {"state": "finished", "alive": False}, "finished"),
    ],
    ids=["late", "gone", "finished"],
)
def test_the_others_wait_for_whom_an_open_verdict_names(culprit: dict[str, Any], status: str) -> None:
    job = _job(2)
    _stalls(job, {0: STOOD, 1: culprit})
    judged = _judged(job, 1)
    assert (_words(judged), judged.waits_for) == (["waits", status], [1])


def test_a_verdict_on_ranks_that_do_not_stall_any_more_blames_nobody() -> None:
    judged = _judged(_job(2), 1)
    assert (_words(judged), judged.waits_for) == (["running"] * 2, [])


def test_beside_a_silent_node_that_the_verdict_names_the_furthest_back_is_in_trouble_too() -> None:
    job = _job(9)
    job.silent.add("n1")
    _stalls(job, dict.fromkeys(range(8), STOOD) | {3: LATE})
    judged = _judged(job, 8)
    assert (_words(judged), judged.waits_for) == ([*["waits"] * 3, "over", *["waits"] * 4, "unheard"], [8])


def test_ranks_past_their_budget_wait_while_another_one_is_rightly_long_under_way() -> None:
    job = _job(2)
    _stalls(job, {0: STOOD, 1: STOOD | {"phase": "save"}}, 45)
    assert _words(_judged(job)) == ["waits", "long"]


@pytest.mark.parametrize(
    ("slot", "status"),
    [
        ({}, "running"),
        ({"phase": "save"}, "long"),
        ({"phase": "my_own", "expect_s": 90}, "long"),
        ({"state": "finished", "alive": False}, "finished"),
        ({"state": "exception"}, "dead"),
        ({"state": "left", "alive": False}, "dead"),
        ({"trouble": "the slot is torn"}, "unread"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_each_slot_has_its_status(slot: dict[str, Any], status: str) -> None:
    job = _job(4)
    job.stuck = {3: slot}
    job.run(1)
    assert _words(_judged(job)) == ["running"] * 3 + [status]


@pytest.mark.parametrize(("behind", "status"), [(4, "running"), (10, "behind")])
def test_more_than_what_lies_between_two_samples_is_behind(behind: int, status: str) -> None:
    job = _job(4)
    for _ in range(5):
        job.stuck = {3: {"step": job.step + 2 - behind, "step_start": job.now}}
        job.run(1)
    assert _words(_judged(job))[3] == status


def test_a_rank_that_tells_one_step_in_fifty_is_not_behind() -> None:
    job = _job(2)
    for _ in range(60):
        told = job.step - job.step % 50
        job.stuck = {1: {"step": told, "step_start": START + told * job.step_s, "phase": "", "phase_start": 0.0}}
        job.run(1)
    assert _words(_judged(job)) == ["running"] * 2


def test_ranks_of_a_node_that_is_silent_or_away_are_not_heard() -> None:
    job = _job()
    job.silent.add("n1")
    job.run(8)
    assert _words(_judged(job)) == ["running"] * 8 + ["unheard"] * 8
    job.silent.clear()
    job.run(1)
    job.monitor.agent_disconnected("agent-n0", job.now)
    assert _words(_judged(job)) == ["unheard"] * 8 + ["running"] * 8


def test_a_process_that_another_one_has_replaced_has_no_status() -> None:
    job = _job(2)
    job.start = 2
    job.run(3)
    assert sorted(_judged(job).of) == [source(0, 2), source(1, 2)]


def test_the_words_are_listed_worst_first() -> None:
    assert (get_args(RankStatus)[0], get_args(RankStatus)[-1]) == ("dead", "running")
