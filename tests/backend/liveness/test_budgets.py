"""How long a rank may stand is learned from what all ranks were seen to take, and no clock makes a standstill."""

from __future__ import annotations

import pytest

from stabilitybackend.judging.incidents.incidents import IncidentBook
from stabilitybackend.judging.incidents.rollback_target import UsableOf
from stabilitybackend.judging.liveness.budgets import Budgets, Limits, is_long
from stabilitybackend.judging.liveness.monitor import LivenessMonitor
from support.jobs.watched_job import START, Job, kinds, source
from support.saved_state import taken_over

LIMITS = Limits()


def learned(*phases: tuple[str, float], step_s: float = 0.5) -> Budgets:
    """Budgets of a run in which steps and these phases were seen, one a minute."""
    budgets = Budgets()
    for at in range(3):
        budgets.learn_step(step_s, 60.0 * at, LIMITS)
    for at, (phase, took_s) in enumerate(phases):
        budgets.learn_phase(phase, took_s, 60.0 * at, LIMITS)
    return budgets


@pytest.mark.parametrize(
    ("seen", "phase", "expect_s", "budget_s"),
    [
        ([("data", 0.1)], "data", 0.0, 10.0),  # the floor
        ([("data", 8.0)], "data", 0.0, 40.0),  # 5 x the longest
        ([("data", 500.0)], "data", 0.0, 1_800.0),  # the ceiling
        ([], "data", 0.0, 10.0),  # never seen: as a step
        ([], "checkpoint", 0.0, 600.0),  # never seen
        ([("checkpoint", 3.0)], "checkpoint", 0.0, 600.0),  # once is no habit
        ([("checkpoint", 3.0), ("checkpoint", 4.0)], "checkpoint", 0.0, 120.0),
        ([("eval", 100.0), ("eval", 200.0)], "eval", 0.0, 1_000.0),
        ([("eval", 500.0), ("eval", 1_500.0)], "eval", 0.0, 7_200.0),
        ([("checkpoint", 3.0), ("checkpoint", 4.0)], "checkpoint", 600.0, 900.0),  # declared
        ([("data", 8.0)], "data", 2.0, 40.0),  # declared, but known to take longer
    ],
)
def test_a_budget_follows_from_what_was_seen(
    seen: list[tuple[str, float]], phase: str, expect_s: float, budget_s: float
) -> None:
    assert learned(*seen).of(phase, expect_s, LIMITS, first_step_done=True) == budget_s


def test_a_stall_shorter_than_two_steps_is_none_whatever_the_phase() -> None:
    budgets = learned(("data", 0.1), step_s=20.0)
    assert budgets.of("data", 0.0, LIMITS, first_step_done=True) == 40.0


def test_the_first_step_of_a_process_may_take_what_it_took_before() -> None:
    budgets = learned()
    assert budgets.of("forward", 0.0, LIMITS, first_step_done=False) == 600.0
    for at in (0.0, 600.0):
        budgets.learn_first_step(90.0, at)
    assert budgets.of("forward", 0.0, LIMITS, first_step_done=False) == 450.0


def test_ranks_that_do_the_same_at_one_time_are_one_observation() -> None:
    budgets = Budgets()
    for rank in range(64):
        budgets.learn_phase("checkpoint", 3.0, 100.0 + 0.01 * rank, LIMITS)
    assert budgets.of("checkpoint", 0.0, LIMITS, first_step_done=True) == 600.0


def test_what_was_a_hang_raises_its_budget_only_to_the_double() -> None:
    budgets = learned(("data", 0.1))
    budgets.learn_phase("data", 3_000.0, 500.0, LIMITS)
    assert budgets.of("data", 0.0, LIMITS, first_step_done=True) == 20.0
    budgets.learn_phase("data", 3_000.0, 900.0, LIMITS)
    assert budgets.of("data", 0.0, LIMITS, first_step_done=True) == 40.0


@pytest.mark.parametrize("took_s", [float("nan"), float("inf"), -1.0])
def test_what_is_no_time_is_not_learned(took_s: float) -> None:
    budgets = learned(("data", 3.0))
    budgets.learn_phase("data", took_s, 1.0, LIMITS)
    budgets.learn_step(took_s, 1.0, LIMITS)
    assert budgets.of("data", 0.0, LIMITS, first_step_done=True) == 15.0
    assert budgets.of("", 0.0, LIMITS, first_step_done=True) == 30.0


