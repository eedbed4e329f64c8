"""The rank that is slow by itself is named with its phase; those that wait for it are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.liveness.slow_ranks import SlowRanks
from support.jobs.watched_job import Job, kinds

PHASES = {"data": 0.05, "forward": 0.10, "backward": 0.20, "optimizer": 0.05}


def paced(
    ranks: int,
    slow: Callable[[int, int], dict[str, float]],
    seconds: int = 90,
    logging: tuple[int, ...] = (),
    again_with: Callable[[Job], SlowRanks | None] = lambda job: None,
    **more: Any,
) -> Job:
    """Return a job whose ranks meet in backward: who is slow elsewhere makes the others wait there.

    Args:
        slow: (rank, second) -> what it needs more in some phases, seconds a step.
        logging: ranks that log times of their own work. more: fields of all slots.
        again_with: what a server that starts again in this second knows of slow ranks, None while none does.
    """
    job = Job(nodes={f"n{node}": list(range(node * 8, min(ranks, node * 8 + 8))) for node in range((ranks + 7) // 8)})
    job.more |= more
    totals = {rank: dict.fromkeys(PHASES, 0.0) for rank in range(ranks)}
    for second in range(seconds):
        need = {rank: {name: s + slow(rank, second).get(name, 0.0) for name, s in PHASES.items()} for rank in totals}
        longest = max(sum(times.values()) for times in need.values())
        for rank, times in need.items():
            for name, seconds_a_step in times.items():
                wait = longest - sum(times.values()) if name == "backward" else 0.0
                jitter = 0.002 * ((rank * 7 + second) % 5)
                totals[rank][name] += 2 * (seconds_a_step + wait + jitter)
            steps = job.step + 2
            table = {name: [steps, total, 1.0] for name, total in totals[rank].items()}
            job.stuck[rank] = {"phases": table} | {k: v for k, v in job.stuck.get(rank, {}).items() if k != "phases"}
        for rank in logging:
            job.monitor.logs_own_work(rank, job.now)
        job.run(1)
        if (known := again_with(job)) is not None:
            job.monitor._slow = known
    return job


def slow_findings(job: Job) -> list[Finding]:
    return [finding for finding in job.said if finding.kind == "straggler"]


@pytest.mark.parametrize("ranks", [2, 3, 4, 24])
@pytest.mark.parametrize("phase", ["data", "forward"])
def test_a_slow_rank_is_named_with_its_phase_whatever_the_number_of_ranks(ranks: int, phase: str) -> None:
    job = paced(ranks, lambda rank, second: {phase: 0.3} if rank == 1 and second > 30 else {})
    found, *more = slow_findings(job)
    assert {one.key for one in more} <= {found.key}
    assert (found.key, found.rank, found.node, found.evidence["phase"]) == ("straggler:liveness:1", 1, "n0", phase)
    assert found.title.startswith(f"Rank 1 is slow in {phase} since step ")


def test_a_slow_rank_is_named_in_a_late_phase_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(9):
        monkeypatch.setitem(PHASES, f"part_{number}", 0.02)
    monkeypatch.setitem(PHASES, "ema", 0.02)
    job = paced(8, lambda rank, second: {"ema": 0.3} if rank == 1 and second > 30 else {})
    assert {(found.rank, found.evidence["phase"]) for found in slow_findings(job)} == {(1, "ema")}


@pytest.mark.parametrize("ranks", [2, 8, 24])
def test_ranks_of_one_pace_are_not_compared_to_death(ranks: int) -> None:
    assert slow_findings(paced(ranks, lambda rank, second: {})) == []


def test_all_ranks_slow_is_not_ours() -> None:
    assert slow_findings(paced(8, lambda rank, second: {"forward": 1.0} if second > 30 else {})) == []


def test_one_slow_moment_is_none() -> None:
    assert slow_findings(paced(8, lambda rank, second: {"forward": 2.0} if rank == 1 and second == 40 else {})) == []


def test_a_rank_that_keeps_up_again_has_recovered() -> None:
    job = paced(8, lambda rank, second: {"forward": 0.3} if rank == 1 and 20 < second < 60 else {}, seconds=130)
    assert kinds(slow_findings(job)) == [("straggler", "open"), ("straggler", "recovered")]


def test_ranks_of_a_node_that_become_slow_together_are_one_incident() -> None:
    job = paced(
        32, lambda rank, second: {"forward": 0.3 + 0.01 * (rank == 9)} if 8 <= rank < 16 and second > 20 else {}
    )
    assert {(one.key, one.rank, one.evidence["slow_ranks"]) for one in slow_findings(job)} == {
        ("straggler:liveness:9", 9, 8)
    }


@pytest.mark.parametrize(("logging", "found"), [((), 1), ((0,), 1), ((0, 1), 0)])
def test_where_two_ranks_or_more_log_their_own_work_the_detector_judges(logging: tuple[int, ...], found: int) -> None:
    def slow(rank: int, second: int) -> dict[str, float]:
        return {"forward": 0.3} if rank == 1 and second > 30 else {}

    assert len(slow_findings(paced(8, slow, logging=logging))) == found


@pytest.mark.parametrize(("phase", "found"), [("forward", 1), ("eval", 0)])
def test_windows_in_which_a_rank_was_in_a_long_phase_are_not_compared(phase: str, found: int) -> None:
    def slow(rank: int, second: int) -> dict[str, float]:
        return {"forward": 0.3} if rank == 1 else {}

    assert len(slow_findings(paced(8, slow, phase=phase))) == found


@pytest.mark.parametrize(("since", "severity"), [(60, "warning"), (-1, "info")])
def test_a_rank_that_became_slow_is_an_alarm_and_one_that_ever_was_a_note(since: int, severity: str) -> None:
    job = paced(8, lambda rank, second: {"forward": 0.3} if rank == 1 and second > since else {}, seconds=200)
    assert {(one.rank, one.state) for one in slow_findings(job)} == {(1, "open")}
    assert slow_findings(job)[-1].severity == severity


def test_a_server_that_starts_again_goes_on_with_the_slow_rank_that_was_known() -> None:
    job = paced(8, lambda rank, second: {"forward": 0.3} if rank == 1 else {})
    (opened,) = slow_findings(job)
    again = SlowRanks()
    again.load(opened)
    (ended,) = again.tick([], 0.0, over=True, now=0.0)
    assert (ended.key, ended.state, ended.onset_step) == (opened.key, "resolved", opened.onset_step)


@pytest.mark.parametrize(("since", "severity"), [(60, "warning"), (-1, "info")])
def test_a_server_that_starts_again_knows_whether_a_slow_rank_was_usual_before(since: int, severity: str) -> None:
    started: list[SlowRanks] = []

    def again(job: Job) -> SlowRanks | None:
        if started or not slow_findings(job):
            return None
        started.append(SlowRanks())
        started[0].load(slow_findings(job)[-1])
        return started[0]

    def slow(rank: int, second: int) -> dict[str, float]:
        return {"forward": 0.3} if rank == 1 and second > since else {}

    found = slow_findings(paced(8, slow, seconds=260, again_with=again))
    assert found[0].severity == "info"
    assert {one.key for one in found} == {"straggler:liveness:1"}
    assert found[-1].severity == severity
