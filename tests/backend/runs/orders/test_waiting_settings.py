"""Settings of detectors that came while nobody owned the run: the next owner notes from which frame on they hold."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.base.streams import next_id
from stabilitybackend.runs.detector_settings import DetectorSettings
from stabilitybackend.runs.worker import RunWorker
from stabilityclient.wire import Frame
from support.job_frames import Job
from support.manager_stack import KEYS, Stage

DEAF: dict[str, dict[str, float]] = {"curve": {"sensitivity": 0}}


def spiky(job: Job, first: int, last: int, spike: int) -> list[Frame]:
    """Return frames of a quiet loss with one spike of six steps."""
    losses = {step: 9.0 if spike <= step < spike + 6 else 2.0 + 0.01 * math.sin(step) for step in range(first, last)}
    return [
        job.rows(range(at, at + 20), {"loss": [losses[step] for step in range(at, at + 20)]})
        for at in range(first, last, 20)
    ]


def spikes(worker: RunWorker) -> list[int]:
    return sorted(one.onset_step for one in worker.state.incidents.all() if one.kind == "spike")


def changes(settings: DetectorSettings) -> list[tuple[str, str, float]]:
    return [(one.position, one.who, one.time) for one in settings.shown().changes]


@pytest.fixture
def job() -> Job:
    return Job()


@pytest.fixture
async def stage(redis: Redis, tmp_path: Path, job: Job) -> AsyncIterator[Stage]:
    """A run with a spike at step 200 of 300, and nobody who owns it."""
    stage = Stage(redis, tmp_path / "archive")
    await stage.send(*spiky(job, 1, 301, 200))
    await stage.restart()
    yield stage
    await stage.manager.stop()


async def waiting(stage: Stage) -> int:
    return int(await stage.redis.llen(KEYS.settings_waiting))  # type: ignore[misc]


async def taken(stage: Stage) -> RunWorker:
    """Return the worker that owns the run now, once it has taken what waited."""
    worker = await stage.manager.get("run-1")
    await worker.tick()
    assert await waiting(stage) == 0
    return worker


async def test_they_are_shown_at_once_and_hold_from_the_frame_at_which_the_next_owner_took_them_whoever_folds_it_again(
    stage: Stage, job: Job
) -> None:
    reader = await stage.reader()
    shown = await reader.detectors.replace(DEAF, "anna", reader.cursor)
    at = stage.now
    assert (shown.settings, changes(reader.detectors)) == (DEAF, [("", "anna", at)])
    await stage.manager.readers.stop()  # and to any other process it is the same
    assert changes((await stage.reader()).detectors) == [("", "anna", at)]
    stage.now += 60.0
    worker = await taken(stage)
    position = next_id(worker.cursor)
    assert (spikes(worker), changes(worker.detectors)) == ([200], [(position, "anna", at)])
    worker = await stage.send(*spiky(job, 301, 601, 500))
    assert spikes(worker) == [200]
    await stage.manager.stop()
    for state in stage.folder.rglob("*.state"):
        state.write_bytes(b"damaged")
    await stage.restart()
    again = await stage.manager.get("run-1")
    assert (spikes(again), changes(again.detectors)) == ([200], [(position, "anna", at)])


async def test_of_several_that_wait_the_last_one_counts_and_one_that_comes_twice_is_one(stage: Stage) -> None:
    reader = await stage.reader()
    for settings, who in (({}, "anna"), (DEAF, "anna"), (DEAF, "anna"), ({}, "bob")):
        await reader.detectors.replace(settings, who, reader.cursor)
    assert await waiting(stage) == 3
    worker = await taken(stage)
    await worker.detectors.replace({}, "bob", worker.cursor)  # sent to the next owner, too
    assert [one.who for one in worker.detectors.shown().changes] == ["bob", "anna", "anna"]
    assert worker.detectors.shown().settings == {}


async def test_an_owner_that_has_just_come_takes_what_is_stored_behind_its_back(stage: Stage) -> None:
    reader, worker = await stage.reader(), await stage.manager.get("run-1")
    await reader.detectors.replace(DEAF, "anna", reader.cursor)
    await worker.orders_came()  # as the report says that was stored with it
    await worker.tick()
    assert changes(worker.detectors) == [(next_id(worker.cursor), "anna", stage.now)]
    reports: Any = await stage.redis.xrange(KEYS.reports)
    assert [fields for _, fields in reports] == [{b"o": b"settings"}]


async def test_who_sets_them_at_the_owner_before_it_took_those_that_wait_comes_after_them(stage: Stage) -> None:
    reader = await stage.reader()
    await reader.detectors.replace({}, "anna", reader.cursor)
    worker = await stage.manager.get("run-1")
    await worker.detectors.replace(DEAF, "bob", worker.cursor)
    assert [one.who for one in worker.detectors.shown().changes] == ["bob", "anna"]
    assert worker.detectors.shown().settings == DEAF


async def test_what_can_not_be_set_is_refused_and_nothing_waits(stage: Stage) -> None:
    reader = await stage.reader()
    with pytest.raises(BadRequest, match="sensitivity"):
        await reader.detectors.replace({"curve": {"sensitivity": 9}}, "anna", reader.cursor)
    assert await waiting(stage) == 0
