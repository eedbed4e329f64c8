"""How a process died is told in words, and the first death is the root of those that it pulls down."""

from __future__ import annotations

from typing import Any

import pytest

from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.incidents.incidents import IncidentBook
from stabilitybackend.judging.incidents.rollback_target import UsableOf
from stabilitybackend.judging.liveness.monitor import LivenessMonitor
from stabilitybackend.schema.incidents import Incident
from support.jobs.watched_job import START, Job, event, kinds, source


def trained(**nodes: list[int]) -> Job:
    job = Job(nodes=nodes or {"a": [0, 1], "b": [2, 3]})
    job.run(30)
    return job


def last(job: Job, seconds: int = 1) -> Finding:
    return job.run(seconds, moving=False)[-1]


@pytest.mark.parametrize(
    ("facts", "title", "confidence"),
    [
        ({"cause": "oom_kill", "signal": 9, "signal_name": "SIGKILL", "oom": {"text": "Out of memory"}},
         "Rank 1 was killed by the kernel for memory (OOM)", "high"),
        ({"cause": "signal", "signal": 9, "signal_name": "SIGKILL"},
         "Rank 1 was killed from outside by SIGKILL", "high"),
        ({"cause": "crash", "signal": 11, "signal_name": "SIGSEGV", "fatal": "Fatal Python error: Segmentation fault"},
         "Rank 1 crashed with SIGSEGV", "high"),
        ({"cause": "exit_code", "exit_code": 3}, "Rank 1 ended with exit code 3", "high"),
        ({"cause": "unknown"}, "The process of rank 1 died", "low"),
        ({"cause": "magic"},
         "The process of rank 1 died", "low"),
    ],
)  # fmt: skip
def test_a_death_is_named_by_its_cause(facts: dict[str, Any], title: str, confidence: str) -> None:
    job = trained()
    job.dies(1, **facts)
    said = last(job)
    verdict = said.evidence["verdict"]
    assert (said.title, said.rank, said.node, said.severity) == (title, 1, "a", "critical")
    assert verdict["class"] == (facts["cause"] if facts["cause"] != "magic" else "unknown")
    assert (verdict["culprits"], verdict["nodes"], verdict["confidence"]) == ([1], ["a"], confidence)
    assert verdict["decided_after_s"] == 1.0


def test_an_exception_is_the_cause_whatever_the_exit_code() -> None:
    job = trained()
    job.event("exception", 2, {"type": "ValueError", "message": "bad batch"})
    job.dies(2, cause="exit_code", exit_code=1)
    said = last(job)
    assert said.evidence["verdict"]["class"] == "exception"
    assert "ValueError: bad batch" in said.text


def test_the_gpu_of_the_rank_is_named() -> None:
    job = Job(nodes={"a": [0, 1]}, more={"gpu": {"index": 3, "uuid": "GPU-3"}, "proc": {"state": "R"}})
    job.run(30)
    job.dies(1, cause="crash", signal=7, signal_name="SIGBUS")
    said = last(job)
    assert "(node a, GPU 3)" in said.text
    assert said.evidence["verdict"]["gpus"] == [{"rank": 1, "node": "a", "index": 3, "uuid": "GPU-3"}]


def test_deaths_told_in_another_order_are_put_in_the_order_of_their_times() -> None:
    job = trained()
    first = job.now
    job.now += 5
    job.dies(3, time=first + 3.0, cause="signal", signal=15, signal_name="SIGTERM")
    last(job)
    job.dies(0, time=first, cause="oom_kill", signal=9, signal_name="SIGKILL")
    said = last(job)
    assert said.title == "Rank 0 was killed by the kernel for memory (OOM)"
    assert [death["rank"] for death in said.evidence["deaths"]] == [0, 3]
    assert "Pulled down by it, by what it says: rank 3." in said.text
    assert len({finding.key for finding in job.said}) == 1


@pytest.mark.parametrize(
    "message",
    [
        "NCCL error: unhandled system error",
        "[gloo] Connection closed by peer [10.0.0.1]:21",
        "Connection reset by peer",
    ],
)
def test_a_peer_that_only_passes_on_an_end_is_not_the_root_though_its_clock_says_earlier(message: str) -> None:
    job = trained()
    said = {"type": "RuntimeError", "message": message}
    job.monitor.event(event("exception", job.now - 2.0, job.step, said, source=source(2), rank=2), job.now)
    job.dies(1, cause="crash", signal=11, signal_name="SIGSEGV")
    root = last(job)
    assert root.rank == 1
    assert "died earlier by the clock of its node" in root.text


