"""A GPU is remembered by its UUID: each fault once, hardware only, within bounds, whatever lies in Redis."""

from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio import Redis

from stabilitybackend.base.keys import FLEET_CATEGORIES, FLEET_GPU_FAULTS, FLEET_INTERRUPTIONS
from stabilitybackend.fleet import gpu_history as offenders_module
from stabilitybackend.fleet.fleet import Fleet
from stabilitybackend.fleet.gpu_history import GpuFaultHistory
from stabilitybackend.fleet.interruptions import JobStory, TrainingInterval, interruptions_of
from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.gpus.watch import GpuWatch
from stabilitybackend.judging.incidents.incidents import IncidentBook
from stabilitybackend.judging.incidents.rollback_target import UsableOf
from stabilitybackend.judging.incidents.suggest import suggest
from stabilitybackend.runs.reconcile_incidents import reconciled
from stabilitybackend.schema.fleet import RunNames, SetBy
from stabilitybackend.schema.incidents import Incident
from support.checkpoints import checkpoint
from support.gpu_events import Node

DAY_S = 86_400.0


def _finding(at: float, *xids: int, gpu: int = 2) -> Finding:
    node, watch = Node(), GpuWatch()
    watch.event(node.inventory(0.0), 0)
    found = [finding for i, xid in enumerate(xids) for finding in watch.event(node.xid(gpu, xid, at + i), 5)]
    return found[-1]


def _incident(finding: Finding, run_id: str = "run-a") -> Incident:
    time = finding.evidence["since"]
    (incident,) = IncidentBook(run_id).apply(finding, segment=0, time=time, checkpoints=UsableOf([]))
    return incident


def _run(run_id: str) -> RunNames:
    return RunNames(run_id, run_id, "p")


def test_one_fault_counts_once_however_often_its_incident_is_told() -> None:
    known = GpuFaultHistory()
    first = known.add(_incident(_finding(10.0, 48)), _run("run-a"))
    assert [fault is not None for _, fault in first] == [True]
    again = known.add(_incident(_finding(10.0, 48)), _run("run-a"))
    assert again == []
    ((field, changed),) = known.add(_incident(_finding(10.0, 48, 63)), _run("run-a"))
    assert (field, changed and changed.xids) == (first[0][0], [48, 63])
    (gpu,) = known.all(20.0)
    assert (gpu.count, gpu.runs, gpu.uuid) == (1, 1, "GPU-gpu-03-2")


@pytest.mark.parametrize("xid", [31, 63 + 78])
def test_what_the_program_did_and_what_is_only_known_is_held_against_no_gpu(xid: int) -> None:
    known = GpuFaultHistory()
    assert known.add(_incident(_finding(10.0, xid)), _run("run-a")) == []
    assert known.all(20.0) == []


def test_a_finding_says_which_fault_of_its_gpu_it_is_and_only_of_the_last_two_weeks() -> None:
    known = GpuFaultHistory()
    for at, run_id in ((0.0, "run-a"), (10 * DAY_S, "run-b"), (12 * DAY_S, "run-b")):
        known.add(_incident(_finding(at + 1, 48), run_id), _run(run_id))
    again = known.with_history(_finding(15 * DAY_S, 95), "run-c")
    assert again.text.endswith("Third fault of this GPU in 14 days, in 2 runs (run-b, run-c).")
    assert again.evidence["history"]["faults"] == 3
    assert known.with_history(_finding(15 * DAY_S, 95, gpu=3), "run-c") == _finding(15 * DAY_S, 95, gpu=3)
    own = _finding(12 * DAY_S + 1, 48)
    assert "Third fault" in known.with_history(own, "run-b").text  # itself counts once
    assert known.with_history(_finding(1.0, 48), "run-a") == _finding(1.0, 48)  # what came later is no history


def test_an_incident_keeps_the_history_of_its_gpu_whatever_came_to_be_known_of_that_time_since() -> None:
    known = GpuFaultHistory()
    first = _incident(known.with_history(_finding(5.0, 95), "run-c"), "run-c")  # nothing was known
    known.add(_incident(_finding(1.0, 48)), _run("run-a"))  # reported late
    assert "fault of this GPU" not in known.with_history(_finding(5.0, 95, 48), "run-c", first).text
    second = _incident(known.with_history(_finding(6.0, 95), "run-d"), "run-d")
    known.add(_incident(_finding(2.0, 48), "run-b"), _run("run-b"))
    again = known.with_history(_finding(6.0, 95, 48), "run-d", second)
    assert again.text.endswith("Second fault of this GPU in 14 days, in 2 runs (run-a, run-d).")
    assert again.evidence["history"] == second.evidence["history"]
    assert "Third fault" in known.with_history(_finding(6.0, 95), "run-d").text
    judged_again = _incident(_finding(6.0, 95), "run-d")  # by frames alone, as after an undo
    assert reconciled([second], [judged_again], 0, 9.0) == [second]


