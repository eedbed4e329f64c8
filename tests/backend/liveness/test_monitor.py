"""What is said of silent, dead and unreachable processes. All times are given: no clock, no sleep."""

from __future__ import annotations

import pytest

from stabilitybackend.judging.incidents.incidents import IncidentBook
from stabilitybackend.judging.incidents.rollback_target import UsableOf
from stabilitybackend.judging.liveness.monitor import LivenessMonitor
from stabilitybackend.schema.incidents import Incident
from support.jobs.watched_job import START, Job, event, kinds, source


def test_a_job_whose_steps_go_on_is_never_said_to_hang() -> None:
    job = Job()
    assert job.run(600) == []
    assert job.monitor.status(job.now) == ("running", "")


def test_a_standstill_opens_one_hang_for_all_ranks_and_names_the_suspect() -> None:
    job = Job()
    job.run(60)
    job.stuck[1] = {"phase": "data", "phase_start": START + job.step * job.step_s}
    said = job.run(12, moving=False)
    assert kinds(said) == [("hang", "open")]
    assert said[0].onset_step == job.step
    assert said[0].rank == 1
    assert said[0].text.startswith("Rank 1 (node a) has been in data; rank 0 has waited in backward.")
    assert "Suspect: rank 1" in said[0].text
    assert job.monitor.status(job.now)[0] == "stalled"


def test_a_rank_that_is_a_step_behind_is_the_suspect() -> None:
    job = Job()
    job.run(60)
    job.stuck[0] = {"step": job.step - 1}
    said = job.run(12, moving=False)
    assert said[0].evidence["suspects"] == [0]
    assert said[0].evidence["why"] == "behind the others by a step"


def test_a_rank_whose_python_gives_no_sign_is_the_suspect_even_at_the_same_place() -> None:
    job = Job()
    job.run(60)
    job.stuck[1] = {"beat": job.beat}
    said = job.run(12, moving=False)
    assert said[-1].evidence["suspects"] == [1]
    assert "Python gives no sign" in said[-1].text


def test_ranks_that_stand_at_one_place_have_no_suspect() -> None:
    job = Job()
    job.run(60)
    said = job.run(12, moving=False)
    assert said[0].rank is None
    assert "no rank is a suspect yet" in said[0].text
    assert "Nobody is missing" not in said[0].text  # nobody has looked


def test_a_hang_ends_by_itself_when_the_steps_go_on() -> None:
    job = Job()
    job.run(60)
    job.run(30, moving=False)
    said = job.run(3)
    assert kinds(said) == [("hang", "resolved")]
    assert said[0].key == job.said[0].key
    assert "go on again" in said[0].text
    assert job.monitor.status(job.now)[0] == "running"


def test_a_hang_that_new_processes_end_has_not_recovered() -> None:
    job = Job()
    job.run(20)
    job.run(20, moving=False)
    job.start = 2
    (over,) = job.run(2)
    assert (over.state, over.recovered_step) == ("resolved", None)
    assert over.text.startswith("The job was started again. The ranks had been hung at step")


def test_a_long_hang_is_told_again_only_when_it_has_doubled() -> None:
    job = Job()
    job.run(60)
    job.stuck[1] = {"phase": "data"}
    said = job.run(300, moving=False)
    assert 2 <= len(said) <= 6
    assert len({finding.key for finding in said}) == 1


def test_slow_steps_are_no_hang_because_the_budget_is_learnt() -> None:
    job = Job(step_s=20.0)
    assert job.run(400) == []
    assert job.run(60, moving=False) == []
    assert kinds(job.run(60, moving=False)) == [("hang", "open")]


def test_the_first_step_may_take_long() -> None:
    job = Job(step_s=1e9)
    assert job.run(590) == []


@pytest.mark.parametrize("phase", ["checkpoint", "eval", "compile"])
def test_a_long_phase_is_no_hang_for_the_rank_nor_for_those_that_wait_for_it(phase: str) -> None:
    job = Job()
    job.run(60)
    job.stuck[0] = {"phase": phase, "phase_start": job.now}
    assert job.run(500, moving=False) == []
    assert job.monitor.status(job.now) == ("running", f"In {phase}.")


def test_a_declared_phase_may_take_one_and_a_half_times_what_it_declared() -> None:
    job = Job()
    job.run(60)
    job.stuck[0] = {"phase": "checkpoint", "phase_start": job.now, "expect_s": 40.0}
    assert job.run(59, moving=False) == []
    assert kinds(job.run(3, moving=False)) == [("hang", "open")]


def test_a_death_opens_one_incident_for_the_job_with_the_later_deaths_in_its_evidence() -> None:
    job = Job()
    job.run(60)
    job.dies(1)
    said = job.run(2, moving=False)
    job.now += 3
    job.dies(0, "exit signal 15")
    said += job.run(60, moving=False)
    assert kinds(said) == [("process_death", "open")] * 2
    assert said[0].key == said[1].key
    assert said[1].rank == 1
    assert said[1].severity == "critical"
    assert [(death["rank"], death["evidence"]) for death in said[1].evidence["deaths"]] == [
        (1, "exit signal 9"),
        (0, "exit signal 15"),
    ]
    assert "exit signal 9" in said[1].text
    assert job.monitor.status(job.now)[0] == "crashed"


