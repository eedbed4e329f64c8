"""Keys of one project, sessions, and what ends with them, on the whole server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from stabilitybackend.access.auth import SCOPES, KeyRing
from stabilityclient.wire import Error, Message, Welcome
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer

DAY_S = 86_400.0


class Stage:
    """A server that other machines reach, and its keys."""

    def __init__(self, server: RunningServer, ring: KeyRing) -> None:
        self.server = server
        self.ring = ring

    async def key(self, name: str, *scopes: str, project: str | None = None) -> tuple[str, str]:
        """Make a key and return its id and its text."""
        key, text = await self.ring.create(name, scopes or SCOPES, project)
        return key.key_id, text

    def client(self, key: str | None = None) -> httpx.AsyncClient:
        """A program with a key, or a browser without."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(base_url=f"{self.server.url}/api/v1", headers=headers, timeout=20)

    async def hello(self, key: str, run_id: str, project: str) -> Message:
        """Say hello as an agent, and go."""
        async with RawAgent(self.server.agent_url, key) as agent:
            return await agent.hello(run_id, sources=[Job().info], project=project)


@pytest.fixture
async def stage(redis: Redis, redis_url: str, tmp_path: Path) -> AsyncIterator[Stage]:
    ring = KeyRing(redis)
    await ring.create("first")
    server = await asyncio.to_thread(RunningServer(redis_url, tmp_path, host="0.0.0.0").__enter__)
    yield Stage(server, ring)
    await asyncio.to_thread(server.__exit__, None, None, None)


async def test_an_agents_key_of_one_project_sends_to_its_runs_only(stage: Stage) -> None:
    _, llm = await stage.key("llm", "agent", project="llm")
    _, any_project = await stage.key("all", "agent")
    assert isinstance(await stage.hello(llm, "mine", "llm"), Welcome)
    assert isinstance(await stage.hello(any_project, "theirs", "vision"), Welcome)
    refused = [("theirs", "llm"), ("theirs", ""), ("theirs", "vision"), ("mine", "vision"), ("new", "vision")]
    for run_id, project in refused:
        answer = await stage.hello(llm, run_id, project)
        assert isinstance(answer, Error)
        assert (answer.code, answer.fatal) == ("wrong_project", True)
    # Whose the run is, is not said to who may not see it.
    assert "vision" not in str(await stage.hello(llm, "theirs", "llm"))


async def test_no_later_hello_moves_a_run_to_another_project(stage: Stage) -> None:
    _, any_project = await stage.key("all", "agent", "read")
    assert isinstance(await stage.hello(any_project, "mine", "llm"), Welcome)
    assert isinstance(await stage.hello(any_project, "unnamed", ""), Welcome)
    for run_id, project, since in (("mine", "vision", "the project 'llm'"), ("unnamed", "vision", "no project")):
        answer = await stage.hello(any_project, run_id, project)
        assert isinstance(answer, Error)
        assert (answer.code, answer.fatal) == ("wrong_project", True)
        assert f"is of {since} since its first Hello" in answer.message
    assert isinstance(await stage.hello(any_project, "mine", ""), Welcome)
    async with stage.client(any_project) as client:
        runs = (await client.get("/runs")).json()["runs"]
    assert {run["run_id"]: run["project"] for run in runs} == {"mine": "llm", "unnamed": ""}


async def test_a_run_that_names_no_project_is_of_its_keys(stage: Stage) -> None:
    _, llm = await stage.key("llm", project="llm")
    assert isinstance(await stage.hello(llm, "unnamed", ""), Welcome)
    async with stage.client(llm) as client:
        runs = (await client.get("/runs")).json()["runs"]
    assert [(run["run_id"], run["project"]) for run in runs] == [("unnamed", "llm")]


async def test_a_numbering_from_a_foreign_key_can_not_silence_a_rank(stage: Stage) -> None:
    _, llm = await stage.key("llm", "agent", project="llm")
    _, vision = await stage.key("vision", "agent", project="vision")
    job = Job()
    async with RawAgent(stage.server.agent_url, llm) as agent:
        assert isinstance(await agent.hello("mine", sources=[job.info], project="llm"), Welcome)
        await agent.store(job.rows([1]))
        async with RawAgent(stage.server.agent_url, vision) as foreign:
            answer = await foreign.hello("mine", "b1", sources=[job.info], project="vision")
            assert isinstance(answer, Error)
            with pytest.raises(ConnectionClosed):
                await foreign.ask(Job().rows(range(1, 4000)))
        await agent.store(job.rows([2]))


async def test_the_list_of_a_projects_key_is_told_of_its_runs_only(stage: Stage) -> None:
    _, llm = await stage.key("llm", project="llm")
    _, every = await stage.key("all")
    header = {"Authorization": f"Bearer {llm}"}
    async with connect(stage.server.live_url, additional_headers=header) as live:
        await live.send('{"type": "subscribe", "run_id": null, "cursor": null}')
        await live.recv()
        for run_id, project in (("theirs", "vision"), ("mine", "llm")):
            async with RawAgent(stage.server.agent_url, every) as agent:
                job = Job()
                assert isinstance(await agent.hello(run_id, sources=[job.info], project=project), Welcome)
                await agent.store(job.rows(range(1, 5)))
        async with asyncio.timeout(60):
            told = ""
            while '"mine"' not in told:
                told = str(await live.recv())
                assert "theirs" not in told
        await live.send('{"type": "subscribe", "run_id": "theirs", "cursor": null}')
        async with asyncio.timeout(60):
            while '"error"' not in (told := str(await live.recv())):
                pass
        assert "there is no run 'theirs'" in told


