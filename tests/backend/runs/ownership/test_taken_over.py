"""A server that was stalled while another one took its runs over changes nothing any more, and goes on where it may."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilitybackend.base.errors import Unavailable
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.runs.archiving.archiver import FOREIGN_S
from stabilitybackend.runs.ownership.fence import NotOwner, Ownership
from stabilitybackend.schema.commands import CommandRequest
from support.job_frames import Job
from support.manager_stack import HELLO, KEYS, Stage, points, rows


@pytest.fixture
async def first(redis: Redis, tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(redis, tmp_path / "archive")
    yield stage
    await stage.manager.stop()


@pytest.fixture
async def second(redis: Redis, tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(redis, tmp_path / "archive")
    stage.begun = 0xB000
    yield stage
    await stage.manager.stop()


def hold(stage: Stage) -> None:
    """Let a server take no run that another one has."""

    async def nothing(run_id: str) -> str:
        return ""

    stage.manager.ownership = Ownership("stalled", "http://stalled", replaceable=nothing)
    for worker in stage.manager._workers.values():
        worker.fence._ownership = stage.manager.ownership


async def everything(redis: Redis) -> dict[str, Any]:
    """Return what is stored of the run, without its owner, what only counts on and how it is archived."""
    found: dict[str, Any] = {}
    for name in ("incidents", "commands", "undone"):
        kind: Any = await redis.type(getattr(KEYS, name))
        read = redis.hgetall if kind == b"hash" else redis.smembers
        found[name] = await read(getattr(KEYS, name)) if kind != b"none" else None  # type: ignore[misc]
    for name in ("incident_events", "command_audit"):
        found[name] = await redis.xrange(getattr(KEYS, name))
    return found


async def test_incidents_are_stored_once_where_a_stalled_server_judges_the_same_rows_late(
    first: Stage, second: Stage
) -> None:
    job = Job()
    stalled = await first.send(*rows(job, 1, 180))
    hold(first)
    nan = job.rows(range(181, 190), {"loss": [float("nan")] * 9})
    taken = await second.send(nan, *rows(job, 190, 300))
    before = await everything(second.redis)
    assert before["incidents"]
    stalled.rest.wake()  # it wakes up, reads what came meanwhile, and finds the same
    await first.until(lambda: stalled.moved, "it drops the run")
    assert await everything(second.redis) == before
    assert (stalled.internal_errors._now, taken.fence.lost) == ({}, False)  # no mistake of ours


async def test_an_order_given_at_a_stalled_server_is_refused_and_reaches_no_agent(first: Stage, second: Stage) -> None:
    worker = await first.send(*rows(Job(), 1, 100))
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await first.manager.agent_connected(HELLO, send)
    hold(first)
    await second.manager.get("run-1")
    with pytest.raises(Unavailable, match="taken over by another worker"):
        await worker.issue(CommandRequest("dump_stacks", idempotency_key="key-1"), command_id="c1", issuer="me")
    assert (sent, await second.redis.exists(KEYS.commands)) == ([], 0)


async def test_a_part_that_a_stalled_server_was_writing_is_not_listed_and_its_files_go(
    first: Stage, second: Stage
) -> None:
    job = Job()
    worker = await first.send(*rows(job, 1, 100))
    hold(first)
    await second.manager.get("run-1")
    with pytest.raises(NotOwner):
        await worker.flush()
    assert (first.files(), await second.redis.exists(KEYS.parts)) == ([], 0)
    assert points(await second.manager.get("run-1")) == {(0, False, s): job.value(s) for s in range(1, 101)}


async def test_files_that_a_server_left_unfinished_stay_until_it_can_no_longer_be_writing_them(
    first: Stage, second: Stage
) -> None:
    await first.send(*rows(Job(), 1, 100))
    hold(first)
    await second.redis.sadd(KEYS.garbage, "0-0_1-0-half")  # type: ignore[misc]
    (second.folder / "run-1").mkdir(parents=True, exist_ok=True)
    half = second.folder / "run-1" / "0-0_1-0-half.frames"
    half.write_bytes(b"x")
    taken = await second.manager.get("run-1")
    assert await taken._archive.sweep()
    assert half.exists()
    second.now += FOREIGN_S
    assert not await taken._archive.sweep()
    assert not half.exists()


async def test_a_server_whose_redis_forgot_that_a_run_is_its_own_takes_it_again(first: Stage) -> None:
    job = Job()
    worker = await first.send(*rows(job, 1, 100))
    await first.redis.delete(RunKeys("run-1").owner)
    await first.send(*rows(job, 101, 200))
    await worker.tick()
    await first.until(lambda: worker.readiness.reached and not worker.fence.lost, "it follows the run again")
    assert points(worker) == {(0, False, s): job.value(s) for s in range(1, 201)}
    assert await first.redis.hget(KEYS.owner, "token")  # type: ignore[misc]


async def test_a_run_that_is_let_go_may_be_taken_by_anybody_at_once(first: Stage, second: Stage) -> None:
    hold(second)
    await first.send(*rows(Job(), 1, 100))
    with pytest.raises(NotOwner):
        await second.manager.get("run-1")
    await first.manager.stop()
    assert (await second.manager.get("run-1")).readiness.reached
