"""A Redis that lost its newest second does not know files that were written in it: they go, and no frame with them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilitybackend.runs.archiving.archiver import FOREIGN_S
from stabilitybackend.runs.archiving.unlisted import LOOK_AGAIN_S
from stabilitybackend.runs.worker import RunWorker
from support.job_frames import Job
from support.manager_stack import KEYS, Stage, points, rows

LOSSES = {(0, False, step): Job().value(step) for step in range(1, 101)}


@pytest.fixture
async def stage(redis: Redis, tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(redis, tmp_path / "archive")
    yield stage
    await stage.manager.stop()


async def kept(redis: Redis) -> dict[bytes, bytes]:
    """Return all that Redis holds."""
    found: Any = await redis.keys("*")
    return {key: await redis.dump(key) for key in found}


async def set_back(redis: Redis, held: dict[bytes, bytes]) -> None:
    """Let Redis hold what it held."""
    await redis.flushdb()
    for key, value in held.items():
        await redis.restore(key, 0, value)


async def archived_and_set_back(stage: Stage) -> RunWorker:
    """Return the worker of a run whose part was written, after Redis was set back to before it."""
    worker = await stage.send(*rows(Job(), 1, 100))
    held = await kept(stage.redis)
    await worker.flush()
    await stage.manager.stop()
    await set_back(stage.redis, held)
    await stage.restart()
    return await stage.manager.get("run-1")


def stems(stage: Stage) -> set[str]:
    return {name.partition(".")[0] for name in stage.files()}


async def listed(stage: Stage) -> set[str]:
    found: Any = await stage.redis.hkeys(KEYS.parts)
    return {stem.decode() for stem in found}


async def swept(stage: Stage, worker: RunWorker) -> None:
    """Let the run's folder be looked at now, and after whoever may be writing there has had the time to end."""
    await worker._archive.sweep()
    stage.now += FOREIGN_S
    await worker._archive.sweep()


async def test_files_go_whose_note_and_place_in_the_list_redis_lost(stage: Stage) -> None:
    worker = await archived_and_set_back(stage)
    (lost,) = stems(stage)
    await worker.flush()
    assert await worker._archive.sweep()
    assert lost in stems(stage)  # another worker may be writing them still
    stage.now += FOREIGN_S
    assert not await worker._archive.sweep()
    assert (stems(stage), points(worker)) == (await listed(stage), LOSSES)
    assert lost not in stems(stage)


async def test_files_stay_whose_frames_redis_lost_and_nobody_sent_again(stage: Stage) -> None:
    job = Job()
    worker = await stage.send(*rows(job, 1, 100))
    await worker.flush()
    held = await kept(stage.redis)
    later = rows(job, 101, 200)
    await stage.send(*later)
    await worker.flush()
    files = stage.files()
    await stage.manager.stop()
    await set_back(stage.redis, held)  # as from a backup of yesterday
    await stage.restart()
    worker = await stage.manager.get("run-1")
    await swept(stage, worker)
    assert stage.files() == files
    await stage.send(*later)  # its agent has them
    await worker.flush()
    stage.now += LOOK_AGAIN_S
    await worker._archive.sweep()
    assert (stems(stage), stage.files() == files) == (await listed(stage), False)


async def test_what_people_put_beside_a_run_stays_and_a_part_that_was_never_finished_goes(stage: Stage) -> None:
    worker = await stage.send(*rows(Job(), 1, 100))
    await worker.flush()
    before = stage.files()
    (stage.folder / "run-1" / "note.txt").write_text("lost for good")
    (stage.folder / "run-1" / "5-0_9-0-abcd0123.points.parquet").write_bytes(b"half")
    await stage.restart()
    worker = await stage.manager.get("run-1")
    await swept(stage, worker)
    assert stage.files() == sorted([*before, "note.txt"])


async def test_a_run_that_is_deleted_leaves_no_files_that_nobody_knows(stage: Stage) -> None:
    await archived_and_set_back(stage)
    await stage.manager.delete_run("run-1", force=True)
    assert stage.files() == []


async def test_a_bucket_is_asked_for_the_files_of_a_run_once_as_it_is_taken_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await stage.send(*rows(Job(), 1, 100))
    await worker.flush()
    asked: list[str] = []
    location, names = stage.manager.files.location, stage.manager.files.location.names

    def noted(run_id: str) -> list[str]:
        asked.append(run_id)
        return names(run_id)

    monkeypatch.setattr(location, "names", noted)
    for _ in range(20):
        await worker._archive.sweep()
        stage.now += 10.0
    assert asked == ["run-1"]