def test_phases_with_ever_new_names_do_not_fill_the_memory() -> None:
    budgets = Budgets()
    for number in range(10_000):
        budgets.learn_phase(f"batch-{number}", 1.0, float(number), LIMITS)
    assert len(budgets.phases) == 128


@pytest.mark.parametrize(
    ("phase", "long"),
    [
        ("checkpoint", True), ("Eval/coco", True), ("save_model", True), ("write_ckpt", True), ("data", False),
        ("forward", False), ("", False), ("data_load", False), ("load_batch", False), ("load", True),
    ],
)  # fmt: skip
def test_a_phase_that_may_be_long_is_known_by_its_words(phase: str, long: bool) -> None:
    assert is_long(phase) is long


def with_tables(job: Job, longest_s: float) -> None:
    """Give the slots a table in which a step's data phase takes up to this long."""
    steps = max(job.step, 1)
    job.more["phases"] = {"data": [steps, 0.05 * steps + longest_s, longest_s], "backward": [steps, 0.1 * steps, 0.2]}


def test_a_phase_that_took_long_before_may_do_so_again_on_every_rank() -> None:
    job = Job(nodes={"a": [0, 1], "b": [2, 3]})
    with_tables(job, 0.1)
    job.run(60)
    with_tables(job, 9.0)
    job.run(20)
    job.stuck[3] = {"phase": "data", "phase_start": job.now}
    assert job.run(40, moving=False) == []
    assert kinds(job.run(8, moving=False)) == [("hang", "open")]


def test_budgets_outlive_the_server_and_the_processes() -> None:
    job = Job()
    with_tables(job, 0.1)
    job.run(60)
    with_tables(job, 9.0)
    job.run(20)
    job.monitor, job.start = taken_over(job.monitor, LivenessMonitor("run")), 2
    job.stuck = {rank: {"phase": "data"} for rank in (0, 1)}
    job.run(3)
    assert job.monitor.budget_s(0, source(0, 2)) == 45.0


def test_after_a_server_without_snapshot_the_tables_of_the_slots_tell_what_is_usual() -> None:
    job = Job()
    job.step_s = 4.0
    job.more["phases"] = {"data": [500, 1_500.0, 9.0], "forward": [500, 800.0, 300.0]}  # forward: one compile in it
    job.run(30)
    budget = job.monitor._budgets.of
    assert budget("data", 0.0, LIMITS, first_step_done=True) == 45.0
    assert budget("forward", 0.0, LIMITS, first_step_done=True) < 200.0


@pytest.mark.parametrize("after", ["forward", "backward", ""])
def test_who_waits_for_a_long_phase_of_another_rank_has_not_stood_when_it_ends(after: str) -> None:
    job = Job()
    job.run(60)
    job.stuck[0] = {"phase": "checkpoint", "phase_start": job.now}
    assert job.run(300, moving=False) == []
    job.stuck[0] = {"phase": after, "phase_start": job.now}
    assert job.run(9, moving=False) == []
    assert kinds(job.run(4, moving=False)) == [("hang", "open")]


def test_who_waits_for_a_long_phase_is_excused_after_a_restart_of_the_server() -> None:
    job = Job()
    job.run(60)
    job.stuck[0] = {"phase": "eval", "phase_start": job.now}
    job.run(60, moving=False)
    job.monitor = LivenessMonitor("run")
    assert job.run(400, moving=False) == []


def test_a_long_phase_out_of_sight_excuses_those_that_wait_for_it() -> None:
    job = Job(nodes={"a": [0], "b": [1]})
    job.run(60)
    job.stuck[0] = {"phase": "checkpoint", "phase_start": job.now}
    job.run(5, moving=False)
    job.silent = {"a"}
    assert {finding.kind for finding in job.run(200, moving=False)} == {"agent_lost"}


@pytest.mark.parametrize("jump_s", [7_200.0, -7_200.0, 86_400.0])
@pytest.mark.parametrize("named", [True, False])
def test_a_clock_of_a_node_that_jumps_makes_no_standstill_and_hides_none(jump_s: float, named: bool) -> None:
    job = Job(nodes={"a": [0, 1], "b": [2, 3]}, step_s=4.0)
    job.run(60)
    job.ahead_s["b"] = jump_s
    # What a rank wrote before the jump is older, or of the future, by the node's new clock.
    job.stuck = {rank: {"step_start": START + job.step * 4.0, "phase_start": START + job.step * 4.0} for rank in (2, 3)}
    job.agent_state["b"] = {"clock_step_s": jump_s} if named else {}
    assert job.run(2, moving=False) == []
    job.agent_state, job.stuck = {}, {}
    assert job.run(60) == []
    said = job.run(60, moving=False)
    assert kinds(said)[0] == ("hang", "open")


