"""A process of pages shows what changes in all runs, as their owners store it, and writes nothing for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from redis.asyncio import Redis

from stabilitybackend.fleet.incident_list import IncidentFilter
from stabilitybackend.runs.feed.pubsub import Subscriber
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.schema.incidents import Incident
from stabilityclient.wire import Hello, SourceInfo
from stabilityplugins.scale.relay.overview import FLEET_EVERY_S, Overview
from support.job_frames import Job
from support.manager_stack import Stage, rows
from support.stored.incident import stored


class Pages:
    """A process of pages, without its HTTP."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.browser = Subscriber()
        stage.manager.ownership.reads_only = True
        stage.manager.overview.join(self.browser)
        self.overview = Overview(stage.redis, stage.manager, RunIndex(stage.redis), lambda: stage.now)

    async def heard(self) -> list[dict[str, Any]]:
        """Look once; return what browsers get."""
        await self.overview.refresh()
        found = []
        while not self.browser._queue.empty():
            found.append(orjson.loads(await self.browser.get()))
        return found


@pytest.fixture
async def owner(redis: Redis, tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(redis, tmp_path / "archive")
    yield stage
    await stage.manager.stop()


@pytest.fixture
async def pages(redis: Redis, tmp_path: Path) -> AsyncIterator[Pages]:
    stage = Stage(redis, tmp_path / "archive")
    yield Pages(stage)
    await stage.manager.stop()


async def reported(owner: Stage, *incidents: Incident) -> None:
    """Let the owner store incidents of its run."""
    worker = await owner.manager.get("run-1")
    worker._unsaved.add_incidents(incidents)
    await worker._conclude(type(worker._unsaved)())


async def test_browsers_are_told_of_each_run_that_changed_and_of_no_other(owner: Stage, pages: Pages) -> None:
    await owner.manager._index.register(Hello("quiet", "a2", "n0", "0.1.0"), owner.now)
    worker = await owner.send(*rows(Job(), 1, 40))
    await worker.tick()
    assert {message["run"]["run_id"] for message in await pages.heard()} == {"run-1", "quiet"}
    assert await pages.heard() == []
    owner.now += 10.0
    await owner.send(*rows(Job(start=2), 41, 60))
    await worker.tick()
    told = [message["run"] for message in await pages.heard() if message["type"] == "run"]
    assert [(run["run_id"], run["last_step"]) for run in told] == [("run-1", 60)]


async def test_incidents_of_other_processes_are_listed_and_told_once_as_they_are_now(
    owner: Stage, pages: Pages
) -> None:
    await owner.send(*rows(Job(), 1, 40))
    await pages.heard()
    await reported(owner, stored(run_id="run-1"))
    await reported(owner, stored(run_id="run-1", version=2, acknowledged_by="anna"))
    told = [message["incident"] for message in await pages.heard() if message["type"] == "incident"]
    assert [(one["incident_id"], one["acknowledged_by"]) for one in told] == [("i-spike", "anna")]
    listed = pages.stage.manager.fleet.incidents.page(IncidentFilter(), 10).incidents
    assert [(one.incident_id, one.acknowledged_by) for one in listed] == [("i-spike", "anna")]
    assert [message for message in await pages.heard() if message["type"] == "incident"] == []


async def test_what_is_remembered_of_all_runs_is_read_again_each_minute(owner: Stage, pages: Pages) -> None:
    agent = Job()
    agent.info = SourceInfo(source="a-n7", node="n7")  # without one the run would be an import, which no figure counts
    seen = agent.event("checkpoint_seen", 20, path="c/20", kind="dcp", complete=True, problem="", bad=[])
    worker = await owner.send(*rows(Job(), 1, 40), seen)
    await pages.stage.manager.fleet.load()
    await owner.manager.fleet.announced(Hello("run-1", "a1", "n7", "0.1.0"))
    await worker.report_to_fleet()
    pages.stage.now += FLEET_EVERY_S + 1.0
    await pages.heard()
    fleet = pages.stage.manager.fleet
    assert fleet.interruptions().runs == 1
    assert [node for node, _ in fleet.catalog.nodes()] == ["n7"]
    await owner.manager.delete_run("run-1", force=True)
    pages.stage.now += FLEET_EVERY_S + 1.0
    await pages.heard()
    assert fleet.catalog.runs() == []
