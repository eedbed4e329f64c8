"""``plan``, ``restart`` and ``dump`` against the whole server; the job is a scripted agent."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

from stabilitybackend.acting.commands.restart_plan import EXIT_CODES
from stabilityclient.wire import CommandMessage, Health
from support.cli_program import Program
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer

CHECKPOINT = {"step": 5, "path": "c/5", "inside": None}


async def test_the_exit_code_says_what_a_launcher_does_and_the_file_is_the_plan(
    server: RunningServer, program: Program, tmp_path: Path
) -> None:
    job = Job()
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows(range(1, 11)), job.event("checkpoint", 5, path="c/5"))
        await asyncio.to_thread(server.wait_for, "/runs/run-1", lambda r: r["last_step"] == 10, "step 10 is there")
        assert (await asyncio.to_thread(program, "plan", "run-1", "--url", server.url))[0] == EXIT_CODES["none"]
        await asyncio.to_thread(
            server.wait_for,
            "/runs/run-1/plan?ordered=true",
            lambda r: r["action"] == "relaunch" and r["checkpoint"] == CHECKPOINT,
            "a restart would start from the checkpoint",
        )
        await agent.store(job.event("exception", 10, type="ValueError", message="bad batch"))
        file = tmp_path / "plan.json"
        code, out, _ = await asyncio.to_thread(
            program, "plan", "run-1", "--url", server.url, "--wait", "10", "--json", "--output", file
        )
    assert code == EXIT_CODES["relaunch"]
    assert (
        json.loads(out)
        == json.loads(file.read_text())
        == server.get("/runs/run-1/plan") | {"written": json.loads(out)["written"]}
    )
    assert json.loads(out)["checkpoint"] == CHECKPOINT


def test_a_server_or_a_run_that_is_not_there_is_no_plan(
    server: RunningServer, program: Program, free_port: int
) -> None:
    code, _, err = program("plan", "run-1", "--url", f"http://127.0.0.1:{free_port}")
    assert (code, "no server answers" in err) == (1, True)
    code, _, err = program("plan", "nobody", "--url", server.url)
    assert (code, "nobody" in err) == (1, True)


async def test_a_restart_is_followed_until_the_job_is_back(server: RunningServer, program: Program) -> None:
    job = Job()
    async with RawAgent(server.agent_url) as agent:
        await agent.hello("run-1", agent="a1-1", sources=[job.info])
        await agent.store(job.rows(range(1, 11)))
        ranks = [{"rank": 0, "source": job.info.source, "alive": True, "state": "running", "time": 1.0}]
        await agent.send(Health("a1-1", job.info.node, 1.0, ranks, {}))
        await asyncio.to_thread(
            server.wait_for, "/runs/run-1/health", lambda r: r["agents"][0]["ranks"], "the server knows the rank"
        )
        asked = asyncio.create_task(
            asyncio.to_thread(
                program, "restart", "run-1", "--exclude", "n7", "--grace", "0", "--timeout", "20", "--url", server.url
            )
        )
        command = (await agent.next(CommandMessage)).command
        back = Job(start=2)
        await agent.store(back.rows([3, 4, 5]))
        code, out, err = await asked
    assert (code, err) == (0, "")
    assert command["plan"]["exclude_nodes"] == ["n7"]
    assert command["fence"]["starts"] == {job.info.node: job.info.source.split("-")[1]}
    assert out.splitlines()[-1] == "done: the job goes on from step 3"


async def test_a_plan_from_inside_an_open_spike_prints_a_warning(server: RunningServer, program: Program) -> None:
    job, steps = Job(), range(1, 251)
    rows = job.rows(steps, {"loss": [2 + 0.01 * math.sin(1.7 * s) + 4 * (s >= 220) for s in steps]})
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(
            rows, *(job.event("checkpoint", step, path=f"c/{step}") for step in (200, 250)), job.rows([251])
        )
        await asyncio.to_thread(
            server.wait_for, "/runs/run-1/incidents", lambda a: a["incidents"], "the spike is open, and may pass"
        )
        await agent.store(job.event("exception", 251, type="ValueError", message="bad batch"))
        code, out, _ = await asyncio.to_thread(program, "plan", "run-1", "--url", server.url, "--wait", "10")
        refused, _, err = await asyncio.to_thread(program, "restart", "run-1", "--to-step", "250", "--url", server.url)
    assert code == EXIT_CODES["relaunch"]
    assert "from the checkpoint of step 250" in out
    assert "warning: The checkpoint of step 250 was saved 30 steps after the onset of an open spike (step 220)" in out
    assert (refused, "the last good one is that of step 200" in err) == (1, True)
