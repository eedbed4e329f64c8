"""Laws of the stages: order by need, a replacement in its place, start and stop in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from stabilitybackend.base.settings import Settings
from stabilitybackend.base.tasks import Watched
from stabilitybackend.plugins import load
from stabilitybackend.server.app import stages_of
from stabilitybackend.server.stage import Server, Stage, graph, in_order, needs
from stabilitybackend.server.stages import Options


class Calls(list[str]):
    """Names of calls, in their order."""


class Ground(Stage):
    """Needs nothing else."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    async def start(self) -> None:
        self.calls.append(f"start {type(self).__name__}")

    async def stop(self) -> None:
        self.calls.append(f"stop {type(self).__name__}")


class Soil(Ground):
    """Ground that may be built on."""


class House(Ground):
    """Stands on the ground."""

    def __init__(self, calls: Calls, ground: Ground) -> None:
        super().__init__(calls)
        self.ground = ground


class Roof(Stage):
    """Lies on the house."""

    def __init__(self, house: House) -> None:
        self.house = house

    async def start(self) -> None:
        self.house.calls.append("start Roof")
        raise OSError("blown away")

    async def stop(self) -> None:
        self.house.calls.append("stop Roof")


class Egg(Stage):
    def __init__(self, hen: Hen) -> None:
        self.hen = hen


class Hen(Stage):
    def __init__(self, egg: Egg) -> None:
        self.egg = egg


class Rock(Stage):
    """Ground of another kind."""


class Granite(Rock):
    """A replacement."""


def test_each_stage_comes_after_those_that_it_needs_and_else_in_the_order_given() -> None:
    class Cellar(Stage):
        def __init__(self, rock: Rock) -> None:
            self.rock = rock

    assert in_order([Roof, House, Cellar, Rock], [Calls, Ground]) == [House, Roof, Rock, Cellar]


def test_a_circle_and_a_missing_need_are_errors_that_name_the_stages() -> None:
    with pytest.raises(TypeError, match=r"\{'Egg': \['Hen'\], 'Hen': \['Egg'\]\}"):
        in_order([Egg, Hen])
    with pytest.raises(TypeError, match=r"\{'Roof': \['House'\]\}"):
        in_order([Rock, Roof])


def test_a_subclass_replaces_its_stage_and_is_found_by_either_type() -> None:
    server = Server([Rock, Granite])
    assert [type(one) for one in server.stages] == [Granite]
    assert server[Rock] is server[Granite]


async def test_stages_start_in_order_and_stop_in_reverse() -> None:
    calls = Calls()
    async with Server([House, Soil], calls).running():
        calls.append("up")
    assert calls == ["start Soil", "start House", "up", "stop House", "stop Soil"]


async def test_a_start_that_fails_stops_every_stage() -> None:
    calls = Calls()
    with pytest.raises(OSError, match="blown away"):
        async with Server([Roof, House, Soil], calls).running():
            calls.append("up")
    assert calls == ["start Soil", "start House", "start Roof", "stop Roof", "stop House", "stop Soil"]


@pytest.mark.parametrize("role", [(), ("worker",), ("door", "pages")])
def test_every_stage_of_a_server_says_what_it_needs(tmp_path: Path, role: tuple[str, ...]) -> None:
    url = "redis://127.0.0.1:1"
    shared = {"redis_url": url, "archive_url": str(tmp_path)} if role else {}
    options = Options(Settings(data_dir=tmp_path, role=role, **shared), url, load({}))
    kinds = stages_of(options)
    lines = graph(kinds, [Options, Watched]).splitlines()
    assert [line.split()[0] for line in lines] == [kind.__name__ for kind in in_order(kinds, [Options, Watched])]
    assert 10 <= len(lines) <= 15
    for line, kind in zip(lines, in_order(kinds, [Options, Watched]), strict=True):
        named = set(line.rpartition("<- ")[2].split(", ")) - {"nothing"}
        assert named == {need.__name__ for need in needs(kind).values()} - {"Options", "Watched"}
