"""A hang says which of its ranks sit on a GPU that is known to be broken."""

from __future__ import annotations

import pytest

from stabilitybackend.judging.gpus.watch import GpuWatch
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.gpus import CriticalFault
from stabilityclient.wire import Health
from support.gpu_events import Node
from support.jobs.watched_job import START, Job, source

LOST = "its GPU 1 has fallen off the bus: the node no longer reaches it (Xid 79)"


def because(job: Job) -> list[str]:
    found: list[str] = [finding for finding in job.said if finding.kind == "hang"][-1].evidence["verdict"]["because"]
    return found


def trained() -> Job:
    job = Job(nodes={"a": [0, 1], "b": [2, 3]})
    for rank in range(4):
        job.stuck[rank] = {"gpu": {"index": rank % 2, "uuid": f"GPU-{job.node_of(rank)}-{rank % 2}"}, "proc": {}}
    job.run(60)
    return job


def broken(node: Node, index: int, number: int, time: float) -> list[CriticalFault]:
    watch = GpuWatch()
    watch.event(node.inventory(START), 1)
    watch.event(node.xid(index, number, time), 1)
    return watch.broken()


@pytest.mark.parametrize("rank", [1, 0], ids=["suspect", "another rank"])
def test_the_rank_whose_gpu_fell_off_the_bus_is_named_first_whoever_is_suspected(rank: int) -> None:
    job = trained()
    job.stuck[rank]["phase"] = "data"
    job.gpu_faults = broken(Node("a", gpus=2), 1, 79, job.now + 2.0)
    job.run(15, moving=False)
    assert because(job)[0] == f"rank 1: {LOST}, seen 2 s after the last progress"
    assert not any("rank 3: its GPU" in line for line in because(job))


def test_a_rank_that_does_not_know_its_gpu_any_more_is_found_by_the_inventory() -> None:
    job = trained()
    job.gpu_faults = broken(Node("a", gpus=2), 1, 79, job.now - 5.0)
    job.stuck[1] = {"gpu": None, "proc": {}}
    job.run(15, moving=False)
    assert because(job)[0] == f"rank 1: {LOST}, seen 5 s before the last progress"


def test_a_gpu_that_is_known_to_be_broken_later_is_told_then() -> None:
    job = trained()
    job.run(13, moving=False)
    assert not any("GPU" in line for line in because(job))
    job.gpu_faults = broken(Node("a", gpus=2), 1, 79, job.now)
    assert [finding.kind for finding in job.run(1, moving=False)] == ["hang"]
    assert LOST in because(job)[0]
    assert job.run(2, moving=False) == []


@pytest.mark.parametrize(("number", "name"), [(31, "a"), (79, "c")], ids=["no critical one", "of another node"])
def test_a_fault_that_stops_nothing_here_is_not_told(number: int, name: str) -> None:
    job = trained()
    job.gpu_faults = broken(Node(name, gpus=2), 1, number, job.now)
    job.run(15, moving=False)
    assert not any("GPU" in line for line in because(job))


def test_a_gpu_that_is_back_is_not_told() -> None:
    node, watch = Node("a", gpus=2), GpuWatch()
    watch.event(node.inventory(START), 1)
    watch.event(node.sees(1, "lost", START, "on"), 1)
    assert [fault.uuid for fault in watch.broken()] == ["GPU-a-1"]
    watch.event(node.sees(1, "lost", START + 1, "off"), 1)
    assert watch.broken() == []


def test_a_run_hands_what_it_knows_of_its_gpus_to_its_hang() -> None:
    job = Job()
    state = RunState("run", lambda: job.now)
    job.monitor = state.liveness
    job.run(60)
    node = Node("a", gpus=2)
    for event in (node.inventory(job.now), node.xid(1, 79, job.now)):
        state.apply(node.frame(event), replayed=False)
    for _ in range(15):
        job.now += 1.0
        state.agents.health(Health("agent-a", "a", job.now, [job.slot(0), job.slot(1) | {"source": source(1)}]))
        state.tick()
    (hang,) = state.incidents.of({"hang"})
    assert LOST in hang.evidence["verdict"]["because"][0]