def test_an_agent_that_was_stopped_and_tells_its_old_slots_makes_no_standstill() -> None:
    job = Job()
    job.run(60)
    old = [job.slot(rank) for rank in (0, 1)]
    job.silent = {"a"}
    assert job.run(20) == []
    job.tell("a", old)  # read before it was stopped, sent under the new time
    assert job.monitor.tick(job.now) == []
    job.silent = set()
    assert job.run(30) == []


@pytest.mark.parametrize("step_s", [0.5, 4.0])
def test_words_that_waited_while_the_server_stood_still_make_no_standstill(step_s: float) -> None:
    job = Job(step_s=step_s)
    job.run(60)
    late = []
    for _ in range(60):
        job.now, job.beat = job.now + 1.0, job.beat + 1
        job.step = int((job.now - START) / job.step_s)
        late.append((job.now, [job.slot(rank) for rank in (0, 1)]))
    for told, slots in late:
        job.now += 0.01
        job.tell("a", slots, told)
        assert job.monitor.tick(job.now) == []


def test_nothing_is_claimed_of_the_time_in_which_the_server_was_away() -> None:
    job = Job()
    job.run(60)
    job.monitor = LivenessMonitor("run")
    job.now += 3_600.0
    assert job.run(5, moving=False) == []


def test_an_open_hang_is_not_over_because_the_server_was_away() -> None:
    job = Job()
    job.run(60)
    said = job.run(12, moving=False)
    (incident,) = IncidentBook("run").apply(said[0], segment=0, time=job.now, checkpoints=UsableOf([]))
    job.monitor = LivenessMonitor("run")
    job.monitor.load([incident])
    assert [finding for finding in job.run(30, moving=False) if finding.state != "open"] == []
    job.lost_s = 42.0
    assert kinds(job.run(3)) == [("hang", "resolved")]


@pytest.mark.parametrize("state", [{}, {"clock_step_s": -7_200.0}])
def test_a_clock_that_is_put_back_in_the_middle_of_a_standstill_does_not_hide_it(state: dict[str, float]) -> None:
    job = Job()
    job.run(60)
    stood = [job.slot(rank) for rank in (0, 1)]
    job.run(4, moving=False)
    job.ahead_s["a"] = -7_200.0
    job.agent_state["a"] = dict(state)
    for slot in stood:  # what the ranks wrote before stays as it is
        job.stuck[slot["rank"]] = {name: slot[name] for name in ("step_start", "phase_start")}
    said = job.run(1, moving=False)
    job.agent_state = {}
    assert kinds(said + job.run(9, moving=False)) == [("hang", "open")]


def test_a_wait_for_a_checkpoint_of_another_rank_is_not_learned_from_the_tables_either() -> None:
    job = Job()
    with_tables(job, 0.1)
    job.run(60)
    job.stuck[0] = {"phase": "checkpoint", "phase_start": job.now}
    assert job.run(60, moving=False) == []
    job.stuck, job.lost_s = {}, 60.0
    job.more["phases"] = {"data": [121, 7.0, 0.1], "backward": [121, 73.0, 61.0]}
    job.run(10)
    assert job.monitor.budget_s(1, source(1)) == 10.0


@pytest.mark.parametrize(("passes", "told"), [(60, ["hang"]), (1, [])])
def test_a_rank_that_logs_nothing_and_stands_when_the_server_comes_back_is_not_taken_for_one_in_its_first_step(
    passes: int, told: list[str]
) -> None:
    job = Job(step=60)
    began = START - 1.0
    at = {"step": 60, "step_start": began, "phase_start": began + 0.1}
    for rank, phase in ((0, "backward"), (1, "data")):
        table = {"data": [passes, 0.05 * passes, 0.05], "forward": [passes, 0.2 * passes, 0.2]}
        job.stuck[rank] = {**at, "phase": phase, "phases": table}
    for step in range(1, 61):
        job.monitor.logged(0, source(0), step, START - 61.0 + step)
    job.run(30, moving=False)
    assert [finding.kind for finding in job.said if finding.state == "open"][:1] == told
