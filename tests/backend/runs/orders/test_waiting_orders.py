"""An order that came while nobody owned its run: one, shown, looked at again by the next owner, or taken back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilitybackend.base.errors import BadRequest, Conflict, NotFound
from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.schema.commands import END_STATES, Command, CommandRequest
from stabilityclient.wire import CommandMessage
from support.job_frames import Job
from support.manager_stack import HELLO, KEYS, Stage, rows

BACK = CommandRequest("rollback", to_step=20, reason="at three", idempotency_key="k1")


class Night:
    """A run without an owner, read by a process of pages, and the worker that takes it next."""

    def __init__(self, stage: Stage, job: Job) -> None:
        self.stage = stage
        self.job = job
        self.sent: list[dict[str, Any]] = []

    async def order(self, request: CommandRequest = BACK, command_id: str = "c1") -> Command:
        return await (await self.stage.reader()).issue(request, command_id=command_id, issuer="anna")

    async def worker(self, *, agents: bool = True) -> RunWorker:
        """Let a worker take the run; its agent is connected."""
        worker = await self.stage.manager.get("run-1")

        async def send(message: CommandMessage) -> None:
            self.sent.append(message.command)

        if agents:
            await worker.agent_connected(HELLO, send)
        await worker.tick()
        return worker

    def open_ones(self) -> set[str]:
        """The commands that its agent was to carry out; ended ones are sent too, for what agents have of them."""
        return {one["command_id"] for one in self.sent if one["state"] not in END_STATES}

    async def left(self) -> int:
        return int(await self.stage.redis.hlen(KEYS.orders))  # type: ignore[misc]


@pytest.fixture
async def night(redis: Redis, tmp_path: Path) -> AsyncIterator[Night]:
    stage, job = Stage(redis, tmp_path / "archive"), Job()
    await stage.send(*rows(job, 1, 40), job.event("checkpoint", 20, path="c/20"), job.rows([41]))
    await stage.restart()
    yield Night(stage, job)
    await stage.manager.stop()


async def test_it_waits_for_everybody_to_see_and_becomes_the_next_owners_command_under_its_own_id(
    night: Night,
) -> None:
    ordered = await night.order()
    assert (ordered.state, ordered.waits, ordered.to_step) == ("pending", "no worker follows the run", 20)
    assert [one.command_id for one in (await night.stage.reader()).commands()] == ["c1"]
    night.stage.now += 5.0
    worker = await night.worker()
    [command] = worker.commands()
    assert (command.command_id, command.state, command.issuer, command.reason) == (
        "c1",
        "delivered",
        "anna",
        "at three",
    )
    assert (command.issued, command.expires) == (ordered.issued, ordered.expires)
    assert night.open_ones() == {"c1"}
    assert "waits" not in night.sent[0]
    assert await night.left() == 0
    states = [one.detail for one in command.history]
    assert states[0].startswith("ordered by anna; no worker follows the run")


async def test_the_same_key_is_one_order_while_it_waits_and_afterwards(night: Night) -> None:
    await night.order()
    assert (await night.order(command_id="c2")).command_id == "c1"
    worker = await night.worker(agents=False)
    assert (await worker.issue(BACK, command_id="c3", issuer="anna")).command_id == "c1"
    worker = await night.worker()
    assert (await worker.issue(BACK, command_id="c4", issuer="anna")).command_id == "c1"
    assert night.open_ones() == {"c1"}


async def test_what_can_be_refused_on_what_is_stored_is_refused_at_once(night: Night) -> None:
    with pytest.raises(BadRequest, match="no usable checkpoint for step 7"):
        await night.order(CommandRequest("rollback", to_step=7))
    await night.order()
    with pytest.raises(Conflict, match="rollback c1 to step 20 is under way"):
        await night.order(CommandRequest("stop"), "c2")
    assert await night.left() == 1


async def test_an_order_on_a_branch_that_the_job_has_left_comes_to_nothing_and_says_why(night: Night) -> None:
    await night.order()
    job = night.job
    await night.stage.send(job.rolled_back(20, "by-itself"), job.rows(range(21, 24)))
    worker = await night.worker()
    [command] = worker.commands()
    assert (command.state, night.open_ones(), await night.left()) == ("failed", set(), 0)
    assert "ordered on segment 0, but the job is in segment 1 now" in command.history[-1].detail


async def test_it_waits_on_until_agents_are_back_and_expires_as_it_would_have_with_a_worker(night: Night) -> None:
    ordered = await night.order()
    worker = await night.worker(agents=False)
    assert [one.state for one in worker.commands()] == ["pending"]
    night.stage.now = ordered.expires + 1.0
    assert [one.state for one in worker.commands()] == ["expired"]
    worker = await night.worker()
    [command] = worker.commands()
    assert (command.state, night.open_ones(), await night.left()) == ("expired", set(), 0)


async def test_it_can_be_taken_back_until_a_worker_has_it(night: Night) -> None:
    await night.order()
    reader = await night.stage.reader()
    gone = await reader.withdraw("c1", "bob")
    assert (gone.state, gone.history[-1].detail) == (
        "failed",
        "taken back by bob before a worker took it; nothing was sent",
    )
    with pytest.raises(NotFound):
        await reader.withdraw("c1", "bob")
    await night.order(command_id="c2")
    worker = await night.worker()
    assert [one.command_id for one in worker.commands()] == ["c2"]
    with pytest.raises(Conflict, match="was taken by a worker"):
        await worker.withdraw("c2", "bob")


async def test_one_that_is_taken_back_at_the_moment_in_which_a_worker_takes_it_is_not_sent(night: Night) -> None:
    await night.order()
    reader = await night.stage.reader()
    worker = await night.worker(agents=False)  # it has read the order, and waits for agents
    await reader.withdraw("c1", "bob")
    worker = await night.worker()
    assert night.open_ones() == set()
    assert [one.state for one in worker.commands()] == ["failed"]


async def test_a_taker_that_dies_right_behind_taking_it_leaves_the_command_to_the_next_one(night: Night) -> None:
    await night.order()
    worker = await night.worker(agents=False)
    state = worker.state
    state.agents.connect(HELLO)
    assert set(await worker.orders.take(state, worker.fence, worker.journal.patiently)) == {"c1"}  # and tells nobody
    await night.stage.restart()
    worker = await night.worker()
    assert (night.open_ones(), await night.left()) == ({"c1"}, 0)