def test_a_death_long_after_does_not_become_the_root() -> None:
    job = trained()
    job.dies(2, time=job.now, cause="signal", signal=15, signal_name="SIGTERM")
    job.dies(1, time=job.now + 90.0, cause="crash", signal=11, signal_name="SIGSEGV")
    assert last(job).rank == 2


def test_a_process_that_started_by_a_clock_put_back_still_ends_the_incident() -> None:
    job = trained(a=[0, 1])
    job.start = 9
    job.run(5)
    said = {"source": source(1, 9), "rank": 1, "evidence": "gone"}
    job.monitor.event(event("process_death", job.now, job.step, said), job.now)
    job.run(2, moving=False)
    job.start = 2  # by its own clock older than the dead one
    assert kinds(job.run(3))[-1] == ("process_death", "resolved")
    assert job.monitor.status(job.now)[0] == "running"


def test_a_death_is_told_in_the_next_second_and_no_hang_beside_it() -> None:
    job = trained()
    job.dies(1, cause="signal", signal=9, signal_name="SIGKILL")
    assert kinds(job.run(60, moving=False)) == [("process_death", "open")]


def test_a_new_process_that_dies_at_once_is_told_however_far_behind_its_nodes_clock_is() -> None:
    job = Job()
    job.run(20)
    job.dies(1)
    job.run(3)
    job.start, job.stuck = 2, {}
    assert kinds(job.run(3)) == [("process_death", "resolved")]
    said = {"source": source(0, 2), "rank": 0, "cause": "crash", "signal_name": "SIGSEGV"}
    job.monitor.event(event("process_death", job.now - 60, 3, said), job.now)
    assert kinds(job.run(1)) == [("process_death", "open")]


def test_a_job_that_comes_up_behind_the_step_of_its_death_is_known_to_run_again() -> None:
    job = trained()
    book = IncidentBook("run")

    def take(found: list[Finding]) -> None:
        for finding in found:
            book.apply(finding, segment=0, time=job.now, checkpoints=UsableOf([]))

    job.monitor.event(event("exception", job.now, job.step - 3, source=source(0), rank=0), job.now)
    take(job.run(2, moving=False))
    job.start, job.step = 2, 1
    take(job.run(2, moving=False))
    assert [(one.kind, one.state) for one in book.all()] == [("process_death", "resolved")]


def test_a_job_that_a_scheduler_ends_has_no_rank_to_blame() -> None:
    job = trained()
    for rank in range(4):
        job.dies(rank, cause="signal", signal=15, signal_name="SIGTERM")
    said = last(job)
    verdict = said.evidence["verdict"]
    assert said.title == "The job was ended from outside by SIGTERM"
    assert (said.rank, said.node, verdict["culprits"], verdict["nodes"]) == (None, None, [], [])
    assert said.severity == "warning"


TERM = {"cause": "signal", "signal": 15, "signal_name": "SIGTERM"}
KILL = {"cause": "signal", "signal": 9, "signal_name": "SIGKILL"}
EXIT_143 = {"cause": "exit_code", "exit_code": 143}


def severity_of(*deaths: tuple[float, dict[str, Any]]) -> tuple[str, str]:
    """Return severity and title after the ranks 0, 1, ... ended so many seconds after the first."""
    job = trained()
    for rank, (after_s, how) in enumerate(deaths):
        job.dies(rank, time=job.now + after_s, **how)
    said = last(job)
    return said.severity, said.title


def test_a_job_of_one_rank_that_is_asked_to_end_is_a_preemption() -> None:
    job = trained(a=[0])
    job.dies(0, **TERM)
    said = last(job)
    assert (said.severity, said.title) == ("warning", "Rank 0 was ended from outside by SIGTERM")
    assert "a scheduler (preemption, time limit, eviction), a launcher or a person ended the job." in said.text
    job.start, job.stuck = 9, {}
    over = [finding for finding in job.run(3) if finding.kind == "process_death"][-1]
    assert (over.severity, over.state) == ("info", "resolved")