def test_the_exception_and_the_death_of_one_process_are_one_incident_that_says_the_exception() -> None:
    job = Job()
    job.run(60)
    job.event("exception", 1, {"type": "ValueError", "message": "bad batch"})
    job.dies(1)
    said = job.run(2, moving=False)
    assert kinds(said) == [("process_death", "open")]
    assert "ValueError: bad batch" in said[0].text


def test_a_job_stopped_by_hand_wakes_nobody() -> None:
    job = Job()
    job.run(60)
    job.event("exception", 0, {"type": "KeyboardInterrupt", "message": ""})
    assert [(f.severity, f.title) for f in job.run(1)] == [("info", "Rank 0 was stopped by hand")]


def test_ranks_that_finish_open_nothing_and_the_run_is_finished() -> None:
    job = Job()
    job.run(60)
    for rank in (0, 1):
        job.event("finish", rank)
        job.dies(rank)
        job.stuck[rank] = {"state": "finished", "alive": False}
    assert job.run(120, moving=False) == []
    assert job.monitor.status(job.now) == ("finished", "")


def test_a_new_start_after_a_death_ends_the_incident_and_late_news_of_the_old_one_opens_nothing() -> None:
    job = Job()
    job.run(60)
    job.dies(1)
    job.run(1, moving=False)
    job.start, job.stuck, job.silent = 2, {}, {"a"}
    job.now += 10
    job.event("start", 1)
    assert kinds(job.run(1)) == [("process_death", "resolved")]
    old = {"source": source(0, 1), "rank": 0, "evidence": "exit signal 15"}
    job.monitor.event(event("process_death", job.now - 8, 3, old), job.now)
    assert job.run(5) == []
    job.silent = set()
    assert job.run(5) == []
    assert job.monitor.status(job.now)[0] == "running"


def test_ranks_that_wait_for_a_dead_one_are_not_said_to_hang() -> None:
    job = Job()
    job.run(60)
    job.dies(1)
    assert kinds(job.run(120, moving=False)) == [("process_death", "open")]


def test_the_time_spent_in_a_checkpoint_is_not_learnt_as_a_step_time() -> None:
    job = Job()
    job.run(60)
    job.stuck[0] = {"phase": "checkpoint", "phase_start": job.now}
    job.run(60, moving=False)
    job.stuck = {}
    job.lost_s = 60.0
    assert job.run(20) == []
    assert kinds(job.run(12, moving=False)) == [("hang", "open")]


def test_an_agent_that_is_gone_is_said_after_30_s_and_no_hang_is_claimed() -> None:
    job = Job()
    job.run(60)
    job.monitor.agent_disconnected("agent-a", job.now)
    job.silent = {"a"}
    assert job.run(29, moving=False) == []
    said = job.run(120, moving=False)
    assert kinds(said) == [("agent_lost", "open")]
    assert "because the agent on a does not report" in said[0].text
    status, note = job.monitor.status(job.now)
    assert status == "unreachable"
    assert "No data" in note
    job.silent = set()
    assert kinds(job.run(1)) == [("agent_lost", "resolved")]


def test_a_hang_beside_a_lost_node_says_what_is_not_seen() -> None:
    job = Job(nodes={"a": [0, 1], "b": [2, 3]})
    job.run(60)
    job.silent = {"b"}
    said = job.run(60, moving=False)
    hang = next(finding for finding in said if finding.kind == "hang" and "No data from" in finding.text)
    assert hang.evidence["unseen_ranks"] == [2, 3]
    assert "agent_lost" in {finding.kind for finding in said}


def test_an_agent_that_leaves_after_its_ranks_finished_is_not_missed() -> None:
    job = Job()
    job.run(60)
    for rank in (0, 1):
        job.event("finish", rank)
    job.monitor.agent_disconnected("agent-a", job.now)
    job.silent = {"a"}
    assert job.run(60, moving=False) == []


def test_a_slot_that_was_read_just_before_the_finish_does_not_take_it_back() -> None:
    job = Job()
    job.run(5)
    for rank in (0, 1):
        job.monitor.event(event("finish", job.now, job.step, source=source(rank), rank=rank), job.now)
    job.run(1)  # slots that still say running
    job.monitor.agent_disconnected("agent-a", job.now)
    job.silent.add("a")
    assert job.run(30) == []
    assert job.monitor.status(job.now)[0] == "finished"


def test_a_job_that_stops_within_its_first_second_is_said_to_hang_by_what_it_logged() -> None:
    job = Job()
    for rank in (0, 1):
        job.monitor.logged(rank, source(rank), 1, START - 1.0)
        job.monitor.logged(rank, source(rank), 40, START - 0.5)
    assert {(f.kind, f.state) for f in job.run(30, moving=False)} == {("hang", "open")}


