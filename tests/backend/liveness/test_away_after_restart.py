"""A node that dies while the server is away is reported after the server's restart like one that dies before it."""

from __future__ import annotations

from stabilitybackend.judging.incidents.incidents import IncidentBook
from stabilitybackend.judging.incidents.rollback_target import UsableOf
from stabilitybackend.judging.liveness.budgets import Limits
from stabilitybackend.judging.liveness.monitor import LivenessMonitor
from support.jobs.watched_job import START, Job, kinds
from support.saved_state import taken_over

TWO_NODES = {"a": [0, 1], "b": [2, 3]}


def restarted(job: Job, *, lost_s: float = 30.0, incidents: IncidentBook | None = None) -> Job:
    """Put the monitor of a server that was restarted in the place of the one before."""
    monitor = taken_over(job.monitor, LivenessMonitor("run", Limits(agent_lost_s=lost_s)))
    monitor.load([] if incidents is None else incidents.all())
    job.now += 5.0
    monitor.expect_agents(job.now)
    job.monitor = monitor
    return job


def running() -> Job:
    job = Job(nodes=TWO_NODES)
    job.run(20)
    return job


def test_a_job_of_which_no_agent_comes_back_opens_one_incident_about_all_of_them() -> None:
    job = restarted(running())
    job.silent = {"a", "b"}
    assert job.run(29) == []
    assert job.monitor.status(job.now) == ("running", "Waiting for the agents to come back.")
    (said,) = job.run(10)
    assert (said.kind, said.state, said.title) == ("agent_lost", "open", "2 agents on a and b do not report")
    assert "No agent on a and b has connected since the server was restarted" in said.text
    assert said.evidence["rank_count"] == 4
    assert job.monitor.status(job.now)[0] == "unreachable"


def test_the_node_that_does_not_come_back_is_named_while_the_other_one_reports() -> None:
    job = restarted(running())
    job.silent = {"b"}
    (said,) = job.run(40)
    assert (said.kind, said.node, said.evidence["rank_count"]) == ("agent_lost", "b", 2)


def test_agents_that_come_back_within_their_time_are_no_incident() -> None:
    job = restarted(running())
    job.silent = {"a", "b"}
    job.run(24)
    job.silent = set()
    assert job.run(60) == []


def test_the_incident_is_over_when_the_agents_come_back_late() -> None:
    job = restarted(running())
    job.silent = {"a", "b"}
    job.run(40)
    job.silent = set()
    said = job.run(5)
    assert kinds(said) == [("agent_lost", "resolved")]
    assert said[0].text.startswith("The agents on a and b report again. It had not come back after a restart")


def test_what_was_reported_before_the_restart_is_not_reported_again() -> None:
    job, book = running(), IncidentBook("run")
    job.silent = {"b"}
    (lost,) = job.run(40)
    book.apply(lost, segment=0, time=START, checkpoints=UsableOf([]))
    restarted(job, incidents=book)
    assert job.run(60) == []
    job.silent = set()
    assert kinds(job.run(5)) == [("agent_lost", "resolved")]


def test_an_agent_that_has_little_time_by_a_setting_has_what_it_takes_to_come_back() -> None:
    job = restarted(running(), lost_s=3.0)
    job.silent = {"a", "b"}
    assert job.run(20) == []
