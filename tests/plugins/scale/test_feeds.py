"""Browsers see the feed of a run whichever process they are connected to: one connection to its owner serves all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from stabilityplugins.scale.shared_stages import SharedWork
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, RunningServer]]:
    """A process that does everything, among others, and one of pages alone."""
    folder = tmp_path_factory.mktemp("feeds")
    with EmbeddedRedis(folder) as redis:
        shared = {"archive_url": str(folder / "archive")}
        with (
            RunningServer(redis.url, folder / "all", role=("door", "worker", "pages"), **shared) as first,
            RunningServer(redis.url, folder / "pages", role=("pages",), **shared) as second,
        ):
            yield first, second


class Browser:
    """A live subscription."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def subscribe(self, run_id: str | None, cursor: str | None = None) -> dict[str, Any]:
        await self._socket.send(json.dumps({"type": "subscribe", "run_id": run_id, "cursor": cursor}))
        return await self.next("hello", "error")

    async def next(self, *kinds: str) -> dict[str, Any]:
        async with asyncio.timeout(60):
            while True:
                message: dict[str, Any] = json.loads(await self._socket.recv())
                if message["type"] in kinds:
                    return message

    async def step(self, step: int) -> None:
        """Wait for the points of a step; nothing is to be fetched again for them."""
        while True:
            message = await self.next("points", "reset")
            assert message["type"] == "points", message
            if message["blocks"][-1]["steps"][-1] == step:
                return


@asynccontextmanager
async def browser(server: RunningServer) -> AsyncIterator[Browser]:
    async with connect(server.live_url) as socket:
        yield Browser(socket)


async def cursor_of(server: RunningServer, run_id: str, step: int) -> str:
    """Return the cursor of an answer that has a step."""
    path = f"/runs/{run_id}/series?metric=loss"
    found = await asyncio.to_thread(
        server.wait_for, path, lambda found: found["series"] and found["series"][-1]["steps"][-1] == step, "it is there"
    )
    return str(found["cursor"])


async def test_points_reach_the_browsers_of_every_process_and_one_that_was_away_gets_what_it_missed(
    servers: tuple[RunningServer, RunningServer],
) -> None:
    first, second = servers
    job = Job()
    async with RawAgent(first.agent_url) as agent:
        await agent.begin(job.rows([1]), run_id="far")
        cursor = await cursor_of(second, "far", 1)
        await agent.store(job.rows([2]))
        async with browser(first) as near, browser(second) as far, browser(second) as again:
            for one in (near, far, again):
                assert (await one.subscribe("far", cursor))["type"] == "hello"
                await one.step(2)
            await agent.store(job.rows([3]))
            for one in (near, far, again):
                await one.step(3)
            assert len(second.app.server[SharedWork].relay.feeds._feeds["far"].channel) == 2
        await agent.store(job.rows([4]))
        async with browser(second) as back:
            await back.subscribe("far", cursor)
            for step in (2, 3, 4):
                await back.step(step)


async def test_a_cursor_that_the_owner_does_not_know_any_more_makes_a_browser_fetch_again(
    servers: tuple[RunningServer, RunningServer],
) -> None:
    first, second = servers
    async with RawAgent(first.agent_url) as agent:
        await agent.begin(Job().rows([1]), run_id="old")
        newest = await cursor_of(second, "old", 1)
        async with browser(second) as one:
            await one.subscribe("old", "9999999999999-0")
            assert (await one.next("reset"))["cursor"] == newest
        async with browser(second) as one:
            await one.subscribe("old", newest)
            await agent.store(Job(start=2).rows([2]))
            assert (await one.next("points", "reset", "segments"))["type"] != "reset"


async def test_a_run_that_is_not_there_is_an_error_and_the_browser_may_ask_for_another(
    servers: tuple[RunningServer, RunningServer],
) -> None:
    _, second = servers
    async with browser(second) as one:
        assert (await one.subscribe("nothing"))["error"]["code"] == "not_found"
        assert (await one.subscribe(None))["type"] == "hello"


async def test_the_list_of_runs_is_told_of_runs_that_other_processes_own(
    servers: tuple[RunningServer, RunningServer],
) -> None:
    first, second = servers
    async with browser(second) as one, RawAgent(first.agent_url) as agent:
        await one.subscribe(None)
        await agent.begin(Job().rows([1]), run_id="listed")
        while (await one.next("run"))["run"]["run_id"] != "listed":
            pass
