"""What of a run is shown first, and expressions of its metrics, over HTTP: real server, real Redis."""

from __future__ import annotations

import asyncio

from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer


async def _until(server: RunningServer, step: int) -> None:
    await asyncio.to_thread(server.wait_for, "/runs/run-1", lambda r: r["last_step"] == step, f"step {step}")


async def test_a_run_is_shown_by_its_own_metrics_and_an_expression_follows_it(server: RunningServer) -> None:
    job = Job()
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows(range(1, 101), {"reward": [1.0] * 100, "kl": [0.5] * 100}))
        await _until(server, 100)
        headline = server.get("/runs/run-1/headline")
        assert (headline["main"], [cell["metric"] for cell in headline["cells"]]) == ("reward", ["reward", "kl"])
        ask = {"metric": "expr:reward - 2 * kl", "view": "all", "points": 20}
        first = server.get("/runs/run-1/series", **ask)
        assert {value for one in first["series"] for value in one["values"]} == {0.0}
        await agent.store(job.rows([101, 102], {"reward": [3.0, 4.0], "kl": [0.5, 0.5]}))
        await _until(server, 102)
        news = server.get("/runs/run-1/series", cursor=first["cursor"], **ask)
        (entry,) = news["series"]
        assert (news["complete"], entry["steps"], entry["values"]) == (False, [101, 102], [2.0, 3.0])


async def test_a_wrong_expression_is_422_with_its_place(server: RunningServer) -> None:
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(Job().rows([1, 2], {"reward": [1.0, 2.0]}))
        await _until(server, 2)
    for text, words in (("reward -", "at character 9: the end"), ("reward - gone", "no metric 'gone'")):
        answer = server.client.get("/api/v1/runs/run-1/series", params={"metric": f"expr:{text}"})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], words in error["message"]) == (422, "bad_expression", True)
