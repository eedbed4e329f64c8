"""A job that comes up on fewer ranks than before is shown as such; late words of an old launch change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stabilitybackend.judging.liveness.world_size import MAX_LAUNCHES, LaunchSizes, left_nodes, newest_starts
from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.lineage.consumer import Effects
from stabilitybackend.schema.health import AgentHealth, AgentState, RankHealth
from stabilityclient.wire import SourceInfo
from support.checkpoints import checkpoint
from support.saved_state import taken_over


def _inventory(node: str, data: dict[str, Any]) -> LineageEvent:
    return LineageEvent(SourceInfo("a1", node=node), 0, "gpu_inventory", 1.0, None, data)


def _rows(source: str, *steps: int) -> Batch:
    times, values = np.array(steps, float), np.ones((1, len(steps)))
    return Batch.of([Placed(0, source, 0, "n0", ["loss"], np.array(steps), times, values)])


def _world(*launches: tuple[float, int, int]) -> LaunchSizes:
    """A run whose rank 0 started at a time, with so many ranks, and logged from a step on."""
    world = LaunchSizes()
    for started, size, first_step in launches:
        for rank in range(size):
            world.sent([SourceInfo(f"r{rank}-{int(started):x}-1", rank=rank, world_size=size, started=started)])
        world.rows(_rows(f"r0-{int(started):x}-1", first_step, first_step + 9), Effects())
    return world


def _shown(world: LaunchSizes) -> tuple[int, int | None, int | None]:
    view = world.view([])
    return view.now, view.before, view.since_step


def test_the_size_before_and_since_when_are_told() -> None:
    assert _shown(_world((1, 8, 1))) == (8, None, None)
    assert _shown(_world((1, 8, 1), (2, 8, 5))) == (8, None, None)
    assert _shown(_world((1, 8, 1), (2, 6, 11), (3, 6, 21))) == (6, 8, 11)
    assert _shown(_world((1, 8, 1), (2, 6, 11), (3, 8, 21))) == (8, 6, 21)


def test_late_words_of_an_old_launch_change_nothing_of_today() -> None:
    world = _world((1, 8, 1), (2, 6, 11))
    world.sent([SourceInfo("r3-1-1", rank=3, world_size=8, started=1.0)])
    assert (_shown(world), world.size) == ((6, 8, 11), 6)


def test_it_survives_a_restart_of_the_server_and_stays_bounded() -> None:
    world = _world(*((float(at), 2, at) for at in range(1, MAX_LAUNCHES + 20)))
    assert len(world.launches()) == MAX_LAUNCHES
    again = taken_over(world, LaunchSizes())
    assert (again.launches(), again.size) == (world.launches(), world.size)


def test_gpus_are_those_in_use_on_the_nodes_that_are_there() -> None:
    world = _world((1, 2, 1))
    world.event(_inventory("n0", {"gpus": [{"ranks": [0]}, {"ranks": []}, {"ranks": [1]}]}), Effects())
    world.event(_inventory("n1", {"gpus": [{}, {}]}), Effects())
    world.event(_inventory("n2", {"gpus": []}), Effects())
    assert [world.view(nodes).gpus for nodes in (["n0"], ["n0", "n1"], ["n2"], [])] == [2, 4, None, None]


@pytest.mark.parametrize(
    ("saved_at", "fruitless"),
    [([], 0), ([1.5], 2), ([1.5, 2.5], 1), ([1.5, 3.5], 0)],
    ids=["announces none", "the first saved", "the second saved", "the third saved"],
)
def test_launches_without_a_checkpoint_of_their_own_brought_nothing(saved_at: list[float], fruitless: int) -> None:
    checkpoints = [checkpoint(0, time=time) for time in saved_at]
    assert _world((1, 2, 1), (2, 2, 11), (3, 2, 21)).fruitless(checkpoints) == fruitless


def test_a_job_that_announces_no_checkpoints_is_judged_by_its_steps() -> None:
    assert _world((1, 2, 1), (2, 2, 1), (3, 2, 1)).fruitless([]) == 2


def _agent(name: str, node: str, *sources: str, connected: bool = True) -> AgentHealth:
    ranks = [RankHealth(rank=rank, source=source, status=None) for rank, source in enumerate(sources)]
    return AgentHealth(agent=name, node=node, time=1.0, connected=connected, agent_state=AgentState(), ranks=ranks)


def test_the_newest_start_of_each_connected_node_is_known() -> None:
    away = _agent("a2", "n1", "r2-384-9", connected=False)
    assert newest_starts([_agent("a1", "n0", "r0-1f4-7", "r1-1f5-8", "x"), away, _agent("a3", "n2")]) == {"n0": 0x1F5}


def test_a_node_has_left_when_the_connection_of_its_last_agent_ended() -> None:
    nodes = {"a1": "n0", "a2": "n0", "a3": "n1", "a4": "n1", "a5": "n2"}
    agents = [_agent(name, node, connected=name == "a4") for name, node in nodes.items()]
    assert left_nodes(agents, {"a1": 5.0, "a2": 7.0, "a3": 6.0}.get) == {"n0": 7.0}
