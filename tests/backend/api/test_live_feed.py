"""What a browser's subscription tells of what goes in at the agents' door: real server, real Redis."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer


class Browser:
    """A live subscription."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def subscribe(self, run_id: str | None, cursor: str | None = None) -> dict[str, Any]:
        await self._socket.send(json.dumps({"type": "subscribe", "run_id": run_id, "cursor": cursor}))
        return await self.next("hello")

    async def next(self, *kinds: str) -> dict[str, Any]:
        async with asyncio.timeout(30):  # over all messages: without news a ping comes every 5 s
            while True:
                message: dict[str, Any] = json.loads(await self._socket.recv())
                if message["type"] in kinds:
                    return message

    async def first(self, *kinds: str) -> dict[str, dict[str, Any]]:
        """Return the first message of each kind: those of frames that were read at once have another order."""
        seen: dict[str, dict[str, Any]] = {}
        while len(seen) < len(kinds):
            message = await self.next(*kinds)
            seen.setdefault(message["type"], message)
        return seen

    async def blocks(self, last_step: int) -> list[dict[str, Any]]:
        """Return all blocks of points up to the one that ends with a step; one message has those of many frames."""
        found: list[dict[str, Any]] = []
        while not found or found[-1]["steps"][-1] != last_step:
            found += (await self.next("points"))["blocks"]
        return found


async def test_a_browser_sees_points_a_fork_and_a_checkpoint_as_they_arrive(server: RunningServer) -> None:
    job = Job()
    async with RawAgent(server.agent_url) as agent, connect(server.live_url) as socket:
        await agent.begin(job.rows([1]))
        browser = Browser(socket)
        await browser.subscribe("run-1")
        await agent.store(job.rows([2, 3], {"loss": [1.5, math.nan]}))
        blocks = await browser.blocks(last_step=3)
        rows = [row for one in blocks for row in zip(one["steps"], one["values"]["loss"], strict=True)]
        assert rows[-2:] == [(2, 1.5), (3, "NaN")]
        await agent.store(job.event("checkpoint", 2, path="c/2"), job.rolled_back(2, "k"))
        told = await browser.first("checkpoint", "segments")
        assert (told["checkpoint"]["checkpoint"]["step"], told["segments"]["head"]) == (2, 1)


async def test_a_fork_sends_the_segments_that_it_changed_and_with_the_answer_before_they_are_the_whole_tree(
    server: RunningServer,
) -> None:
    job = Job()
    async with RawAgent(server.agent_url) as agent, connect(server.live_url) as socket:
        for fork in range(1, 6):
            await agent.begin(job.rows([fork, fork + 1, fork + 2]), job.rolled_back(fork, f"k{fork}"))
        whole = await asyncio.to_thread(server.wait_for, "/runs/run-1/segments", lambda r: r["head"] == 5, "five forks")
        browser = Browser(socket)
        await browser.subscribe("run-1")
        await agent.store(job.rows([6, 7]), job.rolled_back(6, "k6"))
        told = await browser.next("segments")
        assert (told["head"], [one["id"] for one in told["segments"]]) == (6, [5, 6])
        known = {one["id"]: one for one in [*whole["segments"], *told["segments"]]}
        now = await asyncio.to_thread(server.get, "/runs/run-1/segments")
        assert list(known.values()) == now["segments"]


async def test_a_new_checkpoint_sends_itself_and_none_of_the_old_ones(server: RunningServer) -> None:
    job = Job()
    async with RawAgent(server.agent_url) as agent, connect(server.live_url) as socket:
        await agent.begin(*(job.event("checkpoint", step, path=f"c/{step}") for step in range(1, 6)))
        await asyncio.to_thread(
            server.wait_for, "/runs/run-1/checkpoints", lambda r: len(r["checkpoints"]) == 5, "five are there"
        )
        browser = Browser(socket)
        await browser.subscribe("run-1")
        await agent.store(job.event("checkpoint", 6, path="c/6"), job.rows([7]))
        told = []
        while (message := await browser.next("checkpoint", "points"))["type"] == "checkpoint":
            told.append(message["checkpoint"]["step"])
        assert told == [6]


async def test_a_browser_that_was_away_gets_what_it_missed_or_is_told_to_fetch_again(server: RunningServer) -> None:
    job = Job()
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows([1]))
        await asyncio.to_thread(server.wait_for, "/runs/run-1", lambda r: r["last_step"] == 1, "step 1 is there")
        async with connect(server.live_url) as socket:
            cursor = (await Browser(socket).subscribe("run-1"))["cursor"]
        await agent.store(job.rows([2]), job.rows([3]))
        await asyncio.to_thread(server.wait_for, "/runs/run-1", lambda r: r["last_step"] == 3, "step 3 is there")
        async with connect(server.live_url) as socket:
            browser = Browser(socket)
            await browser.subscribe("run-1", cursor)
            missed = await browser.blocks(last_step=3)
            assert [step for block in missed for step in block["steps"]] == [2, 3]


@pytest.mark.parametrize("cursor", ["99999999999999-0", "garbage", "", "-1-0"])
async def test_a_cursor_that_this_run_never_had_means_fetch_again(server: RunningServer, cursor: str) -> None:
    job = Job()
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows([1]))
        await asyncio.to_thread(server.wait_for, "/runs/run-1", lambda r: r["last_step"] == 1, "step 1 is there")
        async with connect(server.live_url) as socket:
            browser = Browser(socket)
            await browser.subscribe("run-1", cursor)
            assert (await browser.next("reset", "points"))["type"] == "reset"


async def test_a_wrong_subscription_is_answered_and_the_next_one_works(server: RunningServer) -> None:
    async with connect(server.live_url) as socket:
        for garbage in ("{", '"x"', '{"type":"subscribe","run_id":7}', '{"type":"subscribe","run_id":"none"}'):
            await socket.send(garbage)
            assert json.loads(await socket.recv())["type"] == "error"
        assert (await Browser(socket).subscribe(None))["cursor"] is None
