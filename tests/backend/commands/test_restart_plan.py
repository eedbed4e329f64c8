"""A plan says what a launcher can't know: which checkpoint is good, which node is suspect, and when to ask people."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from stabilitybackend.acting.commands.request import check_fields
from stabilitybackend.acting.commands.restart_plan import (
    EXIT_CODES,
    MAX_FRUITLESS,
    UNDECIDED_S,
    RestartFacts,
    make_plan,
)
from stabilitybackend.base.errors import BadRequest, Conflict
from stabilitybackend.judging.incidents.incidents import IncidentBook
from stabilitybackend.judging.incidents.rollback_target import UsableOf
from stabilitybackend.schema.commands import CommandRequest
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.lineage import Offer
from stabilitybackend.schema.plan import Plan
from support.checkpoints import checkpoint
from support.jobs.watched_job import Job
from support.stored.incident import stored

NOW = 1000.0


def _incident(kind: str, verdict: dict[str, Any] | None = None, **more: Any) -> Incident:
    evidence = {} if verdict is None else {"verdict": {"confidence": "high", "text": "Rank 5 stands."} | verdict}
    return stored(kind, **{"title": "It stands", "opened": NOW - 30.0, "evidence": evidence} | more)


def _spike(action: str) -> Incident:
    """An open spike from step 120 on that advises something."""
    return _incident("spike", severity="critical", onset_step=120, suggestion={"action": action, "to_step": 100})


OFFER = Offer("i-spike", 120, 100, 60, [101, 160], 0.5, False, {}, "", [])
JOB = RestartFacts("crashed", "Rank 5 died.", [], [checkpoint(150), checkpoint(100)], {"n0", "n1"}, 0)
IO = {"class": "io", "culprits": [5], "nodes": ["n1"], "gpus": [{"rank": 5, "node": "n1", "index": 2, "uuid": "GPU-7"}]}


def _plan(job: RestartFacts, request: CommandRequest | None = None) -> Plan:
    return make_plan("run", job, NOW, request)


def _where(plan: Plan) -> tuple[str, int | None, list[str]]:
    return plan.action, plan.checkpoint and plan.checkpoint.step, plan.exclude_nodes


def test_a_job_that_died_starts_again_from_the_newest_checkpoint_that_can_be_used() -> None:
    gone = [checkpoint(170, available=False), checkpoint(160, dead=True), *JOB.checkpoints]
    plan = _plan(replace(JOB, checkpoints=gone, incidents=[_incident("process_death", IO | {"class": "crash"})]))
    shown = msgspec.to_builtins(plan)
    assert {name: shown[name] for name in ("action", "exit_code", "checkpoint", "incident_id", "suspects")} == {
        "action": "relaunch",
        "exit_code": 40,
        "checkpoint": {"step": 150, "path": "c/150", "inside": None},
        "incident_id": "i-process_death",
        "suspects": [{"rank": 5, "node": "n1", "gpu": "GPU-7"}],
    }
    assert plan.text == "Rank 5 stands. Start the job again, from the checkpoint of step 150."


def test_an_open_incident_of_the_curve_sends_it_further_back() -> None:
    plan = _plan(replace(JOB, incidents=[_spike("roll_back")], offer=OFFER))
    assert (plan.checkpoint.step, plan.skip_range, plan.lr_scale) == (100, (101, 160), 0.5)
    assert (plan.checkpoint.inside, plan.warning) == (None, None)


def test_a_job_that_died_inside_a_spike_that_may_pass_goes_on_there_and_the_plan_says_so() -> None:
    plan = _plan(replace(JOB, incidents=[_spike("wait")], offer=None))
    assert (plan.checkpoint.step, plan.skip_batches, plan.lr_scale) == (150, None, None)
    assert plan.checkpoint.inside.incident_id == "i-spike"
    assert plan.warning == (
        "The checkpoint of step 150 was saved 30 steps after the onset of an open spike (step 120): it may hold the "
        "damage already; the last good one is that of step 100."
    )


def test_who_names_a_checkpoint_from_inside_has_to_accept_that() -> None:
    job, request = replace(JOB, incidents=[_spike("wait")]), CommandRequest("restart", to_step=150)
    with pytest.raises(Conflict, match="30 steps after the onset of an open spike"):
        _plan(job, request)
    assert _plan(job, replace(request, accept_inside_incident=True)).checkpoint.step == 150
    assert _plan(job, replace(request, to_step=100)).warning is None


@pytest.mark.parametrize(
    ("incidents", "excluded"),
    [
        ([_incident("hang", IO)], []),
        ([_incident("hang", IO), _incident("hang", IO, incident_id="i-old", state="resolved")], ["n1"]),
        ([_incident("hang", IO | {"confidence": "low"})] * 2, []),
        ([_incident("process_death", IO | {"class": "exception"})] * 3, []),
        ([_incident("agent_lost", IO | {"class": "node_lost", "training": "stands"})], ["n1"]),
        ([_incident("agent_lost", IO | {"class": "node_lost", "training": "goes on"})], []),
        ([_incident("gpu_fault", node="n1", evidence={"class": "drain"})], ["n1"]),
        ([_incident("gpu_fault", node="n1", evidence={"class": "application"})], []),
    ],
    ids=["blamed once", "twice", "low confidence", "software", "node gone", "agent gone", "GPU to drain", "its kernel"],
)
def test_a_node_is_left_out_on_hard_evidence_or_when_it_was_blamed_twice(
    incidents: list[Incident], excluded: list[str]
) -> None:
    plan = _plan(replace(JOB, incidents=incidents))
    assert _where(plan) == ("relaunch_without" if excluded else "relaunch", 150, excluded)
    assert plan.exit_code == (41 if excluded else 40)


def test_a_job_that_stands_starts_again_though_a_gpu_fault_that_it_outlived_is_open_too() -> None:
    fault = _incident("gpu_fault", node="n1", evidence={"class": "drain"}, opened=NOW - 600.0, title="GPU 2 is sick")
    plan = _plan(replace(JOB, status="stalled", incidents=[fault, _incident("hang", IO)]))
    assert (plan.action, plan.exclude_nodes) == ("relaunch_without", ["n1"])
    assert plan.text.startswith("GPU 2 is sick. Rank 5 stands. Start the job again without n1")
    assert [suspect.rank for suspect in plan.suspects] == [5]


def test_suspicion_alone_never_leaves_a_job_without_nodes() -> None:
    twice = [_incident("hang", IO), _incident("hang", IO, incident_id="i-old", state="resolved")]
    assert _plan(replace(JOB, incidents=twice, nodes={"n1"})).exclude_nodes == []
    drained = [_incident("gpu_fault", node="n1", evidence={"class": "drain"})]
    assert _plan(replace(JOB, incidents=drained, nodes={"n1"})).exclude_nodes == ["n1"]


@pytest.mark.parametrize(
    ("job", "action"),
    [
        (replace(JOB, status="finished"), "none"),
        (replace(JOB, status="running"), "none"),
        (replace(JOB, status="running", incidents=[_incident("gpu_fault", evidence={"class": "drain"})]), "none"),
        (replace(JOB, status="offline"), "none"),
        (replace(JOB, status="unreachable"), "wait"),
        (replace(JOB, status="stalled", incidents=[_incident("hang")]), "wait"),
        (replace(JOB, status="stalled", incidents=[_incident("hang", opened=NOW - UNDECIDED_S)]), "relaunch"),
        (replace(JOB, status="stalled", incidents=[_incident("hang", IO | {"class": "overdue"})]), "wait"),
        (replace(JOB, status="stalled", incidents=[_incident("hang", IO)]), "relaunch"),
        (replace(JOB, fruitless=MAX_FRUITLESS - 1), "relaunch"),
        (replace(JOB, fruitless=MAX_FRUITLESS), "stop"),
    ],
)
def test_what_is_done_follows_from_the_state_of_the_job(job: RestartFacts, action: str) -> None:
    plan = _plan(job)
    assert (plan.action, plan.exit_code) == (action, EXIT_CODES[action])
    assert action.startswith("relaunch") or (plan.checkpoint is None and plan.exclude_nodes == [])


def test_a_job_that_megatrons_own_check_ended_waits_for_people() -> None:
    """By the incident that such a death is told as."""
    watched, book = Job(), IncidentBook("run")
    watched.run(30)
    watched.dies(1, cause="exit_code", exit_code=17)
    (death,) = watched.run(1, moving=False)
    (incident,) = book.apply(death, segment=0, time=NOW, checkpoints=UsableOf([]))
    plan = _plan(replace(JOB, incidents=[incident]))
    assert (plan.action, plan.text.rpartition(". ")[2]) == (
        "stop", "Exit code 17: Megatron's own check of a result failed.",
    )  # fmt: skip


def test_what_people_name_counts_whatever_the_plan_would_say() -> None:
    request = CommandRequest(
        "restart", to_step=100, exclude_nodes=["n0"], skip_batches=5, lr_scale=0.5, seed=7, reason="it is slow"
    )
    plan = _plan(replace(JOB, status="running", fruitless=9), request)
    assert _where(plan) == ("relaunch_without", 100, ["n0"])
    assert (plan.skip_batches, plan.skip_range, plan.lr_scale, plan.seed) == (5, (101, 105), 0.5, 7)
    assert plan.text.endswith("Draw the data in the order of seed 7.")
    assert plan.text.startswith("it is slow. Start the job again without n0, from the checkpoint of step 100.")
    plan = _plan(JOB, replace(request, skip_batches=None, skip_range=[120, 130]))
    assert (plan.skip_batches, plan.skip_range) == (30, (120, 130))
    assert "Leave out the batches of the steps 120 to 130." in plan.text
    with pytest.raises(BadRequest, match="skip_range begins at step 90, but training goes on behind step 100"):
        _plan(JOB, replace(request, skip_batches=None, skip_range=[90, 130]))
    with pytest.raises(BadRequest, match="no usable checkpoint for step 120"):
        _plan(JOB, replace(request, to_step=120))


def test_people_may_keep_a_node_that_the_plan_would_leave_out() -> None:
    gone = IO | {"class": "node_lost", "training": "stands"}
    lost = replace(JOB, incidents=[_incident("agent_lost", gone)])
    request = CommandRequest("restart", to_step=100, reason="its switch is back")
    assert _where(_plan(lost, request)) == ("relaunch_without", 100, ["n1"])
    assert _where(_plan(lost, replace(request, keep_nodes=["n1"]))) == ("relaunch", 100, [])
    assert _where(_plan(lost, replace(request, keep_nodes=["n1"], exclude_nodes=["n0"])))[2] == ["n0"]
    with pytest.raises(BadRequest, match="n1 given in exclude_nodes and in keep_nodes"):
        check_fields(replace(request, keep_nodes=["n1"], exclude_nodes=["n1"]))


def test_an_order_on_a_job_that_runs_on_leaves_out_what_is_sick_and_says_why() -> None:
    drained = [_incident("gpu_fault", node="n1", title="GPU 2 has to be drained", evidence={"class": "drain"})]
    job = replace(JOB, status="running", incidents=drained)
    assert _where(_plan(job)) == ("none", None, [])
    plan = _plan(job, CommandRequest("restart"))
    assert _where(plan) == ("relaunch_without", 150, ["n1"])
    assert plan.text.startswith("GPU 2 has to be drained. Start the job again without n1")


def test_a_job_without_a_checkpoint_is_told_what_that_means() -> None:
    assert _plan(replace(JOB, checkpoints=[])).text.endswith("from where it finds its state.")
    gone = [checkpoint(150, available=False)]
    assert _plan(replace(JOB, checkpoints=gone)).text.endswith("from the beginning: no checkpoint can be used.")
