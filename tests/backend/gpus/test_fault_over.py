"""A fault of a GPU is over when the GPU is seen to be well, and not when nobody sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.gpus.watch import SEEN_AGAIN_AFTER_S, GpuWatch
from support.gpu_events import Node


def _told(watch: GpuWatch, *events: dict[str, Any]) -> list[Finding]:
    return [finding for event in events for finding in watch.event(event, 100)]


@pytest.fixture
def node() -> Node:
    return Node(first_rank=16)


@pytest.fixture
def watch(node: Node) -> GpuWatch:
    watch = GpuWatch()
    watch.event(node.inventory(0.0), -1)
    return watch


@pytest.mark.parametrize("without", [[1], range(8)], ids=["one", "all"])
def test_a_gpu_that_the_new_agent_does_not_count_is_not_well_until_it_is_there(
    watch: GpuWatch, node: Node, without: Sequence[int]
) -> None:
    _told(watch, node.xid(1, 79, 10.0), node.sees(1, "lost", 11.0, "on", why="not counted"))
    after = node.restarted()
    watch.event(after.inventory(100.0, without=without), 100)
    assert [*watch.tick(1_000.0), *watch.tick(1_000.0 + SEEN_AGAIN_AFTER_S), *watch.tick(90_000.0)] == []
    watch.event(after.inventory(90_000.0), 100)
    assert watch.tick(90_001.0) == []
    (over,) = watch.tick(90_001.0 + SEEN_AGAIN_AFTER_S)
    assert (over.state, over.evidence["gpu"]["index"]) == ("resolved", 1)


def test_a_rank_whose_gpu_is_gone_has_not_moved_because_a_new_agent_gives_it_the_next_one(
    watch: GpuWatch, node: Node
) -> None:
    _told(watch, node.xid(1, 79, 10.0), node.sees(1, "lost", 11.0, "on", why="not counted"))
    guess = node.restarted().inventory(100.0, without=[1])
    guess.data["gpus"][1]["ranks"] = [17, 18]
    assert _told(watch, guess) == []
    assert [fault.over for fault in watch.faults] == [None]


def test_a_driver_that_hung_for_the_whole_node_is_over_when_a_new_agent_sees_its_gpus(
    watch: GpuWatch, node: Node
) -> None:
    hangs = node.sees(0, "call_hangs", 10.0, "on", call="nvmlInit", seconds=45.0)
    hangs.data.update({"uuid": None, "index": None, "bus_id": None, "name": None, "ranks": []})
    _told(watch, hangs)
    watch.event(node.restarted().inventory(100.0), 100)
    watch.tick(1_000.0)
    (over,) = watch.tick(1_000.0 + SEEN_AGAIN_AFTER_S)
    assert (over.state, over.node) == ("resolved", "gpu-03")


@pytest.mark.parametrize(
    ("what", "words"),
    [("lost", "It answers again"), ("reset_required", "It needs no reset"), ("nvlink", "The condition is over")],
)
def test_the_end_of_a_fault_says_what_ended(watch: GpuWatch, node: Node, what: str, words: str) -> None:
    facts = {"down": [1]} if what == "nvlink" else {}
    _told(watch, node.sees(0, what, 10.0, "on", **facts))
    (over,) = _told(watch, node.sees(0, what, 20.0, "off", **facts))
    assert (over.state, over.text.startswith(words)) == ("resolved", True)
