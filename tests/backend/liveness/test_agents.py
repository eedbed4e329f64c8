"""What the silence of an agent means: its process ended, nothing comes through, or only we were away."""

from __future__ import annotations

from typing import Any

from stabilitybackend.schema.health import read_health
from stabilityclient.wire import Health
from support.jobs.watched_job import Job, kinds


def two_nodes() -> Job:
    job = Job(nodes={"a": [0, 1], "b": [2, 3]})
    job.run(60)
    return job


def verdict(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = [finding for finding in job.said if finding.kind == "agent_lost"][-1].evidence["verdict"]
    return found


def test_a_connection_closed_right_after_the_last_word_is_an_agent_that_died() -> None:
    job = two_nodes()
    job.silent = {"b"}
    job.monitor.agent_disconnected("agent-b", job.now + 0.3)
    said = job.run(35)
    assert kinds(said) == [("agent_lost", "open")]
    assert said[0].title == "The agent on b has ended"
    assert (verdict(job)["class"], verdict(job)["training"], verdict(job)["nodes"]) == ("agent_dead", "goes on", ["b"])
    assert verdict(job)["confidence"] == "high"


def test_silence_is_a_partition_also_when_our_ping_gives_up_in_the_end() -> None:
    job = two_nodes()
    job.silent = {"b"}
    job.run(25)
    job.monitor.agent_disconnected("agent-b", job.now)
    assert kinds(job.run(10)) == [("agent_lost", "open")]
    assert (verdict(job)["class"], verdict(job)["training"]) == ("partition", "goes on")


def test_of_a_job_on_one_node_nothing_is_known_of_the_training() -> None:
    job = Job()
    job.run(60)
    job.silent = {"a"}
    job.run(40, moving=False)
    assert (verdict(job)["training"], verdict(job)["confidence"]) == ("unknown", "low")


def test_a_silent_node_for_which_the_others_wait_stands_and_the_hang_says_so() -> None:
    job = two_nodes()
    job.silent = {"b"}
    job.run(40, moving=False)
    assert (verdict(job)["class"], verdict(job)["training"]) == ("partition", "stands")
    hang = next(finding for finding in job.said if finding.kind == "hang")
    assert hang.title == f"The job hangs at step {job.step}: node b silent"


def test_a_lost_node_that_the_hang_names_already_is_told_as_the_same_trouble_and_is_a_warning() -> None:
    job = two_nodes()
    job.silent = {"b"}
    said = job.run(40, moving=False)
    hang = next(finding for finding in said if finding.kind == "hang")
    lost = next(finding for finding in said if finding.kind == "agent_lost")
    assert (hang.severity, hang.evidence["verdict"]["nodes"]) == ("critical", ["b"])
    assert (lost.severity, lost.node) == ("warning", "b")
    assert lost.text.endswith("The hang of the job names b already: it is the same trouble.")
    assert f"reported before: {hang.title}" in verdict(job)["because"]


def test_a_lost_node_refers_to_no_hang_that_is_about_another_node() -> None:
    job = two_nodes()
    job.stuck[0] = {"phase": "data"}
    job.run(20, moving=False)
    job.silent = {"b"}
    job.run(40, moving=False)
    assert next(finding for finding in job.said if finding.kind == "hang").evidence["verdict"]["nodes"] == ["a"]
    assert "already" not in next(finding for finding in job.said if finding.kind == "agent_lost").text


def test_an_agent_that_is_back_was_cut_off_and_one_that_started_since_had_died() -> None:
    for started, was in ((0.0, "cut off or stopped"), (5_000_000.0, "started again")):
        job = two_nodes()
        job.silent = {"b"}
        job.run(40)
        job.silent = set()
        job.agent_state["b"] = {"started": started}
        said = job.run(2)
        assert kinds(said) == [("agent_lost", "resolved")]
        assert was in said[0].text


def test_another_agent_on_the_node_ends_the_silence_of_the_first() -> None:
    job = two_nodes()
    job.silent = {"b"}
    job.run(40)
    health = Health("agent-b2", "b", job.now, [job.slot(2), job.slot(3)])
    job.monitor.observe(read_health(health)[0], job.now)
    said = job.run(1)
    assert kinds(said) == [("agent_lost", "resolved")]
    assert "another one was started" in said[0].text


def test_an_agent_that_is_restarted_at_once_or_stopped_for_20_s_is_no_incident() -> None:
    job = two_nodes()
    for _ in range(3):
        job.monitor.agent_disconnected("agent-b", job.now)
        job.silent = {"b"}
        assert job.run(20) == []
        job.silent = set()
        job.monitor.agent_connected("agent-b", job.now)
        assert job.run(20) == []


def test_what_is_known_of_the_training_later_is_told_on_the_same_incident() -> None:
    job = Job(nodes={"a": [0, 1], "b": [2, 3]}, step_s=25.0)
    job.run(120)
    job.silent = {"b"}
    job.run(35)
    assert verdict(job)["training"] == "unknown"
    job.run(100)
    assert verdict(job)["training"] == "goes on"
    assert len({finding.key for finding in job.said}) == 1
