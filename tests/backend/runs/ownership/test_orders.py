"""An order that was stored is answered as such, whoever owns the run by the time that it is sent to the agents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from stabilitybackend.schema.commands import CommandRequest
from stabilityclient.wire import CommandMessage
from support.job_frames import Job
from support.manager_stack import HELLO, Stage, rows


@pytest.fixture
async def stages(redis: Redis, tmp_path: Path) -> AsyncIterator[tuple[Stage, Stage]]:
    made = Stage(redis, tmp_path / "archive"), Stage(redis, tmp_path / "archive")
    yield made
    for stage in made:
        await stage.manager.stop()


async def test_an_order_whose_run_is_taken_over_while_it_is_sent_is_answered_and_is_there_for_the_next_owner(
    stages: tuple[Stage, Stage],
) -> None:
    first, second = stages
    worker = await first.send(*rows(Job(), 1, 40))

    async def send(message: CommandMessage) -> None:
        await second.manager.get("run-1")  # it takes the run

    await worker.agent_connected(HELLO, send)
    issued = await worker.issue(CommandRequest("dump_stacks"), command_id="c-1", issuer="anna")
    assert issued.command_id == "c-1"
    assert worker.fence.lost
    there = (await second.manager.get("run-1")).state.commands.get("c-1")
    assert there is not None
    assert there.issuer == "anna"
