"""What is kept of the runs of a project is bounded, and reading it is in nobody's way: real manager, real Redis."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from stabilitybackend.runs.index import RunIndex
from stabilityclient.wire import Hello
from stabilityplugins.other_runs import library
from stabilityplugins.other_runs.library import Library
from support.job_frames import Job
from support.manager_stack import HELLO, Stage, rows


async def followed(stage: Stage, redis: Redis) -> Library:
    """Return the library of a manager that follows two runs of one project."""
    await stage.send(*rows(Job(), 1, 400))
    await RunIndex(redis).register(Hello("run-2", "a1", "n0", "0.1.0"), stage.now)
    await stage.manager.get("run-2")
    return Library(stage.manager, RunIndex(redis))


async def test_a_followed_run_is_kept_too_only_where_there_is_room(
    stage: Stage, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, live = await followed(stage, redis), await stage.manager.get("run-2")
    monkeypatch.setattr(library, "MAX_BYTES", 0)
    assert await found.others(live) == {}
    monkeypatch.undo()
    assert [*await found.others(live)] == [HELLO.run_id]
    monkeypatch.setattr(library, "MAX_BYTES", 0)
    assert [*await found.others(live)] == [HELLO.run_id]


async def test_a_run_that_somebody_has_opened_stays_when_it_was_glanced_at(stage: Stage, redis: Redis) -> None:
    await followed(stage, redis)
    opened = await stage.manager.glance("run-1")
    assert opened.used == stage.now
    await stage.restart()
    assert (await stage.manager.glance("run-1")).used == 0.0


async def test_a_run_that_was_deleted_is_compared_with_none_from_then_on(stage: Stage, redis: Redis) -> None:
    found, live = await followed(stage, redis), await stage.manager.get("run-2")
    assert [*await found.others(live)] == ["run-1"]
    await stage.manager.delete_run("run-1", force=True)
    assert await found.others(live) == {}


async def test_a_run_that_another_worker_follows_is_known_by_what_that_wrote_down_of_it_and_not_read(
    stage: Stage, redis: Redis
) -> None:
    stage.in_redis = True
    await stage.restart()
    of_the_other = await (await followed(stage, redis)).own(await stage.manager.get("run-1"))
    await stage.restart()
    found, live = Library(stage.manager, RunIndex(redis)), await stage.manager.get("run-2")
    known = (await found.others(live))["run-1"]
    assert known.data.tobytes() == of_the_other.data.tobytes()
    assert len(known.data) > 300
    assert [*stage.manager.owned()] == ["run-2"]