@pytest.mark.parametrize("how", [TERM, EXIT_143], ids=["signal", "exit code 143"])
def test_a_rank_that_is_killed_after_the_grace_of_a_preemption_changes_nothing(how: dict[str, Any]) -> None:
    assert severity_of((0.0, how), (0.1, how), (30.0, KILL))[0] == "warning"


@pytest.mark.parametrize("cause", [KILL, {"cause": "exit_code", "exit_code": 1}, {"cause": "unknown"}])
@pytest.mark.parametrize("skew_s", [-0.5, 0.5])
def test_ranks_that_a_launcher_ends_after_a_death_are_no_preemption(cause: dict[str, Any], skew_s: float) -> None:
    assert severity_of((0.0, TERM), (skew_s, cause), (0.1, TERM))[0] == "critical"


def hanging() -> Job:
    """Return a job of two nodes whose rank 1 stands in its data; its hang is open."""
    job = trained()
    job.stuck[1] = {"phase": "data"}
    job.run(15, moving=False)
    assert kinds(job.said) == [("hang", "open")]
    return job


def ended(job: Job, *ranks: int, name: str = "SIGTERM", **facts: Any) -> Finding:
    for rank in ranks:
        job.dies(rank, cause="signal", signal=1, signal_name=name, **facts)
    return next(finding for finding in job.run(2, moving=False) if finding.kind == "process_death")


def stored(finding: Finding) -> Incident:
    book = IncidentBook("run")
    (incident,) = book.apply(finding, segment=0, time=START, checkpoints=UsableOf([]))
    return incident


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGINT"])
def test_a_hanging_job_that_somebody_ends_is_no_second_critical_incident(name: str) -> None:
    job = hanging()
    said = ended(job, 0, 1, 2, 3, name=name)
    assert (said.severity, said.rank) == ("warning", None)
    assert said.title == f"The job hung and was ended from outside by {name}"
    assert said.text.endswith(
        f"The job hung before, at step {job.step}: rank 1 (node a) in data; somebody or its launcher ended it."
    )
    assert ("hang", "resolved") in kinds(job.said)
    assert "find out who" not in stored(said).suggestion.text


def test_the_one_hanging_rank_that_is_killed_is_named_and_told_as_ended() -> None:
    said = ended(hanging(), 1, name="SIGKILL")
    assert (said.severity, said.rank) == ("warning", 1)
    assert said.title == "Rank 1 was killed from outside by SIGKILL while the job hung"


def test_a_launcher_that_asks_first_and_then_kills_is_one_end() -> None:
    job = hanging()
    ended(job, 0, 2, 3)
    said = ended(job, 1, name="SIGKILL")
    assert (said.severity, said.title) == ("warning", "The job hung and was ended from outside by SIGKILL, SIGTERM")
    assert {finding.key for finding in job.said if finding.kind == "process_death"} == {said.key}


@pytest.mark.parametrize(
    "facts",
    [
        {"cause": "crash", "signal": 6, "signal_name": "SIGABRT", "fatal": "ProcessGroupNCCL's watchdog"},
        {"cause": "oom_kill", "signal": 9, "signal_name": "SIGKILL"},
        {"cause": "exception", "exception": {"type": "RuntimeError", "message": "NCCL timeout"}},
        {"cause": "unknown"},
    ],
)
def test_a_death_that_nobody_sent_from_outside_is_critical_also_when_the_job_hung(facts: dict[str, Any]) -> None:
    job = hanging()
    if "exception" in facts:
        job.event("exception", 0, facts["exception"])
    job.dies(0, **{name: fact for name, fact in facts.items() if name != "exception"})
    said = ended(job, 1, 2, 3)
    assert (said.severity, said.evidence["hung"]) == ("critical", None)


def test_a_crash_beyond_those_that_are_described_is_critical_too() -> None:
    job = trained(a=list(range(20)))
    job.stuck[1] = {"phase": "data"}
    job.run(15, moving=False)
    ended(job, *range(16))
    assert ended(job, 16).severity == "warning"
    job.dies(17, cause="crash", signal=11, signal_name="SIGSEGV")
    assert last(job).severity == "critical"


def test_a_death_from_before_the_hang_that_is_told_late_is_what_the_others_wait_for() -> None:
    job = hanging()
    assert ended(job, 2, name="SIGKILL", time=job.now - 15.0).severity == "critical"


