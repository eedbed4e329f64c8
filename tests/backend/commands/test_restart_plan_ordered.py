"""While a restart waits for its job the plan is the one that was ordered, but not when the job dies again and again."""

from __future__ import annotations

from stabilitybackend.acting.commands.restart_plan import MAX_FRUITLESS
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.commands import CommandRequest
from stabilitybackend.schema.events import CommandReport
from stabilityclient.wire import Health
from support.gpu_events import Node
from support.job_frames import Job

#: After the first start of the job (1,000 s) and before the second one (2,000 s).
ORDERED_AT = 1500.0


def _ordered() -> RunState:
    """A run whose restart to step 5 the agent has carried out; later checkpoints are there."""
    state = RunState("run", lambda: ORDERED_AT)
    job = Job()
    for frame in (
        job.rows(range(1, 11)),
        job.event("checkpoint", 5, path="c/5"),
        job.event("checkpoint", 10, path="c/10"),
    ):
        state.apply(frame, replayed=False)
    ranks = [{"rank": 0, "source": job.info.source, "alive": True, "state": "running", "step": 10, "time": ORDERED_AT}]
    state.agents.health(Health("a1-1", job.info.node, ORDERED_AT, ranks, {}))
    request = CommandRequest("restart", to_step=5, exclude_nodes=["n7"], reason="it hangs")
    state.issue(request, command_id="c-1", issuer="ada")
    state.commands.on_event(None, 10, CommandReport("c-1", "acted"), ORDERED_AT + 1, node=job.info.node)
    return state


def _comes_up_and_dies(state: RunState, start: int) -> None:
    job = Job(start=start)
    for event in (job.event("start"), job.event("exception", 10, type="ValueError", message="no such file")):
        state.apply(event, replayed=False)
        state.tick()


def test_the_ordered_plan_stands_until_the_job_is_back() -> None:
    state = _ordered()
    plan = state.job.plan(ORDERED_AT + 2)
    assert (plan.checkpoint.step, plan.exclude_nodes, plan.exit_code) == (5, ["n7"], 41)
    state.apply(Job(start=2).rows(range(6, 12)), replayed=False)
    command = state.commands.get("c-1")
    assert command is not None
    assert (command.state, command.first_step) == ("done", 6)
    assert state.job.plan(ORDERED_AT + 600).action != "relaunch_without"


def test_a_job_that_dies_again_and_again_after_the_order_is_for_people() -> None:
    state = _ordered()
    for start in range(2, 2 + MAX_FRUITLESS):
        assert state.job.plan(1000.0 * start).exit_code == 41
        _comes_up_and_dies(state, start)
    plan = state.job.plan(9000.0)
    assert (plan.action, plan.exit_code) == ("stop", 42)


def test_deaths_that_the_restart_brings_are_no_incident_and_those_after_it_are() -> None:
    state = _ordered()
    old = Job()
    state.apply(old.event("exception", 10, type="RuntimeError", message="Connection closed by peer"), replayed=False)
    assert [i.kind for i in state.incidents.all()] == []
    _comes_up_and_dies(state, 2)
    assert [i.kind for i in state.incidents.all()] == ["process_death"]


def test_a_plan_waits_for_the_last_words_of_a_job_that_died_they_may_name_its_gpu() -> None:
    now = 3000.0
    state = RunState("run", lambda: now)
    job, node = Job(), Node("n0", gpus=2)
    for frame in (job.rows(range(1, 11)), node.frame(node.inventory(now))):
        state.apply(frame, replayed=False)
    state.tick()
    state.apply(job.event("exception", 10, type="RuntimeError", message="CUDA error"), replayed=False)
    assert state.job.plan(now).action == "wait"
    now += 1.0
    state.tick()
    early = state.job.plan(now)
    assert (early.action, early.exit_code, early.verdict.kind) == ("wait", 0, "exception")
    state.apply(node.frame(node.xid(0, 79, now)), replayed=False)
    now += 3.0
    state.tick()
    plan = state.job.plan(now)
    assert (plan.action, plan.exclude_nodes, plan.exit_code) == ("relaunch_without", ["n0"], 41)


def test_a_server_that_is_late_plans_nothing_from_a_death_that_it_has_not_told() -> None:
    now = 3000.0
    state = RunState("run", lambda: now)
    job = Job()
    state.apply(job.rows(range(1, 11)), replayed=False)
    state.apply(job.event("exception", 10, type="ValueError", message="bad batch"), replayed=False)
    now += 60.0
    assert state.job.plan(now).action == "wait"
    state.tick()
    now += 3.0
    assert state.job.plan(now).action == "relaunch"
