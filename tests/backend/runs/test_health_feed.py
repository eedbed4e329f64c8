"""The health message tells what changed and nothing twice, and whoever came late has it right all the same."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import msgspec
import numpy as np
import orjson
import pytest

from stabilitybackend.base.slices import at_once
from stabilitybackend.judging.gpus.readings import GpuReadings
from stabilitybackend.judging.liveness.rank_status import RankStatuses
from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.lineage.consumer import Effects
from stabilitybackend.runs.feed.health import WHOLE_EVERY, HealthFeed
from stabilitybackend.runs.feed.messages import publish
from stabilitybackend.runs.feed.pubsub import Channel, Subscriber
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.health import AgentHealth, read_health
from stabilityclient.wire import Health


class Watched:
    """A feed with one browser."""

    def __init__(self) -> None:
        self.channel, self.browser = Channel(), Subscriber()
        self.channel.join(self.browser)
        self.feed = HealthFeed(self.channel)
        self.judged = RankStatuses({"r0-1-9": "running", "r1-1-8": "running"})

    def told(self, *agents: AgentHealth) -> dict[str, Any]:
        """Return the one message after these agents spoke."""
        for agent in agents:
            self.feed.put(agent)
        at_once(self.feed.flushing(lambda: self.judged))
        return dict(orjson.loads(asyncio.run(self.browser.get())))


def agent(time: float, *, name: str = "a1", step: int = 5, **rank: Any) -> AgentHealth:
    slot = {"rank": 0, "source": "r0-1-9", "alive": True, "state": "running", "pid": 9, "beat": int(time), "step": step}
    slot |= {"step_start": 100.0, "phase": "data", "phase_start": 100.5, "proc": {"state": "R", "cpu": 0.5}} | rank
    return read_health(Health(name, "n1", time, [slot]))[0]


def test_an_agent_comes_whole_at_first_and_then_with_what_changed_only() -> None:
    watched = Watched()

    first, same, moved = watched.told(agent(101)), watched.told(agent(102)), watched.told(agent(103, step=6))

    assert [one["agent"] for one in first["whole"]] == ["a1"]
    assert (same["whole"], same["news"]) == ([], [{"agent": "a1", "time": 0}])
    assert (moved["whole"], moved["news"]) == ([], [{"agent": "a1", "time": 0, "step": 6}])


def test_what_hardly_ever_changes_brings_the_whole_agent() -> None:
    watched = Watched()
    watched.told(agent(101))

    assert watched.told(agent(102, alive=False))["whole"][0]["ranks"][0]["alive"] is False
    away = agent(103, alive=False)
    away.connected = False
    assert watched.told(away)["whole"][0]["connected"] is False


def test_whoever_comes_later_is_told_every_column_once_more() -> None:
    watched = Watched()
    watched.told(agent(101))
    watched.channel.join(Subscriber())

    news = watched.told(agent(102))["news"][0]

    assert (news["step"], news["since"], news["proc"]) == (5, -15, "R")


def test_every_agent_is_told_whole_from_time_to_time() -> None:
    watched = Watched()
    told = [watched.told(agent(101 + look))["whole"] for look in range(2 * WHOLE_EVERY)]

    assert sum(bool(one) for one in told) == 3


def test_a_beat_that_stands_is_told_with_the_moment_at_which_it_last_moved() -> None:
    watched = Watched()
    told = [watched.told(agent(time, beat=7)) for time in (101, 102, 103, 104, 105)]
    moves = watched.told(agent(106, beat=8))

    assert [one["news"][0].get("beat", "as before") for one in told] == ["as before"] * 3 + [-30, "as before"]
    assert moves["news"][0]["beat"] is None


def test_ranks_that_do_the_same_share_one_value() -> None:
    watched = Watched()
    both = agent(101)
    both.ranks.append(msgspec.structs.replace(both.ranks[0], rank=1, source="r1-1-8", step=4))
    watched.told(both)
    watched.channel.join(Subscriber())

    message = watched.told(both)

    news = message["news"][0]
    assert (news["step"], message["words"][news["phase"]], news["proc"]) == ([5, 4], "data", "RR")


def test_what_a_rank_does_is_told_when_it_changes_though_its_agent_is_silent() -> None:
    watched = Watched()
    first = watched.told(agent(101))
    watched.judged = RankStatuses({"r0-1-9": "unheard"}, [0])

    message = watched.told()

    assert first["words"][first["news"][0]["status"]] == "running"
    assert (message["words"], message["waits_for"]) == (["unheard"], [0])
    assert message["news"] == [{"agent": "a1", "status": 0}]


def test_a_process_that_another_one_has_replaced_has_an_empty_status() -> None:
    watched = Watched()
    message = watched.told(agent(101, source="r0-0-9"))
    assert message["words"][message["news"][0]["status"]] == ""


def test_nothing_is_kept_for_nobody() -> None:
    watched = Watched()
    watched.told(agent(101))
    watched.channel.leave(watched.browser)
    watched.feed.put(agent(102))
    at_once(watched.feed.flushing(RankStatuses))
    watched.channel.join(watched.browser)

    assert [one["agent"] for one in watched.told(agent(103))["whole"]] == ["a1"]


def test_the_newest_reading_of_each_gpu_is_there_for_a_page_that_opens() -> None:
    readings = GpuReadings()
    names = ["gpu/0/util_pct", "gpu/1/temp_c", "gpu/x/temp_c", "cpu/0/util_pct", "gpu/0/power_w"]
    values = np.array([[90, 97], [60, 61], [1, 1], [1, 1], [500, np.nan]], "<f8")

    rows = Placed(0, "a1", None, "n1", names, np.array([1, 2]), np.array([1.0, 2.0]), values)
    readings.rows(Batch.of([rows]), Effects())

    assert readings.of("n1") == {"0": {"util_pct": 97.0}, "1": {"temp_c": 61.0}}
    assert readings.of("n2") == {}


def _published(names: list[str], values: list[float]) -> dict[str, Any]:
    placed = Placed(
        0, "a-1", None, "n1", names, np.array([7]), np.array([5.0]), np.array(values, dtype=float).reshape(-1, 1)
    )
    channel = Channel()
    browser = Subscriber()
    channel.join(browser)
    publish(channel, RunState("r", lambda: 5.0), Effects(batches=[Batch.of([placed])]), "1-0")
    block: dict[str, Any] = orjson.loads(asyncio.run(browser.get()))["blocks"][0]
    return block


def test_readings_of_a_nodes_gpus_name_each_field_once() -> None:
    block = _published(["gpu/0/temp_c", "gpu/0/power_w", "gpu/3/power_w"], [50.0, math.nan, 600.0])

    assert block["values"] == {}
    assert block["gpus"] == {
        "fields": ["temp_c", "power_w"],
        "index": [0, 3],
        "values": [[50.0, "NaN"], [None, 600.0]],
    }


@pytest.mark.parametrize("odd", ["cpu/load", "gpu/x/temp_c", "gpu/00/temp_c"])
def test_metrics_that_are_no_reading_of_a_gpu_keep_their_names(odd: str) -> None:
    block = _published(["gpu/0/temp_c", odd], [50.0, 1.0])

    assert "gpus" not in block
    assert block["values"] == {"gpu/0/temp_c": [50.0], odd: [1.0]}
