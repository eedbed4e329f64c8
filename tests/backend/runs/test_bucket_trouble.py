"""A job runs while its bucket is slow, broken, silent or away: nothing is lost or doubled, and the page says why."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.storage.archive import location
from stabilitybackend.storage.archive.location import Location, ObjectStore
from support.agent.s3_server import KEYS, s3_server
from support.agent.store_proxy import Mood, StoreProxy, store_proxy
from support.job_frames import Job
from support.manager_stack import Stage, points, rows

#: What the server's own time-outs are here, seconds: its real ones are 10 and 30.
TIMEOUT_S = 0.5


class BucketStage(Stage):
    """The runs of a server whose archive is a bucket, of which it keeps nothing in memory."""

    cache_bytes = 0

    def _location(self) -> Location:
        return ObjectStore("s3://bucket/runs", clock=lambda: self.now)


@pytest.fixture(scope="module")
def proxy() -> Iterator[StoreProxy]:
    """One for all tests: Polars remembers the endpoint of the first time."""
    with s3_server() as s3, store_proxy(s3) as proxy:
        yield proxy


@pytest.fixture
def bucket(proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch) -> StoreProxy:
    for name, value in (KEYS | {"AWS_ENDPOINT_URL": proxy.url}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(location, "TIMEOUT_S", TIMEOUT_S)
    monkeypatch.setattr(location, "POLARS_TIMEOUT_S", TIMEOUT_S)
    proxy.mood = "well"
    return proxy


@pytest.fixture
async def stage(redis: Redis, bucket: StoreProxy, tmp_path: Path) -> AsyncIterator[Stage]:
    stage = BucketStage(redis, tmp_path)
    yield stage
    bucket.mood = "well"
    bucket.release()  # who still waits for a silent one goes, whatever the test has found
    await stage.manager.delete_run("run-1", force=True)
    await stage.manager.stop()


def _state(worker: RunWorker) -> str:
    return worker.window.facts(worker.state.store).state


async def _assert_whole(stage: Stage, last: int) -> None:
    """Every point is there once, and after a restart too."""
    expected = {(0, False, step): Job().value(step) for step in range(1, last + 1)}
    assert points(await stage.manager.get("run-1")) == expected
    await stage.restart()
    again = await stage.manager.get("run-1")
    assert points(again) == expected
    assert again.state.store.values == last


@pytest.mark.parametrize("mood", ["failing", "away", "silent"])
async def test_a_bucket_that_does_not_take_parts_is_named_and_gets_them_all_when_it_is_well(
    stage: Stage, bucket: StoreProxy, mood: Mood
) -> None:
    job = Job()
    worker = await stage.send(*rows(job, 1, 200))
    await stage.archived(worker, 1)
    bucket.mood = mood
    worker = await stage.send(*rows(job, 201, 400))
    await stage.until(lambda: _state(worker) == "failed", "the trouble is named")
    problem = worker.window.facts(worker.state.store).problem
    assert problem is not None
    assert "s3://bucket/runs/run-1/" in problem
    bucket.mood = "well"
    stage.now += 60.0
    await stage.archived(worker, 2)
    assert worker.window.problem == ""
    await _assert_whole(stage, 400)


async def test_a_bucket_that_answers_slowly_gets_every_part_and_is_no_trouble(stage: Stage, bucket: StoreProxy) -> None:
    bucket.mood, bucket.delay_s = "slow", 0.1
    worker = await stage.send(*rows(Job(), 1, 200))
    await stage.until(lambda: _state(worker) == "archiving", "a part is being written")
    await stage.archived(worker, 1)
    bucket.mood = "well"
    await _assert_whole(stage, 200)


async def test_while_the_bucket_is_away_charts_have_what_redis_holds_and_say_what_is_missing(
    stage: Stage, bucket: StoreProxy
) -> None:
    worker = await stage.send(*rows(Job(), 1, 200))
    await stage.archived(worker, 1)
    bucket.mood = "away"
    view = worker.state.store.view(["loss"])
    (key,) = view.keys("loss")
    steps = view.rows(key).steps.tolist()
    hot_from = worker.state.store.parts[-1].part.last_step
    assert steps == list(range((hot_from or 0) + 1, 201))
    assert any("s3://bucket/runs/run-1/" in problem for problem in view.problems)
