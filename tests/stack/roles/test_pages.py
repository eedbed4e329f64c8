"""A process of pages serves runs that workers own: requests, orders, exports and live feeds, while an owner dies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from stabilityclient.wire import CommandMessage
from support.gateway_stack import RawAgent, log_frames
from support.job_frames import Job
from support.processes import Server
from support.roles.servers import RoleServers
from support.waiting import wait_until


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoleServers]:
    with RoleServers(tmp_path_factory.mktemp("roles") / "server", root_path="/hub/jo") as found:
        for name in ("door-1", "worker-1", "worker-2", "pages-1"):
            found.add(name, name[:-2])
        found.ready()
        yield found


@pytest.fixture
def servers(processes: RoleServers) -> RoleServers:
    """All of them at work."""
    for server in processes.servers.values():
        assert server.process is not None
        if server.process.poll() is not None:
            server.start()
    return processes


class Browser:
    """A live subscription."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    def subscribe(self, run_id: str | None, cursor: str | None = None) -> dict[str, Any]:
        self._socket.send(json.dumps({"type": "subscribe", "run_id": run_id, "cursor": cursor}))
        return self.next("hello")

    def next(self, kind: str, **facts: Any) -> dict[str, Any]:
        while True:
            message: dict[str, Any] = json.loads(self._socket.recv(60))
            if message["type"] == kind and all(message[name] == value for name, value in facts.items()):
                return message


def send(servers: RoleServers, run: str, job: Job, *steps: int) -> None:
    log_frames(servers.servers["door-1"].url, job.rows(steps), run_id=run)


def last_steps(pages: Server, run_id: str, step: int) -> None:
    pages.wait_for(f"/runs/{run_id}", lambda run: run["last_step"] == step, f"step {step} is there", 30)


def test_a_process_of_pages_answers_for_a_run_as_its_owner_does_and_its_browsers_stay_while_that_one_dies(
    servers: RoleServers,
) -> None:
    pages, job = servers.servers["pages-1"], Job()
    send(servers, "first", job, *range(1, 41))
    log_frames(servers.servers["door-1"].url, job.event("checkpoint", 20, path="c/20"), run_id="first")
    last_steps(pages, "first", 40)
    owner = servers.owned("first")
    for path in ("segments", "incidents", "commands", "series"):
        assert pages.get(f"/runs/first/{path}", metric="loss") == owner.get(f"/runs/first/{path}", metric="loss")
    below = httpx.get(f"{pages.url}/hub/jo/api/v1/runs/first/segments", trust_env=False)  # a proxy passes its path on
    assert below.json() == owner.get("/runs/first/segments")
    export = pages._client.get("/api/v1/runs/first/export")
    lines = [json.loads(line) for line in export.text.splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 41))
    assert "x-stability-reader" not in export.headers
    with connect(f"{pages.url.replace('http', 'ws')}/api/v1/live", compression=None) as socket:
        browser = Browser(socket)
        cursor = pages.get("/runs/first/segments")["cursor"]
        assert browser.subscribe("first", cursor)["storing"] is None
        send(servers, "first", job, 41)
        assert browser.next("points")["blocks"][0]["steps"] == [41]
        owner.kill()
        browser.next("reset")
        send(servers, "first", job, 42)
        browser.next("points")
        last_steps(pages, "first", 42)

    async def ordered() -> httpx.Response:
        async with RawAgent(f"{servers.servers['door-1'].url.replace('http', 'ws')}/api/v1/agent") as agent:
            await agent.begin(job.rows([43]), run_id="first")
            await asyncio.to_thread(
                pages.wait_for,
                "/runs/first/health",
                lambda found: any(one["connected"] for one in found["agents"]),
                "it is there",
            )
            wish = {"kind": "rollback", "to_step": 20}
            answer = await asyncio.to_thread(pages._client.post, "/api/v1/runs/first/commands", json=wish)
            assert answer.status_code == 201, answer.text
            assert (await agent.next(CommandMessage)).command["command_id"] == answer.json()["command_id"]
            return answer

    order = asyncio.run(ordered())
    assert servers.owned("first") is not owner
    (known,) = servers.owned("first").get("/runs/first/commands")["commands"]
    assert known["command_id"] == order.json()["command_id"]


@pytest.mark.soak  # tests/backend/runs/test_reading.py has the law
def test_without_any_worker_what_is_stored_is_shown_and_said_to_be_so_until_one_is_back(servers: RoleServers) -> None:
    pages, job = servers.servers["pages-1"], Job()
    send(servers, "second", job, *range(1, 41))
    last_steps(pages, "second", 40)
    with connect(f"{pages.url.replace('http', 'ws')}/api/v1/live", compression=None) as socket:
        browser = Browser(socket)
        browser.subscribe("second")
        for name in ("worker-1", "worker-2"):
            servers.servers[name].kill()
        assert browser.next("storing")["storing"]["code"] == "no_worker"
        send(servers, "second", job, 41, 42)
        browser.next("points")
        series = pages.get("/runs/second/series", metric="loss")["series"]
        assert series[0]["steps"] == list(range(1, 43))
        run = pages._client.get("/api/v1/runs/second")
        assert (run.headers["x-stability-reader"], run.json()["storing"]["code"]) == (
            "no worker follows this run",
            "no_worker",
        )

        def asked(method: str, path: str, **body: Any) -> httpx.Response:
            return pages._client.request(method, f"/api/v1/runs/second/{path}", json=body, timeout=30)

        assert asked("POST", "annotations", step=3, text="hm").status_code == 201  # after a worker was looked for
        assert asked("PUT", "about", notes="at three").status_code == 200
        deaf = {"spike": {"sensitivity": 0.5}}
        assert asked("PUT", "detectors", settings=deaf).status_code == 202
        refused = asked("POST", "segments/1/undo")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_worker")
        servers.servers["worker-1"].start()
        assert browser.next("storing")["storing"] is None
        send(servers, "second", job, 43)
        browser.next("points")
    last_steps(pages, "second", 43)
    assert "x-stability-reader" not in pages._client.get("/api/v1/runs/second").headers
    assert [one["text"] for one in pages.get("/runs/second/annotations")["annotations"]] == ["hm"]
    assert pages.get("/runs/second/about")["notes"] == "at three"
    pages.wait_for("/runs/second/detectors", lambda found: found["changes"][0]["position"], "it holds", 30)
    assert pages.get("/runs/second/detectors")["settings"] == deaf
    wait_until(lambda: servers.owner_of("second"), 30, "it is owned again")
