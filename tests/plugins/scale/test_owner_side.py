"""A run's owner hands its commands to the doors of the agents, whatever the way there does with them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from stabilitybackend.base.keys import inbox_key
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.schema.commands import CommandRequest
from stabilityplugins.scale.members import Member, Members
from stabilityplugins.scale.roles import owner_side
from stabilityplugins.scale.roles.inbox import Outbox
from stabilityplugins.scale.roles.owner_side import OwnerSide
from stabilityplugins.scale.roles.placer import Placer
from stabilityplugins.scale.roles.reports import RunReports
from support.job_frames import Job
from support.manager_stack import HELLO, Stage, rows


@pytest.fixture
async def stage(redis: Redis, tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(redis, tmp_path / "archive")
    job = Job()
    await stage.send(*rows(job, 1, 40), job.event("checkpoint", 20, path="c/20"), job.rows([41]))
    yield stage
    await stage.manager.stop()


async def test_a_command_that_was_lost_on_its_way_to_a_door_is_sent_again_until_it_is_over(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_side, "HAND_OUT_S", 0.0)
    for name, role in (("d1", "door"), ("w1", "worker")):
        members = Members(stage.redis, Member(name, (role,), f"http://{name}:1"))
        await members.beat()
    outbox, index = Outbox(stage.redis), RunIndex(stage.redis)
    placer = Placer(stage.redis, members, index, stage.manager, outbox, lambda: stage.now)
    side = OwnerSide(stage.redis, members, stage.manager, placer, outbox)
    await RunReports(stage.redis, "run-1").connected(HELLO, "d1")
    await side._round(None)

    async def sent() -> set[str]:
        """Return for which agents something lies in the door's inbox, and let all of it be lost."""
        found = await stage.redis.xrange(inbox_key("d1"))
        await stage.redis.delete(inbox_key("d1"))
        return {fields[b"a"].decode() for _, fields in found}

    worker = stage.manager.followed()["run-1"]
    assert await sent() == set()
    command = await worker.issue(CommandRequest("rollback", to_step=20), command_id="c1", issuer="anna")
    assert await sent() == {"a1"}
    for _ in range(2):
        await side._round(None)
        assert await sent() == {"a1"}
    stage.now = command.expires + 1.0
    await worker.tick()
    await sent()
    await side._round(None)
    assert await sent() == set()
