"""A process of pages serves runs that workers own: requests, orders, exports and live feeds, while an owner dies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
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

RUN = "run-1"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[RoleServers]:
    with RoleServers(tmp_path / "server") as found:
        found.add("door-1", "door")
        found.add("worker-1", "worker")
        found.add("worker-2", "worker")
        found.add("pages-1", "pages")
        found.ready()
        yield found


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


def send(servers: RoleServers, job: Job, *steps: int) -> None:
    log_frames(servers.servers["door-1"].url, job.rows(steps), run_id=RUN)


def last_steps(pages: Server, step: int) -> None:
    pages.wait_for(f"/runs/{RUN}", lambda run: run["last_step"] == step, f"step {step} is there", 30)


def test_a_process_of_pages_answers_for_a_run_as_its_owner_does_and_its_browsers_stay_while_that_one_dies(
    servers: RoleServers,
) -> None:
    pages, job = servers.servers["pages-1"], Job()
    send(servers, job, *range(1, 41))
    log_frames(servers.servers["door-1"].url, job.event("checkpoint", 20, path="c/20"), run_id=RUN)
    last_steps(pages, 40)
    owner = servers.owned(RUN)
    for path in ("segments", "incidents", "commands", "series"):
        assert pages.get(f"/runs/{RUN}/{path}", metric="loss") == owner.get(f"/runs/{RUN}/{path}", metric="loss")
    export = pages._client.get(f"/api/v1/runs/{RUN}/export")
    lines = [json.loads(line) for line in export.text.splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 41))
    assert "x-stability-reader" not in export.headers
    with connect(f"{pages.url.replace('http', 'ws')}/api/v1/live", compression=None) as socket:
        browser = Browser(socket)
        cursor = pages.get(f"/runs/{RUN}/segments")["cursor"]
        assert browser.subscribe(RUN, cursor)["storing"] is None
        send(servers, job, 41)
        assert browser.next("points")["blocks"][0]["steps"] == [41]
        owner.kill()
        browser.next("reset")
        send(servers, job, 42)
        browser.next("points")
        last_steps(pages, 42)

    async def ordered() -> httpx.Response:
        async with RawAgent(f"{servers.servers['door-1'].url.replace('http', 'ws')}/api/v1/agent") as agent:
            await agent.begin(job.rows([43]), run_id=RUN)
            await asyncio.to_thread(
                pages.wait_for, f"/runs/{RUN}/health", lambda found: found["agents"][0]["connected"], "it is connected"
            )
            wish = {"kind": "rollback", "to_step": 20}
            answer = await asyncio.to_thread(pages._client.post, f"/api/v1/runs/{RUN}/commands", json=wish)
            assert answer.status_code == 201, answer.text
            assert (await agent.next(CommandMessage)).command["command_id"] == answer.json()["command_id"]
            return answer

    order = asyncio.run(ordered())
    assert servers.owned(RUN) is not owner
    (known,) = servers.owned(RUN).get(f"/runs/{RUN}/commands")["commands"]
    assert known["command_id"] == order.json()["command_id"]


def test_without_any_worker_what_is_stored_is_shown_and_said_to_be_so_until_one_is_back(servers: RoleServers) -> None:
    pages, job = servers.servers["pages-1"], Job()
    send(servers, job, *range(1, 41))
    last_steps(pages, 40)
    with connect(f"{pages.url.replace('http', 'ws')}/api/v1/live", compression=None) as socket:
        browser = Browser(socket)
        browser.subscribe(RUN)
        for name in ("worker-1", "worker-2"):
            servers.servers[name].kill()
        assert browser.next("storing")["storing"]["code"] == "no_worker"
        send(servers, job, 41, 42)
        browser.next("points")
        series = pages.get(f"/runs/{RUN}/series", metric="loss")["series"]
        assert series[0]["steps"] == list(range(1, 43))
        run = pages._client.get(f"/api/v1/runs/{RUN}")
        assert (run.headers["x-stability-reader"], run.json()["storing"]["code"]) == (
            "no worker follows this run",
            "no_worker",
        )
        refused = pages._client.post(f"/api/v1/runs/{RUN}/annotations", json={"step": 3, "text": "hm"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_worker")
        servers.servers["worker-1"].start()
        assert browser.next("storing")["storing"] is None
        send(servers, job, 43)
        browser.next("points")
    last_steps(pages, 43)
    assert "x-stability-reader" not in pages._client.get(f"/api/v1/runs/{RUN}").headers
    wait_until(lambda: servers.owner_of(RUN), 30, "it is owned again")
