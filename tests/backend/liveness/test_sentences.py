"""What is said of several ranks reads as of several, and of one as of one."""

from __future__ import annotations

from typing import Any

import pytest

from stabilitybackend.judging.detectors.engine.base import Finding
from support.jobs.watched_job import Job, kinds

STOPPED: dict[str, Any] = {"proc": {"state": "T", "cpu": 0.0}}


def hang_of(job: Job, seconds: int = 15) -> Finding:
    return [finding for finding in job.run(seconds, moving=False) if finding.kind == "hang"][-1]


def trained() -> Job:
    job = Job(nodes={"a": [0, 1], "b": [2, 3], "c": [4, 5]}, more={"proc": {"state": "S", "cpu": 0.0}})
    job.run(60)
    return job


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ((1,), "Suspect: rank 1 (its process is stopped (state T)"),
        ((1, 2), "Suspect: ranks 1, 2 (their processes are stopped (state T)"),
    ],
)
def test_stopped_ranks(ranks: tuple[int, ...], said: str) -> None:
    job = trained()
    job.stuck = dict.fromkeys(ranks, STOPPED)
    assert said in hang_of(job).text


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ((1,), "rank 1: it has finished, while the others still wait for it"),
        ((1, 2), "ranks 1, 2: they have finished, while the others still wait for them"),
    ],
)
def test_ranks_that_have_finished(ranks: tuple[int, ...], said: str) -> None:
    job = trained()
    for rank in ranks:
        job.event("finish", rank)
        job.stuck[rank] = {"alive": False, "state": "finished"}
    assert said in hang_of(job).evidence["verdict"]["because"]


@pytest.mark.parametrize(
    ("nodes", "said", "why"),
    [
        ({"b"}, "have been on a silent node;", "their node has sent nothing"),
        ({"b", "c"}, "have been on silent nodes;", "their nodes have sent nothing"),
    ],
)
def test_silent_nodes(nodes: set[str], said: str, why: str) -> None:
    job = trained()
    job.silent = nodes
    hang = hang_of(job)
    assert said in hang.text
    assert why in hang.text


@pytest.mark.parametrize(
    ("ranks", "said"),
    [((1,), "rank 1 (node a) has had no heartbeat"),
     ((1, 2), "rank 1 (node a) and rank 2 (node b) have had no heartbeat")],
)  # fmt: skip
def test_ranks_whose_python_is_silent(ranks: tuple[int, ...], said: str) -> None:
    job = trained()
    job.stuck = {rank: {"beat": job.beat} for rank in ranks}
    assert said in hang_of(job).text.replace("Rank 1", "rank 1")


@pytest.mark.parametrize(
    ("ranks", "said"),
    [((1,), "The process of rank 1 is gone."), ((1, 2), "The processes of ranks 1, 2 are gone.")],
)
def test_ranks_that_are_gone_in_the_runs_note(ranks: tuple[int, ...], said: str) -> None:
    job = trained()
    job.stuck = {rank: {"alive": False} for rank in ranks}
    job.run(1, moving=False)
    assert job.monitor.status(job.now) == ("crashed", said)


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ((1,), "Pulled down by it, by what it says: rank 1. Rank 1 died earlier by the clock of its node"),
        ((1, 2), "Pulled down by it, by what they say: ranks 1, 2. "
                 "Ranks 1, 2 died earlier by the clocks of their nodes"),
    ],
)  # fmt: skip
def test_ranks_that_were_pulled_down(ranks: tuple[int, ...], said: str) -> None:
    job = trained()
    for rank in ranks:
        job.dies(rank, time=job.now - 2.0, cause="signal", signal=15, signal_name="SIGTERM")
    job.dies(4, cause="crash", signal=11, signal_name="SIGSEGV")
    assert said in job.run(1, moving=False)[-1].text


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ({"c": [4]}, "No data from rank 4: it may be the cause."),
        ({"c": [4, 5]}, "No data from ranks 4, 5: they may be the cause."),
    ],
)
def test_ranks_that_are_not_seen(nodes: dict[str, list[int]], said: str) -> None:
    job = Job(nodes={"a": [0, 1], "b": [2, 3]} | nodes)
    job.run(60)
    job.stuck[1] = {"phase": "data"}
    job.silent = {"c"}
    assert said in hang_of(job).text


