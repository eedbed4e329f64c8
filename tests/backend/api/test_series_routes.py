"""What charts ask for over HTTP: real server, real Redis."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from stabilitybackend.server.stages import Reading
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer


async def _until(server: RunningServer, run_id: str, step: int) -> None:
    await asyncio.to_thread(server.wait_for, f"/runs/{run_id}", lambda r: r["last_step"] == step, f"step {step}")


def _refused(server: RunningServer, path: str, **params: Any) -> tuple[int, str]:
    answer = server.client.get(f"/api/v1{path}", params=params)
    return answer.status_code, answer.json()["error"]["message"]


async def test_a_browser_reads_history_once_and_then_only_news(server: RunningServer) -> None:
    job = Job()
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows(range(1, 101)), job.rolled_back(50, "k"), job.rows([51, 52]))
        await _until(server, "run-1", 52)
        first = server.get("/runs/run-1/series", metric="loss", view="all", points=20)
        assert first["complete"]
        assert {s["level"] for s in first["series"]} == {first["level"]} != {0}
        await agent.store(job.rows([53, 54]))
        await _until(server, "run-1", 54)
        ask = {"metric": "loss", "points": 20, "x": "time", "smooth": 0.9}
        news = server.get("/runs/run-1/series", cursor=first["cursor"], **ask)
        (entry,) = news["series"]
        assert (news["complete"], entry["segment"], entry["steps"]) == (False, 1, [53, 54])
        assert len(entry["xs"]) == len(entry["smoothed"]) == 2
        assert server.get("/runs/run-1/series", cursor=news["cursor"], **ask)["series"] == []
        too_old = server.get("/runs/run-1/series", cursor="not-a-cursor", **ask)
        assert (too_old["complete"], [s["segment"] for s in too_old["series"]]) == (True, [0, 1])


async def test_wrong_parameters_are_answered_with_422_and_what_is_expected(server: RunningServer) -> None:
    job = Job()
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows([1, 2]))
        await _until(server, "run-1", 2)
    path = "/runs/run-1/series"
    assert _refused(server, path, metric="loss", view="segment:3") == (
        422, "view is segment:3, expected segment:0 to segment:0 in this run"
    )  # fmt: skip
    assert _refused(server, path, metric="loss", points=2) == (422, "points is 2, expected 4 to 1000000")
    assert _refused(server, path, metric="loss", x="tokens")[0] == 422
    assert _refused(server, path, metric="loss", smooth="much")[0] == 422


async def test_runs_are_compared_by_their_forks_and_who_is_missing_is_named(server: RunningServer) -> None:
    for run_id, fork in (("run-a", 5), ("run-b", 8)):
        job = Job()
        async with RawAgent(server.agent_url) as agent:
            frames = (job.rows(range(1, 11)), job.rolled_back(fork, "k"), job.rows([fork + 1]))
            await agent.begin(*frames, run_id=run_id)
            await _until(server, run_id, fork + 1)
    found = server.get("/compare", run=["run-a", "run-b"], metric="loss", align="fork")
    assert [(r["run_id"], r["fork_step"], r["series"][-1]["xs"]) for r in found["runs"]] == [
        ("run-a", 5, [1]),
        ("run-b", 8, [1]),
    ]
    twice = server.get("/compare", run=["run-a", "run-a"], metric="loss", align="fork", fork=["1", "newest"])
    assert [(r["run_id"], r["fork_step"]) for r in twice["runs"]] == [("run-a", 5)] * 2
    assert [r["same_data"] for r in found["runs"]] == [[], []]
    moved = server.get("/compare", run=["run-a", "run-b"], metric="loss", shift=["0", "100"], start=103, stop=104)
    assert [[one["xs"] for one in r["series"]] for r in moved["runs"]] == [[], [[103, 104]]]
    assert _refused(server, "/compare", run=["run-a"], metric="loss", shift=["1", "2"])[0] == 422
    assert _refused(server, "/compare", run=["run-a", "run-c"], metric="loss") == (404, "there is no run 'run-c'")
    assert _refused(server, "/compare", run=["run-a"], metric="loss", align="forks")[0] == 422


async def test_a_chart_is_read_once_for_32_tabs_and_again_for_who_asks_after_the_next_row(
    server: RunningServer,
) -> None:
    job = Job()
    shared = server.app.server[Reading].answers
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows(range(1, 1001)))
        await _until(server, "run-1", 1000)
        ask = {"metric": "loss", "points": 100}
        tabs = await asyncio.gather(
            *(asyncio.to_thread(server.get, "/runs/run-1/series", **ask) for _ in range(32)),
        )
        assert (shared.made, shared.shared) == (1, 31)
        assert all(one == tabs[0] for one in tabs)
        await agent.store(job.rows([1001]))
        await _until(server, "run-1", 1001)
        newest = server.get("/runs/run-1/series", **ask)["series"][0]["steps"][-1]
        assert (newest, shared.made) == (1001, 2)


async def test_a_chart_is_packed_for_who_reads_that_and_says_the_same(server: RunningServer) -> None:
    job = Job()
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows(range(1, 1001)))
        await _until(server, "run-1", 1000)
    path = "/api/v1/runs/run-1/series?metric=loss"

    packed, plain = (server.client.get(path, headers={"Accept-Encoding": one}) for one in ("gzip, br", "identity"))

    assert (packed.headers["Content-Encoding"], packed.headers["Vary"]) == ("gzip", "Accept-Encoding")
    assert "Content-Encoding" not in plain.headers
    assert int(packed.headers["Content-Length"]) < int(plain.headers["Content-Length"]) / 2
    assert packed.json() == plain.json()


async def test_a_run_and_its_export_have_the_spike_scores_of_loss_and_gradient_norm(server: RunningServer) -> None:
    steps = range(1, 301)
    loss = [9.0 if step == 250 else 2.0 + step % 7 / 100 for step in steps]
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(Job().rows(steps, {"loss": loss, "grad_norm": [1.0 + step % 5 / 10 for step in steps]}))
        await _until(server, "run-1", 300)
    found = server.get("/runs/run-1/spike_score")
    (header, *_) = server.client.get("/api/v1/runs/run-1/export", params={"metric": "loss"}).text.splitlines()
    assert [(one["metric"], one["steps"], one["outliers"], one["last_outlier"]) for one in found["metrics"]] == [
        ("loss", 300, 1, 250), ("grad_norm", 300, 0, None)
    ]  # fmt: skip
    assert found["either"]["share"] == 1 / 300
    assert json.loads(header)["export"]["spike_scores"] == found