def test_a_restarted_server_opens_nothing_twice() -> None:
    job = Job()
    job.run(60)
    job.dies(1)
    said = job.run(1, moving=False)
    book = IncidentBook("run")
    book.apply(said[0], segment=0, time=job.now, checkpoints=UsableOf([]))
    again = LivenessMonitor("run")
    again.load(book.all())
    job.monitor = again
    job.dies(1)
    changed = [book.apply(f, segment=0, time=job.now, checkpoints=UsableOf([])) for f in job.run(5, moving=False)]
    assert [one for ones in changed for one in ones] == []
    assert job.monitor.status(job.now)[0] == "crashed"


def test_a_restarted_server_does_not_open_a_death_anew_that_is_over() -> None:
    job = Job()
    job.run(60)
    job.dies(1)
    said = job.run(1, moving=False)
    job.start, job.stuck = 2, {}
    said += job.run(1)
    book = IncidentBook("run")
    for finding in said:
        book.apply(finding, segment=0, time=job.now, checkpoints=UsableOf([]))
    job.monitor = LivenessMonitor("run")
    job.monitor.load(book.all())
    job.start = 1
    job.dies(1)
    job.start, job.stuck = 2, {}
    assert job.run(5) == []


def test_an_open_hang_is_ended_after_a_server_restart() -> None:
    job = Job()
    job.run(60)
    said = job.run(12, moving=False)
    book = IncidentBook("run")
    book.apply(said[0], segment=0, time=job.now, checkpoints=UsableOf([]))
    job.monitor = LivenessMonitor("run")
    job.monitor.load(book.all())
    assert job.monitor.status(job.now)[0] == "stalled"
    assert kinds(job.run(3)) == [("hang", "resolved")]


def test_a_hang_that_a_restart_was_ordered_for_lasts_until_the_job_is_back() -> None:
    job = Job()
    job.run(60)
    job.run(12, moving=False)
    for rank in (0, 1):
        job.dies(rank, cause="signal", ordered="c-1")
    assert job.run(30, moving=False) == []
    job.start, job.stuck = 2, {}
    assert kinds(job.run(3)) == [("hang", "resolved")]


def test_a_hang_whose_agents_do_not_come_back_after_a_server_restart_is_not_said_to_go_on() -> None:
    job = Job()
    job.run(60)
    said = job.run(12, moving=False)
    book = IncidentBook("run")
    book.apply(said[0], segment=0, time=job.now, checkpoints=UsableOf([]))
    job.monitor = LivenessMonitor("run")
    job.monitor.load(book.all())
    for rank in (0, 1):
        job.event("start", rank)
    job.silent = {"a"}
    job.run(1)
    assert job.monitor.status(job.now)[0] == "stalled"
    job.run(40)
    assert job.monitor.status(job.now)[0] == "unreachable"


def test_a_hang_began_when_it_began_though_the_server_was_away() -> None:
    job = Job()
    job.run(60)
    book = IncidentBook("run")

    def told() -> Incident:
        for finding in job.run(12, moving=False):
            book.apply(finding, segment=0, time=job.now, checkpoints=UsableOf([]))
        return book.all()[0]

    since = told().evidence["verdict"]["since"]
    job.monitor = LivenessMonitor("run")
    job.monitor.load(book.all())
    job.now += 300.0
    incident = [told() for _ in range(10)][-1]
    assert incident.evidence["verdict"]["since"] == pytest.approx(since, abs=2.0)
    assert incident.score == pytest.approx(incident.updated - since, abs=2.0)


def test_a_run_known_only_from_its_events_is_unreachable_until_an_agent_comes() -> None:
    job = Job(silent={"a"})
    job.event("start", 0)
    job.run(1)
    assert job.monitor.status(job.now)[0] == "running"
    job.run(31)
    assert job.monitor.status(job.now)[0] == "unreachable"
    job.silent = set()
    job.run(1)
    assert job.monitor.status(job.now)[0] == "running"


def test_a_run_whose_events_all_say_its_end_is_finished_after_a_server_restart() -> None:
    job = Job(silent={"a"})
    for rank in (0, 1):
        job.event("start", rank)
    job.event("finish", 0)
    job.monitor.event(event("left", job.now, 9, {"source": source(1), "rank": 1}), job.now)
    assert job.run(60) == []
    assert job.monitor.status(job.now) == ("finished", "rank 1 ended without run.finish().")


def test_a_process_that_died_before_its_first_step_was_told_is_not_said_to_be_at_a_step() -> None:
    job = Job()
    data = {"source": source(0), "rank": 0, "pid": 100, "last_phase": "", "evidence": {}}
    job.monitor.event(event("process_death", job.now, -1, data), job.now)
    (death,) = job.monitor.tick(job.now)
    assert death.text == "The process of rank 0 died before its first step."
