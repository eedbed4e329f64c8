"""Agents that fall silent by one cause are one incident, in which all are counted and the first ones named."""

from __future__ import annotations

import pytest

from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.incidents.incidents import IncidentBook
from stabilitybackend.judging.incidents.rollback_target import UsableOf
from stabilitybackend.judging.liveness.monitor import LivenessMonitor
from support.jobs.watched_job import START, Job, kinds


def racks(nodes: int, *, racks: int = 4) -> Job:
    """Return a job that trains on so many nodes of one rank each, in racks of equal size."""
    job = Job(nodes={f"rack{at * racks // nodes}-n{at:03}": [at] for at in range(nodes)})
    job.run(20)
    return job


def told(job: Job) -> list[Finding]:
    return [finding for finding in job.said if finding.kind == "agent_lost"]


@pytest.mark.parametrize("nodes", [32, pytest.param(1_024, marks=pytest.mark.soak)])
def test_the_agents_of_a_rack_that_end_together_are_one_incident_with_the_nodes_behind_it(nodes: int) -> None:
    job, each = racks(nodes), nodes // 4
    job.silent = {node for node in job.nodes if node.startswith("rack3-")}
    for node in job.silent:
        job.monitor.agent_disconnected(f"agent-{node}", job.now + 0.3)
    job.run(40)
    (said,) = told(job)
    assert (said.title, said.state, said.node) == (f"{each} agents on rack3-* have ended", "open", None)
    assert (said.evidence["agent_count"], said.evidence["rank_count"]) == (each, each)
    assert said.evidence["nodes"] == sorted(job.silent)[:64]
    assert said.evidence["verdict"]["training"] == "goes on"


def test_agents_whose_last_words_are_seconds_apart_join_the_open_incident() -> None:
    job = racks(8)
    job.silent = {"rack3-n006"}
    job.run(6)
    job.silent = {"rack3-n006", "rack3-n007"}
    job.run(40)
    assert [finding.title for finding in told(job)] == [
        "The agent on rack3-n006 does not report",
        "2 agents on rack3-n006 and rack3-n007 do not report",
    ]
    assert len({finding.key for finding in told(job)}) == 1


def test_an_agent_that_is_lost_much_later_is_an_incident_of_its_own() -> None:
    job = racks(8)
    job.silent = {"rack3-n007"}
    job.run(40)
    job.silent = {"rack3-n007", "rack0-n000"}
    job.run(40)
    assert len({finding.key for finding in told(job)}) == 2


def test_the_incident_is_over_when_the_last_of_them_is_back() -> None:
    job = racks(8)
    away = [node for node in job.nodes if node.startswith("rack3-")]
    job.silent = set(away)
    job.run(40)
    job.silent = {away[1]}
    assert kinds(job.run(3)) == [("agent_lost", "open")]
    assert told(job)[-1].evidence["agent_count"] == 1
    job.silent = set()
    assert kinds(job.run(3)) == [("agent_lost", "resolved")]
    assert told(job)[-1].text.startswith(f"The agents on {away[1]} report again")


def test_a_restarted_server_goes_on_with_the_incident_and_opens_none_beside_it() -> None:
    job, book = racks(8), IncidentBook("run")
    job.silent = {node for node in job.nodes if node.startswith("rack3-")}
    job.run(40)
    (incident,) = book.apply(told(job)[-1], segment=0, time=START, checkpoints=UsableOf([]))
    job.monitor = LivenessMonitor("run")
    job.monitor.load([incident])
    job.silent = set()
    assert kinds(job.run(3)) == [("agent_lost", "resolved")]


def test_what_is_told_of_the_state_of_the_job_names_some_nodes_and_counts_the_others() -> None:
    job = racks(64)
    job.silent = {node for node in job.nodes if not node.startswith("rack0-")}
    job.run(40)
    _, note = job.monitor.status(job.now)
    assert "the 48 agents on rack1-n016, rack1-n017, rack1-n018 and 45 more do not reach the server" in note
