"""A run that this process does not own is read whole, and nothing is written: neither in Redis nor in the archive."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilitybackend.base.errors import NotFound, Unavailable
from stabilitybackend.runs.reading import readers
from stabilitybackend.runs.reading.reader import RunReader
from stabilitybackend.schema.incidents import encoded
from support.job_frames import Job
from support.manager_stack import KEYS, WINDOW_BYTES, Stage, points, rows
from support.stored.incident import stored as stored_incident


@pytest.fixture
async def owner(redis: Redis, tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(redis, tmp_path / "archive")
    yield stage
    await stage.manager.stop()


@pytest.fixture
async def other(redis: Redis, tmp_path: Path) -> AsyncIterator[Stage]:
    """A process that takes no runs."""
    stage = Stage(redis, tmp_path / "archive", tmp_path / "restart")
    stage.manager.ownership.reads_only = True
    yield stage
    await stage.manager.stop()


async def stored(stage: Stage) -> dict[str, Any]:
    """Return all of Redis and of the archive, byte for byte."""
    found: dict[str, Any] = {}
    async for key in stage.redis.scan_iter(count=1_000):
        found[key.decode()] = await stage.redis.dump(key)
    for path in sorted(stage.folder.rglob("*")):
        if path.is_file():
            found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


async def test_a_reader_shows_what_the_owner_does_and_changes_no_byte(owner: Stage, other: Stage) -> None:
    job = Job()
    worker = await owner.send(*rows(job, 1, 400))
    await owner.archived(worker, 1)
    await owner.manager.stop()
    before = await stored(owner)
    await other.manager.start()
    reader = await other.manager.get("run-1")
    assert points(reader) == points(worker)
    assert reader.state.fold.tree.view().segments == worker.state.fold.tree.view().segments
    await other.manager.runs(10)
    await reader.tick()
    await reader.report_to_fleet()
    await reader.flush()
    for refused in (reader.compact(), reader.delete_files(), reader.undo_segment(0, "me")):
        with pytest.raises(Unavailable, match="no worker follows"):
            await refused
    await other.manager.stop()
    assert await stored(owner) == before
    assert not (other.restart_folder or Path()).exists()


async def test_a_reader_follows_while_the_owner_makes_parts_of_what_it_reads(owner: Stage, other: Stage) -> None:
    job = Job()
    worker = await owner.send(*rows(job, 1, 100))
    reader = await other.manager.get("run-1")
    for first in range(101, 1_301, 100):
        worker = await owner.send(*rows(job, first, first + 99))
    await owner.archived(worker, 8)

    def settled() -> bool:
        fits = reader.state.store.hot_bytes <= 2 * WINDOW_BYTES
        return reader.readiness.reached and reader.cursor == worker.cursor and fits

    await other.until(settled, "all is read, and memory holds no more than two windows of it")
    assert points(reader) == points(worker)


async def test_incidents_and_the_run_are_shown_as_the_owner_stored_them_last(owner: Stage, other: Stage) -> None:
    worker = await owner.send(*rows(Job(), 1, 40))
    reader = await other.manager.get("run-1")
    assert reader.state.incidents.all() == []
    owner.now += 10.0
    await worker.tick()
    one = encoded(stored_incident(incident_id="i-1", run_id="run-1"))
    await owner.redis.hset(KEYS.incidents, "i-1", one)  # type: ignore[misc]
    await owner.redis.xadd(KEYS.incident_events, {"i": one})
    await other.until(lambda: reader.state.incidents.get("i-1"), "the incident is read")
    await other.until(lambda: reader.run().last_step == 40, "the run is read")


async def test_a_reader_of_a_deleted_run_ends(owner: Stage, other: Stage) -> None:
    await owner.send(*rows(Job(), 1, 40))
    reader = await other.manager.get("run-1")
    await owner.manager.delete_run("run-1", force=True)
    await other.until(lambda: reader.is_over, "the reader ends")
    with pytest.raises(NotFound):
        await other.manager.get("run-1")


async def test_a_reader_that_nobody_asks_is_let_go(owner: Stage, other: Stage) -> None:
    await owner.send(*rows(Job(), 1, 40))
    reader = await other.manager.get("run-1")
    await other.manager.readers.let_idle_go()
    assert await other.manager.get("run-1") is reader
    other.now += readers.IDLE_S + 1.0
    await other.manager.readers.let_idle_go()
    assert (len(other.manager.readers), reader.is_over) == (0, True)


async def test_a_process_that_follows_runs_reads_those_of_others_for_a_comparison(owner: Stage, other: Stage) -> None:
    await owner.send(*rows(Job(), 1, 40))
    other.manager.reads_only, other.manager._placed = False, True
    assert isinstance(await other.manager.read("run-1"), RunReader)
    assert isinstance(await other.manager.glance("run-1"), RunReader)
    assert other.manager.followed() == {}