@pytest.mark.parametrize(
    ("stuck", "silent"),
    [
        ({1: STOPPED}, set()),
        ({1: STOPPED, 2: STOPPED}, set()),
        ({}, {"b"}),
        ({1: {"phase": "data"}}, set()),
        ({}, set()),
    ],
)
def test_a_text_says_not_for_how_long_and_its_pieces_say_since_when(
    stuck: dict[int, dict[str, Any]], silent: set[str]
) -> None:
    job = trained()
    stood = job.now
    job.stuck, job.silent = stuck, silent
    verdict = hang_of(job).evidence["verdict"]
    since = [one for one in verdict["parts"] if not isinstance(one, str)]
    words = "".join(one if isinstance(one, str) else "#" for one in verdict["parts"])
    assert (words.replace(" for #", ""), [round(one) for one in since]) == (
        verdict["text"],
        [round(stood)] * len(since),
    )
    assert len(since) == words.count(" for #") > 0


def leaves(job: Job, by: str, *ranks: int) -> None:
    """Ranks say that they were asked to end, and leave in order."""
    for rank in ranks:
        job.event("preempted", rank, {"by": by})
        job.stuck[rank] = {"alive": False, "state": "finished"}


@pytest.mark.parametrize(
    ("by", "ranks", "words"),
    [
        ("SIGTERM", [0], ["Rank 0 (node a) was preempted by SIGTERM", "It was asked to end by a scheduler"]),
        ("the queue", [0], ["Rank 0 (node a) was preempted (the queue)", "It was asked to end, and left in order"]),
        ("SIGTERM", [0, 1], ["2 ranks were ended from outside by SIGTERM", "They were asked to end by"]),
        (
            "the queue",
            [0, 1],
            ["2 ranks were ended from outside by preemption", "They were asked to end, and left in order"],
        ),
    ],
)
def test_ranks_that_were_asked_to_end_and_left_in_order_are_preempted(
    by: str, ranks: list[int], words: list[str]
) -> None:
    job = Job(nodes={"a": ranks})
    job.run(30)

    leaves(job, by, *ranks)
    job.run(2, moving=False)

    status, note = job.monitor.status(job.now)
    assert (status, kinds(job.said)) == ("preempted", [("process_death", "open")])
    assert job.said[-1].severity == "warning"
    verdict = job.said[-1].evidence["verdict"]
    assert (verdict["class"], verdict["confidence"]) == ("preempted", "high")
    for word in words:
        assert word in note


@pytest.mark.parametrize("ranks", [[0], [0, 1]])
def test_a_job_that_somebody_stopped_by_hand_has_not_crashed(ranks: list[int]) -> None:
    job = Job(nodes={"a": ranks})
    job.run(30)

    for rank in ranks:
        job.event("exception", rank, {"type": "KeyboardInterrupt", "message": ""})
        job.dies(rank)
    job.run(2, moving=False)

    status, note = job.monitor.status(job.now)
    assert status == "stopped"
    assert note.startswith("Rank 0 (node a) was stopped by hand (Ctrl-C) at step")


@pytest.mark.parametrize(("message", "end"), [("bad batch", "."), ("bad batch.", ""), ("bad batch!", "")])
def test_the_text_of_an_exception_is_followed_by_one_full_stop(message: str, end: str) -> None:
    job = Job(nodes={"a": [0]})
    job.run(30)

    job.event("exception", 0, {"type": "ValueError", "message": message})
    job.dies(0)
    job.run(2, moving=False)

    assert job.said[-1].text.endswith(f": ValueError: {message}{end}")


def test_a_rank_that_crashed_while_others_left_in_order_is_a_crash() -> None:
    job = Job(nodes={"a": [0, 1]})
    job.run(30)

    job.dies(1, cause="crash", signal=11, signal_name="SIGSEGV")
    leaves(job, "SIGTERM", 0)
    job.run(2, moving=False)

    assert job.monitor.status(job.now)[0] == "crashed"
    assert "Rank 1" in job.said[-1].title
    assert job.said[-1].severity == "critical"