async def test_a_worker_knows_the_faults_that_another_one_has_seen(redis: Redis) -> None:
    ours, other = Fleet(redis, lambda: 20.0), Fleet(redis, lambda: 20.0)
    await other.changed(_run("run-a"), [_incident(_finding(10.0, 48))])
    assert "fault of this GPU" not in ours.gpu_history.with_history(_finding(15.0, 95), "run-b").text
    await ours.refresh_faults()
    assert "Second fault of this GPU" in ours.gpu_history.with_history(_finding(15.0, 95), "run-b").text


def test_the_memory_is_bounded_and_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offenders_module, "MAX_GPUS", 3)
    monkeypatch.setattr(offenders_module, "MAX_FAULTS", 2)
    known, stored = GpuFaultHistory(), set()
    for day in range(1, 9):
        for gpu in range(day % 5 + 1):
            for field, fault in known.add(_incident(_finding(day * DAY_S + gpu, 48, gpu=gpu)), _run("run-a")):
                (stored.discard if fault is None else stored.add)(field)
    found = known.all(9 * DAY_S)
    assert len(found) == 3
    assert {gpu.count for gpu in found} <= {1, 2}
    assert len(stored) == sum(gpu.count for gpu in found)


@pytest.mark.parametrize(
    ("xid", "action", "words"),
    [
        (48, "restart", "without this GPU: reset the GPU"),
        (79, "restart", "reboot its node"),
        (31, "inspect", "bug in the program"),
        (94, "restart", "The job that met the error has to start again"),
        (63, "wait", "watch whether it comes again"),
    ],
)
def test_the_advice_follows_the_class_of_the_fault_and_names_its_source(xid: int, action: str, words: str) -> None:
    said = suggest(_incident(_finding(10.0, xid)), UsableOf([checkpoint(4)]), 5)
    assert said is not None
    assert (said.action, words in said.text, "NVIDIA" in said.source) == (action, True, True)


def test_a_gpu_that_was_at_fault_before_is_to_be_taken_out() -> None:
    known = GpuFaultHistory()
    known.add(_incident(_finding(10.0, 48)), _run("run-a"))
    said = suggest(_incident(known.with_history(_finding(DAY_S, 95), "run-b"), "run-b"), UsableOf([]), 5)
    assert said is not None
    assert "fault number 2 of this GPU" in said.text
    assert "2410.21680" in said.source


async def test_what_can_not_be_read_in_redis_is_passed_over_and_the_rest_is_known(redis: Redis) -> None:
    fleet = Fleet(redis, lambda: 100.0)
    await fleet.changed(_run("run-a"), [_incident(_finding(10.0, 48))])
    await fleet.stopped(_run("run-a"), [], [(0.0, 50.0, 8)])
    junk: Any = {"a": "no JSON", "b": "[]", "c": "{}", "d": '{"uuid": 7, "time": "x"}', "e": b"\xff\xfe"}
    for key in (FLEET_GPU_FAULTS, FLEET_INTERRUPTIONS, FLEET_CATEGORIES):
        await redis.hset(key, mapping=junk)
    again = Fleet(redis, lambda: 100.0)
    await again.load()
    assert [gpu.uuid for gpu in again.gpus().gpus] == ["GPU-gpu-03-2"]
    assert again.interruptions().running_s == 50.0


async def test_what_could_not_be_stored_while_redis_was_away_is_stored_with_the_next_word(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(redis, lambda: 100.0)

    def away(**_: object) -> None:
        raise ConnectionError("away")

    with monkeypatch.context() as broken:
        broken.setattr(redis, "pipeline", away)
        await fleet.changed(_run("run-a"), [_incident(_finding(10.0, 48))])
    assert await redis.hlen(FLEET_GPU_FAULTS) == 0
    await fleet.stopped(_run("run-a"), [], [(0.0, 50.0, 8)])
    assert await redis.hlen(FLEET_GPU_FAULTS) == 1


async def test_what_a_person_said_stays_over_a_restart_and_over_the_deletion_of_the_run(redis: Redis) -> None:
    fleet = Fleet(redis, lambda: 100.0)
    stretches = [TrainingInterval("r0-1", 0.0, 50.0, 0, 50), TrainingInterval("r0-2", 60.0, 90.0, 51, 80)]
    found = interruptions_of(JobStory(stretches, []))
    await fleet.stopped(_run("run-a"), found, [(s.began, s.ended, s.ranks) for s in stretches])
    await fleet.correct("run-a", found[0].id, "nic", "ada")
    await fleet.deleted("run-a")
    again = Fleet(redis, lambda: 100.0)
    await again.load()
    (one,) = again.interruptions().interruptions
    assert (one.category, one.seen_category, one.set_by) == ("nic", "unknown", SetBy("ada", 100.0))
    assert (one.deleted, one.downtime_s, again.interruptions(project="q").count) == (True, 10.0, 0)
