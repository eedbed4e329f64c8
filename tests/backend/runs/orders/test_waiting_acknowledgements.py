"""An acknowledgement that came while nobody owned its run: it counts at once, and the next owner writes it down."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from redis.asyncio import Redis

from stabilitybackend.alerts.service import IncidentStreams
from stabilitybackend.base.errors import NotFound
from stabilitybackend.lineage.consumer import Effects
from support.job_frames import Job
from support.manager_stack import KEYS, Stage, rows


@pytest.fixture
async def stage(redis: Redis, tmp_path: Path) -> AsyncIterator[Stage]:
    """A run with an incident, and nobody who owns it."""
    stage, job = Stage(redis, tmp_path / "archive"), Job()
    await stage.send(*rows(job, 1, 40), job.rows([41], {"loss": [math.nan]}))
    await stage.restart()
    yield stage
    await stage.manager.stop()


async def incident_id(stage: Stage) -> str:
    [found] = (await stage.reader()).state.incidents.all()
    return found.incident_id


async def events(stage: Stage) -> list[dict[str, Any]]:
    """Return what was stored for receivers, oldest first."""
    found: Any = await stage.redis.xrange(KEYS.incident_events)
    return [orjson.loads(fields[b"i"]) for _, fields in found]


async def test_it_is_shown_and_known_to_alerting_at_once_and_the_next_owner_writes_it_down_as_it_was(
    stage: Stage,
) -> None:
    name, alerting = await incident_id(stage), IncidentStreams(stage.redis)
    [before] = await alerting.incidents_now("run-1", [name])
    assert orjson.loads(before or b"")["acknowledged_by"] is None
    answered = await (await stage.reader()).acknowledge(name, "anna")
    at = stage.now
    assert (answered.acknowledged_by, answered.acknowledged) == ("anna", at)
    [waiting] = await alerting.incidents_now("run-1", [name])
    assert [orjson.loads(waiting or b"")[key] for key in ("acknowledged_by", "acknowledged")] == ["anna", at]
    assert len(await events(stage)) == 1  # the owner stores the event
    await stage.manager.readers.stop()  # and to any other process it is the same
    again = (await stage.reader()).state.incidents.get(name)
    assert again is not None
    assert again.acknowledged_by == "anna"
    stage.now += 60.0
    worker = await stage.manager.get("run-1")
    await worker.tick()
    incident = worker.state.incidents.get(name)
    assert incident is not None
    assert (incident.acknowledged_by, incident.acknowledged, incident.updated) == ("anna", at, stage.now)
    assert [(one["version"], one["acknowledged_by"]) for one in await events(stage)] == [(1, None), (2, "anna")]
    assert await stage.redis.exists(KEYS.acknowledged) == 0


async def test_the_first_one_counts_whether_it_waits_or_is_written_down(stage: Stage) -> None:
    name = await incident_id(stage)
    for who in ("anna", "bob"):
        assert (await (await stage.reader()).acknowledge(name, who)).acknowledged_by == "anna"
    worker = await stage.manager.get("run-1")
    assert (await worker.acknowledge(name, "carl")).acknowledged_by == "anna"
    await worker.tick()
    assert {(one["version"], one["acknowledged_by"]) for one in await events(stage)} == {(1, None), (2, "anna")}


async def test_an_owner_that_has_just_come_takes_what_is_stored_behind_its_back(stage: Stage) -> None:
    name, reader = await incident_id(stage), await stage.reader()
    worker = await stage.manager.get("run-1")
    await reader.acknowledge(name, "anna")
    await worker.orders_came()  # as the report says that was stored with it
    await worker.tick()
    assert [(one["version"], one["acknowledged_by"]) for one in await events(stage)] == [(1, None), (2, "anna")]
    reports: Any = await stage.redis.xrange(KEYS.reports)
    assert [fields for _, fields in reports] == [{b"o": name.encode()}]


async def test_an_incident_that_is_not_there_is_refused(stage: Stage) -> None:
    with pytest.raises(NotFound, match="has no incident i-none"):
        await (await stage.reader()).acknowledge("i-none", "anna")


async def test_one_that_comes_while_another_is_written_down_is_not_forgotten_with_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await incident_id(stage)
    await (await stage.reader()).acknowledge(name, "anna")
    worker = await stage.manager.get("run-1")
    conclude = worker._conclude

    async def beside(changes: Effects) -> None:
        await conclude(changes)
        if name in changes.incidents:
            await worker.orders.acknowledged.put("i-2", "bob", stage.now)

    monkeypatch.setattr(worker, "_conclude", beside)
    await worker._take_acknowledged()
    assert await stage.redis.hkeys(KEYS.acknowledged) == [b"i-2"]  # type: ignore[misc]