async def test_a_browser_logs_in_is_known_and_logs_out(stage: Stage) -> None:
    key_id, text = await stage.key("anna", "read")
    _, admin = await stage.key("boss", "admin")
    async with stage.client() as browser:
        answer = (await browser.post("/login", json={"key": text})).json()
        assert answer == {
            "name": "anna", "scopes": ["read"], "project": None, "by": "session", "role": "viewer",
            "two_persons": False,
        }  # fmt: skip
        assert text not in str(browser.cookies.jar)
        assert (await browser.get("/me")).json() == answer
        stolen = dict(browser.cookies)
        await browser.post("/logout")
        assert (await browser.get("/me")).status_code == 401
    async with httpx.AsyncClient(base_url=f"{stage.server.url}/api/v1", cookies=stolen) as thief:
        refused = await thief.get("/me")
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "session_ended")
    async with stage.client(admin) as boss:
        entries = (await boss.get("/audit")).json()["entries"]
    said = [(entry["who"], entry["key_id"], entry["action"]) for entry in entries]
    assert said == [("anna", key_id, "logout"), ("anna", key_id, "login")]
    assert "from 127.0.0.1" in entries[0]["detail"]


async def test_an_open_socket_ends_with_its_key(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stabilitybackend.server.api.access.RECHECK_S", 0.1)
    monkeypatch.setattr("stabilitybackend.ingest.gateway.RECHECK_S", 0.1)
    key_id, text = await stage.key("leaving")
    header = {"Authorization": f"Bearer {text}"}
    live = connect(stage.server.live_url, additional_headers=header)
    async with live as page, RawAgent(stage.server.agent_url, text) as agent:
        assert isinstance(await agent.hello(sources=[Job().info]), Welcome)
        await stage.ring.revoke(key_id)
        async with asyncio.timeout(60):
            await page.wait_closed()
            await agent.socket.wait_closed()
        assert (page.close_code, agent.socket.close_code) == (1008, 1008)


async def test_who_deletes_runs_is_written_down(stage: Stage, redis: Redis) -> None:
    _, usual = await stage.key("usual", "read", "command")
    key_id, admin = await stage.key("boss", "admin", project="llm")
    _, every = await stage.key("all", "agent", "admin")
    for run_id, project in (("a", "llm"), ("b", "llm"), ("c", "vision")):
        assert isinstance(await stage.hello(every, run_id, project), Welcome)
        await redis.hset(f"sb:{{{run_id}}}:meta", "updated", repr(time.time() - 30 * DAY_S))
    await redis.zadd("sb:runs", {run_id: time.time() - 30 * DAY_S for run_id in "abc"})
    async with stage.client(usual) as client:
        assert (await client.delete("/runs/a", params={"force": True})).status_code == 403
        assert (await client.post("/retention", params={"days": 9})).status_code == 403
    async with stage.client(admin) as client:
        assert (await client.delete("/runs/a", params={"force": True})).status_code == 200
        assert (await client.delete("/runs/c", params={"force": True})).status_code == 404
        assert (await client.get("/audit")).status_code == 403  # of every project, and this key has one
    async with stage.client(every) as client:
        entries: list[Any] = (await client.get("/audit")).json()["entries"]
    assert [(e["who"], e["key_id"], e["action"], e["target"]) for e in entries] == [("boss", key_id, "run.delete", "a")]


async def test_a_server_that_had_a_key_needs_one_until_it_is_opened(
    redis: Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a restart: who revokes a leaked key does not let everybody in."""
    monkeypatch.setattr("stabilitybackend.access.auth.CACHE_S", 0.05)
    ring = KeyRing(redis)

    async def answers(server: RunningServer) -> list[int]:
        await asyncio.sleep(0.1)  # the keys that were read before are used no more
        async with httpx.AsyncClient(base_url=f"{server.url}/api/v1", timeout=20) as nobody:
            calls = [nobody.get("/runs"), nobody.delete("/runs/x", params={"force": True})]
            return [(await call).status_code for call in calls]

    async def revoke_all() -> None:
        for key in await ring.list():
            await ring.revoke(key.key_id)

    open_, closed = [200, 404], [401, 401]
    with await asyncio.to_thread(RunningServer, redis_url, tmp_path) as server:
        assert await answers(server) == open_
        await ring.create("leaked")
        assert await answers(server) == closed
        await revoke_all()
        assert await answers(server) == closed
    with await asyncio.to_thread(RunningServer, redis_url, tmp_path) as server:
        assert await answers(server) == closed
        await ring.open()
        assert await answers(server) == open_
        await ring.create("new")
        assert await answers(server) == closed
        await revoke_all()
        assert await answers(server) == closed
