"""What goes in at the agents' door comes out of the API and the commands: real server, real Redis."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import httpx
import pytest

from stabilitybackend.access.auth import KeyRing
from stabilitybackend.storage.redis_link import make_redis
from stabilityclient.wire import CommandMessage, Health
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer


def _steps(server: RunningServer, **params: Any) -> list[tuple[int, bool, list[int]]]:
    series = server.get("/runs/run-1/series", metric="loss", **params)["series"]
    return [(s["segment"], s["dead"], s["steps"]) for s in series]


async def test_points_and_a_rollback_come_out_of_the_series_call(server: RunningServer) -> None:
    job = Job()
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows(range(1, 11)), job.rolled_back(5, "k", reason="spike"), job.rows([6, 7]))
        await asyncio.to_thread(
            server.wait_for,
            "/runs/run-1",
            lambda r: r["last_step"] == 7 and r["rollbacks"] == 1,
            "the run is at step 7",
        )
        assert _steps(server) == [(0, False, [1, 2, 3, 4, 5]), (1, False, [6, 7])]
        assert _steps(server, view="all") == [
            (0, False, [1, 2, 3, 4, 5]),
            (0, True, [6, 7, 8, 9, 10]),
            (1, False, [6, 7]),
        ]
        segments = server.get("/runs/run-1/segments")
        assert [(s["fork_step"], s["dead_after"], s["reason"]) for s in segments["segments"]] == [
            (None, 5, ""),
            (5, None, "spike"),
        ]


async def test_a_segment_that_was_only_inferred_is_taken_back_and_stays_so(redis_url: str, tmp_path: Path) -> None:
    job = Job()
    with RunningServer(redis_url, tmp_path) as server:
        async with RawAgent(server.agent_url) as agent:
            await agent.begin(job.rows(range(1, 11)), job.rows(range(1, 11)), job.rows([11, 12]))
            await asyncio.to_thread(server.wait_for, "/runs/run-1", lambda r: r["last_step"] == 12, "step 12 is there")
            assert server.get("/runs/run-1/segments")["head"] == 1
            assert server.get("/runs/run-1")["rollbacks"] == 1
            assert server.client.post("/api/v1/runs/run-1/segments/1/undo").status_code == 200
            assert server.get("/runs/run-1")["rollbacks"] == 0
            assert _steps(server) == [(0, False, list(range(1, 13)))]
            assert server.client.post("/api/v1/runs/run-1/segments/0/undo").status_code == 404
    with RunningServer(redis_url, tmp_path) as server:
        assert _steps(server) == [(0, False, list(range(1, 13)))]


async def test_non_finite_values_come_out_as_words(server: RunningServer) -> None:
    job = Job()
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows([1, 2, 3, 4], {"loss": [1.0, math.nan, math.inf, -math.inf]}))
        await asyncio.to_thread(server.wait_for, "/runs/run-1", lambda r: r["last_step"] == 4, "step 4 is there")
        (series,) = server.get("/runs/run-1/series", metric="loss")["series"]
        assert series["values"] == [1.0, "NaN", "Infinity", "-Infinity"]


async def test_a_restarted_server_has_the_same_run(redis_url: str, tmp_path: Path) -> None:
    job = Job()
    with RunningServer(redis_url, tmp_path) as server:
        async with RawAgent(server.agent_url) as agent:
            await agent.begin(job.rows(range(1, 11)), job.rolled_back(5, "k"), job.rows([6, 7]))
            await asyncio.to_thread(server.wait_for, "/runs/run-1", lambda r: r["last_step"] == 7, "step 7 is there")
        before = (_steps(server, view="all"), server.get("/runs/run-1/segments"))
    with RunningServer(redis_url, tmp_path) as server:
        assert (_steps(server, view="all"), server.get("/runs/run-1/segments")) == before
        assert [r["run_id"] for r in server.get("/runs")["runs"]] == ["run-1"]


async def test_an_incident_is_told_once_however_often_the_server_restarts(redis_url: str, tmp_path: Path) -> None:
    job = Job()
    values = [2.0 + 0.01 * (i % 3) for i in range(150)] + [6.0] * 20
    with RunningServer(redis_url, tmp_path) as server:
        async with RawAgent(server.agent_url) as agent:
            await agent.begin(job.rows(range(1, 171), {"loss": values}))
            found = await asyncio.to_thread(
                server.wait_for, "/runs/run-1/incidents", lambda r: r["incidents"], "the spike is an incident"
            )
    spike = next(i for i in found["incidents"] if i["kind"] == "spike")
    assert spike["onset_step"] == 151
    for _ in range(2):
        with RunningServer(redis_url, tmp_path) as server:
            again = [i for i in server.get("/runs/run-1/incidents")["incidents"] if i["kind"] == "spike"]
            assert [(i["incident_id"], i["version"]) for i in again] == [(spike["incident_id"], spike["version"])]


async def test_a_spike_names_the_data_set_that_carries_it(server: RunningServer) -> None:
    job = Job()
    calm = [2.0 + 0.01 * (i % 3) for i in range(150)]
    values = {"loss": calm + [4.0] * 5, "loss/code": calm + [7.0] * 5, "loss/prose": calm + [2.1] * 5}
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows(range(1, 156), values))
        found = await asyncio.to_thread(
            server.wait_for, "/runs/run-1/incidents", lambda r: r["incidents"], "the spike is an incident"
        )
        assert [(i["kind"], i["metric"], i["dataset"]) for i in found["incidents"]] == [("spike", "loss", "code")]


async def test_a_rollback_ordered_over_http_reaches_the_agent_and_its_states_come_back(server: RunningServer) -> None:
    job = Job()
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows(range(1, 11)), job.event("checkpoint", 5, path="c/5"), job.rows([11]))
        await asyncio.to_thread(server.wait_for, "/runs/run-1", lambda r: r["last_step"] == 11, "step 11 is there")
        answer = server.client.post(
            "/api/v1/runs/run-1/commands", json={"kind": "rollback", "to_step": 5, "seed": 7, "reason": "spike"}
        )
        assert answer.status_code == 201
        command = (await agent.next(CommandMessage)).command
        assert (command["command_id"], command["to_step"], command["checkpoint"]) == (
            answer.json()["command_id"],
            5,
            "c/5",
        )
        for state in ("ready", "acted"):
            event = {"command_id": command["command_id"], "attempt": 1, "state": state}
            await agent.send(job.event("command", command["apply_at_step"], **event))
        await agent.send(job.rolled_back(5, command["command_id"], command_id=command["command_id"]))
        await agent.send(job.rows([6]))
        done = await asyncio.to_thread(
            server.wait_for,
            f"/runs/run-1/commands/{command['command_id']}",
            lambda c: c["state"] == "done",
            "the command is done",
        )
        assert (done["segment"], done["first_step"]) == (1, 6)
        states = [entry["state"] for entry in done["history"]]
        assert [s for i, s in enumerate(states) if s not in states[:i]] == [
            "pending",
            "delivered",
            "ready",
            "acted",
            "done",
        ]


async def test_an_agent_that_comes_back_is_told_of_the_command_that_waits(server: RunningServer) -> None:
    job = Job()
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows(range(1, 11)))
        await asyncio.to_thread(server.wait_for, "/runs/run-1", lambda r: r["last_step"] == 10, "step 10 is there")
        ordered = server.client.post("/api/v1/runs/run-1/commands", json={"kind": "rollback", "to_step": 5}).json()
    async with RawAgent(server.agent_url) as agent:
        welcome = await agent.hello("run-1", sources=[job.info])
        assert [c["command_id"] for c in welcome.commands] == [ordered["command_id"]]  # type: ignore[union-attr]
        assert welcome.last_seq == {job.info.source: 10}  # type: ignore[union-attr]


async def test_the_same_idempotency_key_gives_the_same_command(server: RunningServer) -> None:
    job = Job()
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows(range(1, 11)))
        await asyncio.to_thread(server.wait_for, "/runs/run-1", lambda r: r["last_step"] == 10, "step 10 is there")
        body = {"kind": "rollback", "to_step": 5, "idempotency_key": "click-1"}
        ids = {server.client.post("/api/v1/runs/run-1/commands", json=body).json()["command_id"] for _ in range(3)}
        assert len(ids) == 1


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"kind": "rollback"}, "to_step"),
        ({"kind": "rollback", "to_step": "5"}, "to_step"),
        ({"kind": "rollback", "to_step": 5, "lr_scale": 99}, "lr_scale"),
        ({"kind": "rollback", "to_step": 5, "colour": "red"}, "colour"),
        ({"kind": "explode", "to_step": 5}, "kind"),
        ([1, 2], "[1, 2]"),
    ],
)
async def test_a_bad_order_is_answered_422_naming_the_field(server: RunningServer, body: Any, named: str) -> None:
    job = Job()
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows(range(1, 11)))
        await asyncio.to_thread(server.wait_for, "/runs/run-1", lambda r: r["last_step"] == 10, "step 10 is there")
        answer = server.client.post("/api/v1/runs/run-1/commands", json=body)
        assert answer.status_code == 422
        assert named in answer.json()["error"]["message"]


def test_unknown_things_are_404_in_json_not_a_page(server: RunningServer) -> None:
    for path in ("/api/v1/runs/none", "/api/v1/typo", "/api/v1/runs/none/series?metric=loss"):
        answer = server.client.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_a_bad_query_is_422_naming_the_parameter(server: RunningServer) -> None:
    for query, named in (("metric=loss&view=some", "view"), ("metric=loss&points=1", "points"), ("", "metric")):
        answer = server.client.get(f"/api/v1/runs/none/series?{query}")
        assert answer.status_code in (404, 422)
        if answer.status_code == 422:
            assert named in answer.json()["error"]["message"]


async def test_what_the_job_alerts_is_an_incident_until_somebody_acknowledges_it(server: RunningServer) -> None:
    job = Job()
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows([1]), job.event("alert", 1, title="disk", text="95 %", severity="info"))
        found = await asyncio.to_thread(
            server.wait_for, "/runs/run-1/incidents", lambda r: r["incidents"], "the alert is an incident"
        )
        (alert,) = found["incidents"]
        assert [alert[k] for k in ("kind", "state", "title", "text", "severity", "step")] == [
            "alert", "open", "disk", "95 %", "info", 1,
        ]  # fmt: skip
        seen = server.client.post(f"/api/v1/runs/run-1/incidents/{alert['incident_id']}/ack").json()
        assert (seen["state"], seen["acknowledged_by"]) == ("resolved", "local")


async def test_health_shows_the_ranks_and_what_is_known_of_gpus(server: RunningServer) -> None:
    job, monitor = Job(), Job()
    monitor.info.rank, monitor.info.source = None, "a1"
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows([1]))
        await agent.store(monitor.event("gpu_note", visible=False, text="no GPU visible here: no driver"))
        slot = {"rank": 0, "source": "r0-1", "pid": 1, "alive": True, "state": "running", "step": 2, "phase": "forward"}
        await agent.send(Health("a1", "n0", 1000.0, [slot]))
        found = await asyncio.to_thread(
            server.wait_for,
            "/runs/run-1/health",
            # The note is a frame, Health is none: either may be taken first.
            lambda h: h["agents"] and h["agents"][0]["ranks"] and "driver" in h["agents"][0]["gpu"]["text"],
            "the agent's ranks and its note are there",
        )
        (seen,) = found["agents"]
        assert (seen["connected"], seen["gpu"]["text"]) == (True, "no GPU visible here: no driver")
        assert seen["ranks"][0]["phase"] == "forward"


async def _key(redis_url: str) -> str:
    redis = make_redis(redis_url)
    _, key = await KeyRing(redis).create("grafana", ["read"])
    await redis.aclose()
    return key


def test_beyond_loopback_every_call_but_healthz_needs_a_key(redis_url: str, tmp_path: Path) -> None:
    key = asyncio.run(_key(redis_url))
    with RunningServer(redis_url, tmp_path, host="0.0.0.0") as server:
        assert server.client.get("/healthz").status_code == 200
        assert server.client.get("/api/v1/runs").status_code == 401
        with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {key}"}) as reader:
            assert reader.get("/api/v1/runs").status_code == 200
            order = reader.post("/api/v1/runs/none/commands", json={"kind": "rollback", "to_step": 5})
            assert order.status_code == 403
        with httpx.Client(base_url=server.url) as browser:
            assert browser.post("/api/v1/login", json={"key": "sb_wrong"}).status_code == 401
            assert browser.post("/api/v1/login", json={"key": key}).status_code == 200
            assert browser.get("/api/v1/runs").status_code == 200


def test_a_page_of_another_site_can_not_order_anything(server: RunningServer) -> None:
    answer = server.client.post(
        "/api/v1/runs/none/commands", json={"kind": "rollback", "to_step": 5}, headers={"Origin": "http://evil.example"}
    )
    assert answer.status_code == 403


def test_healthz_says_that_redis_answers(server: RunningServer) -> None:
    answer = server.client.get("/healthz").json()
    assert (answer["status"], answer["redis"]) == ("ok", "ok")


def test_a_load_balancer_may_ask_healthz_with_head(server: RunningServer) -> None:
    assert (server.client.head("/healthz").status_code, server.client.head("/healthz").content) == (200, b"")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "word"),
    [
        ("OPTIONS", "/api/v1/runs", None, 405, "OPTIONS"),
        ("POST", "/api/v1/runs/r/commands", b"{", 422, "no JSON"),
        ("POST", "/api/v1/runs/r/commands", b"[" * 100_000, 400, "body"),
    ],
)
def test_what_the_framework_refuses_has_the_shape_of_our_errors(
    server: RunningServer, method: str, path: str, body: bytes | None, status: int, word: str
) -> None:
    answer = server.client.request(method, path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert word in answer.json()["error"]["message"]
