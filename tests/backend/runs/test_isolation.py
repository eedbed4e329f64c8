"""What the server fails at in one run stays in that run: it is listed as failed, can be deleted, and others go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stabilitybackend.base.errors import NotFound, Unavailable
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.runs.run_listing import SAVE_EVERY_S
from stabilityclient.wire import Health, Hello
from support.job_frames import Job
from support.manager_stack import HELLO, Stage, rows

OTHER = Hello("run-2", "a2", "n1", "0.1.0")


async def _send(command: dict[str, Any]) -> None:
    pass


def _fails() -> Any:
    raise TypeError("unhashable type: 'dict'")


async def _two_runs(stage: Stage) -> None:
    await stage.manager.agent_connected(OTHER, _send)
    await stage.send(*rows(Job(), 1, 40))


async def _statuses(stage: Stage) -> dict[str, str]:
    return {run.run_id: run.status for run in (await stage.manager.runs(100)).runs}


async def test_a_run_whose_page_fails_is_listed_as_failed_with_the_reason_and_what_was_known(stage: Stage) -> None:
    await _two_runs(stage)
    worker = await stage.manager.get("run-1")
    stage.now += SAVE_EVERY_S  # what only counts on is due
    await worker.tick()
    worker.state.view = _fails  # type: ignore[method-assign]
    found = {run.run_id: run for run in (await stage.manager.runs(100)).runs}
    assert (found["run-1"].status, found["run-1"].last_step) == ("failed", 40)
    assert "The server fails at working out its page (TypeError: unhashable type: 'dict')" in found["run-1"].note
    assert found["run-2"].status == "running"


async def test_a_run_that_can_not_be_judged_says_so_and_is_followed_on(stage: Stage) -> None:
    await _two_runs(stage)
    worker = await stage.manager.get("run-1")
    worker.state.ticking = _fails  # type: ignore[method-assign]
    await worker.tick()
    assert "The server fails at judging it (TypeError: unhashable type: 'dict')" in worker.run().note
    assert await stage.send(*rows(Job(1), 41, 60)) is worker
    assert worker.run().last_step == 60


async def test_a_word_of_an_agent_at_which_the_server_fails_costs_the_agent_nothing_and_is_told(stage: Stage) -> None:
    await _two_runs(stage)
    worker = await stage.manager.get("run-1")
    worker.state.agents.health = lambda health, **how: _fails()  # type: ignore[method-assign]
    await stage.manager.health("run-1", Health("a1", "n0", 1.0, []))
    assert "The server fails at taking what its agents report" in worker.run().note


async def test_judging_that_works_again_is_told_no_more(stage: Stage) -> None:
    await _two_runs(stage)
    worker = await stage.manager.get("run-1")
    good = worker.state.ticking
    worker.state.ticking = _fails  # type: ignore[method-assign]
    await worker.tick()
    worker.state.ticking = good  # type: ignore[method-assign]
    await worker.tick()
    assert "fails" not in worker.run().note


async def _nothing_to_take_up(stage: Stage) -> None:
    """Store of run-1 what no version of the server can take up, and start the server again."""
    await _two_runs(stage)
    await stage.manager.stop()
    await stage.redis.set(RunKeys("run-1").undone, "no set")
    await stage.restart()


async def test_a_stored_incident_that_can_not_be_read_is_passed_over_and_told_on_its_run(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await _two_runs(stage)
    worker = await stage.manager.get("run-1")
    worker.state.liveness.event(LineageEvent(Job().info, 0, "exception", stage.now, None, {}), stage.now)
    await worker.tick()
    await stage.manager.stop()
    await stage.redis.hset(RunKeys("run-1").incidents, "i-1", b'{"kind": "process_death"}')
    await stage.restart()
    worker = await stage.manager.get("run-1")
    assert [one.kind for one in worker.state.incidents.all()] == ["process_death"]
    assert 'The server fails at reading its stored incidents (Misfit: b\'{"kind": ' in worker.run().note
    assert "run run-1: an incident is passed over" in caplog.text
    assert (await _statuses(stage))["run-1"] == "crashed"


async def test_a_run_that_can_not_be_taken_up_fails_at_once_and_no_other_with_it(stage: Stage) -> None:
    await _nothing_to_take_up(stage)
    with pytest.raises(Unavailable, match="the server fails at following run run-1"):
        await stage.manager.get("run-1")
    assert (await _statuses(stage))["run-1"] == "failed"
    await stage.manager.get("run-2")


async def test_a_run_that_failed_stays_failed_while_it_is_tried_again_until_it_is_taken_up(stage: Stage) -> None:
    await _nothing_to_take_up(stage)
    with pytest.raises(Unavailable):
        await stage.manager.get("run-1")
    for _ in range(3):
        again = asyncio.create_task(stage.manager.get("run-1"))
        await asyncio.sleep(0)  # its worker has begun
        assert (await _statuses(stage))["run-1"] == "failed"
        with pytest.raises(Unavailable):
            await again
    await stage.redis.delete(RunKeys("run-1").undone)
    await stage.manager.get("run-1")
    assert (await _statuses(stage))["run-1"] == "running"


async def test_a_run_that_can_not_be_taken_up_can_be_deleted(stage: Stage) -> None:
    await _nothing_to_take_up(stage)
    await stage.manager.delete_run("run-1")
    assert await RunIndex(stage.redis).ids() == ["run-2"]
    with pytest.raises(NotFound):
        await stage.manager.get("run-1")


async def test_a_run_whose_page_fails_can_be_deleted_by_force_while_its_agent_is_there(stage: Stage) -> None:
    await _two_runs(stage)
    await stage.manager.agent_connected(HELLO, _send)
    worker = await stage.manager.get("run-1")
    worker.state.view = _fails  # type: ignore[method-assign]
    await stage.manager.delete_run("run-1", force=True)
    assert await RunIndex(stage.redis).ids() == ["run-2"]


async def test_a_server_that_starts_follows_the_other_runs_though_it_fails_at_one(stage: Stage) -> None:
    await _nothing_to_take_up(stage)
    await stage.manager.start()
    await stage.manager.get("run-2")
    assert set(await _statuses(stage)) == {"run-1", "run-2"}