def test_a_server_that_was_restarted_knows_the_hang_and_the_deaths_from_their_incidents() -> None:
    job = hanging()
    hang = stored(job.said[-1])
    job.monitor = LivenessMonitor("run")
    job.monitor.load([hang])
    job.run(3, moving=False)
    said = ended(job, 0, 1, 2)
    assert (said.severity, "rank 1 (node a) in data" in said.text) == ("warning", True)
    job.monitor = LivenessMonitor("run")
    job.monitor.load([stored(said)])
    assert ended(job, 3).severity == "warning"


def test_processes_that_are_seen_to_be_gone_before_word_of_their_death_comes_are_of_the_hang() -> None:
    job = hanging()
    job.stuck = {rank: {"alive": False} for rank in range(4)}
    assert kinds(job.run(2, moving=False)) == [("hang", "resolved")]
    assert ended(job, 0, 1, 2, 3).severity == "warning"


def test_a_job_that_trained_again_after_its_hang_and_is_killed_then_did_not_hang() -> None:
    job = hanging()
    job.stuck = {}
    job.lost_s = 15.0
    job.run(20)
    assert kinds(job.said)[-1] == ("hang", "resolved")
    assert ended(job, 0, 1, 2, 3, name="SIGKILL").severity == "critical"


def test_an_exit_code_that_comes_after_the_slot_said_left_is_the_death_that_the_others_follow_from() -> None:
    job = trained()
    job.stuck[1] = {"state": "left"}
    job.run(2, moving=False)
    job.event("exception", 0, {"type": "RuntimeError", "message": "gloo: Connection closed by peer"})
    job.dies(0, cause="exception", exit_code=1)
    job.dies(1, cause="exit_code", exit_code=3)
    said = last(job)
    assert (said.title, said.evidence["verdict"]["culprits"]) == ("Rank 1 ended with exit code 3", [1])
    job.stuck[1] = {"state": "left", "alive": False}
    job.run(60, moving=False)
    assert job.monitor.status(job.now)[0] == "crashed"


def test_who_dies_without_having_told_a_step_is_said_to_have_died_at_the_step_of_its_job() -> None:
    job = Job()
    job.stuck[1] = {"step": -1, "step_start": 0.0}
    job.run(30)
    data = {"source": source(1), "rank": 1, "pid": 101, "cause": "exit_code", "exit_code": 5}
    job.monitor.event(event("process_death", job.now, None, data), job.now)
    (said,) = job.monitor.tick(job.now)
    assert f"exit code 5 while the job was at step {job.step}" in said.text
    assert (said.onset_step, said.step) == (job.step, job.step)


def test_an_exception_of_a_loaders_worker_says_what_was_wrong_and_not_its_traceback() -> None:
    lines = "".join(f'  File "loader.py", line {at}, in fetch\n    data = [self.dataset[i]]\n' for at in range(60))
    head = "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
    job = trained()
    job.event("exception", 1, {"type": "ValueError", "message": f"{head}{lines}ValueError: corrupt shard-0031.tar\n"})
    said = last(job)
    told = "ValueError: Caught ValueError in DataLoader worker process 0. ValueError: corrupt shard-0031.tar."
    assert told in said.text
    assert "corrupt shard-0031.tar" in said.evidence["exception"]["message"]


@pytest.mark.parametrize("message", ["NCCL: Watchdog caught collective operation timeout", "gloo: Timed out waiting"])
def test_who_gave_up_waiting_is_no_sure_culprit_and_the_hang_before_it_is_named(message: str) -> None:
    job = hanging()
    job.event("exception", 0, {"type": "RuntimeError", "message": message})
    said = next(one for one in job.run(1, moving=False) if one.kind == "process_death")
    assert said.evidence["verdict"]["confidence"] == "medium"
    assert f"the job hung before, at step {job.step}: rank 1 (node a) in data." in said.text
    job = trained()
    job.event("exception", 0, {"type": "RuntimeError", "message": message})
    assert "what it waited for did not come" in last(job).text


def test_of_a_rank_that_waited_for_one_that_was_over_the_text_names_that_one() -> None:
    job = trained()
    job.event("finish", 1)
    job.stuck[1] = {"state": "finished", "alive": False}
    job.run(2, moving=False)
    job.event("exception", 0, {"type": "RuntimeError", "message": "gloo: Connection closed by peer"})
    said = last(job)
    assert "It need not be the cause: rank 1 was over before." in said.text
    assert said.evidence["deaths"][0]["over_before"] == [1]
