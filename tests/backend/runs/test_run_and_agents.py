"""A run and those who send to it: agents of a run that is gone, agents that left, messages that make no sense."""

from __future__ import annotations

import pytest
from websockets.exceptions import ConnectionClosed

from stabilitybackend.base.errors import AgentGone
from stabilitybackend.runs.index import RunIndex
from stabilityclient.wire import CommandMessage, Welcome
from support.gateway_stack import RawAgent, RecordingServices, RunningGateway
from support.job_frames import Job
from support.manager_stack import HELLO, Stage, points, rows


async def _no_command(message: CommandMessage) -> None:
    pass


async def test_an_agent_of_a_run_that_is_deleted_is_sent_away_and_makes_it_anew(stage: Stage) -> None:
    await stage.manager.agent_connected(HELLO, _no_command)
    worker = await stage.send(*rows(Job(), 1, 300))
    await stage.archived(worker, 1)
    await stage.manager.delete_run("run-1", force=True)
    with pytest.raises(AgentGone):
        await stage.manager.room("run-1")
    await stage.manager.agent_connected(HELLO, _no_command)
    await stage.manager.room("run-1")
    worker = await stage.send(*rows(Job(), 1, 40))
    assert [run.run_id for run in (await stage.manager.runs(100)).runs] == ["run-1"]
    assert points(worker) == {(0, False, s): Job().value(s) for s in range(1, 41)}


class _Nobody(RecordingServices):
    """A server on which nobody follows the run any more."""

    async def room(self, run_id: str) -> None:
        raise AgentGone("nobody follows it")


async def test_an_agent_whose_run_nobody_follows_is_disconnected_so_that_it_says_hello_again(redis_url: str) -> None:
    with RunningGateway(redis_url, _Nobody()) as gateway:
        async with RawAgent(gateway.url) as agent:
            assert isinstance(await agent.hello(), Welcome)
            await agent.send(Job().rows([1]))
            with pytest.raises(ConnectionClosed):
                await agent.receive()


async def test_that_an_agent_has_left_is_stored_too(stage: Stage) -> None:
    await stage.manager.agent_connected(HELLO, _no_command)
    worker = await stage.send(*rows(Job(), 1, 20))
    await worker.tick()
    await stage.manager.agent_disconnected("run-1", "a1")
    await worker.tick()
    assert (await RunIndex(stage.redis).stored("run-1")).agents == 0


async def test_a_message_that_cannot_be_folded_is_passed_over_and_the_run_goes_on(stage: Stage) -> None:
    job = Job()
    before, poison = rows(job, 1, 40), job.event("segment", 5, key="k", to_step="not a number")
    worker = await stage.send(*before, poison, *rows(job, 41, 80))
    assert points(worker) == {(0, False, s): job.value(s) for s in range(1, 81)}
    assert worker.run().unreadable.passed_over == 1
    await stage.restart()
    assert points(await stage.manager.get("run-1")) == points(worker)
