"""The autopilot behind HTTP and in a terminal, and over restarts of the server: real Redis, real workers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from stabilitybackend.base.errors import Conflict
from stabilitybackend.lineage.consumer import Effects
from stabilitybackend.runs.worker import RunWorker
from stabilityclient.wire import Frame
from support.cli_program import Program
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.jobs.piloted_job import ALL, stuck
from support.manager_stack import HELLO, KEYS, Stage
from support.server_stack import RunningServer


def spiked(job: Job) -> list[Frame]:
    """A job that stays in a spike since step 220, with the checkpoints 100 and 200."""
    frames = [job.event("start"), job.event("handler", can=list(ALL), branches=True)]
    frames.append(job.event("obeys", orders=["stop"]))
    for last in (100, 200):
        steps = range(last - 99, last + 1)
        frames.append(job.rows(steps, {"loss": [stuck(220)(step) for step in steps]}))
        frames.append(job.event("checkpoint", last, path=f"c/{last}"))
        frames.append(job.event("checkpoint_seen", last, path=f"c/{last}", kind="file", complete=True))
    return [*frames, job.rows(range(201, 281), {"loss": [stuck(220)(step) for step in range(201, 281)]})]


async def test_over_restarts_it_orders_once_and_knows_what_it_did(stage: Stage) -> None:
    job, sent = Job(), []

    async def send(message: object) -> None:
        sent.append(message)

    async def look(worker: RunWorker) -> list[str]:
        stage.now += 1.0
        await worker.agent_connected(HELLO, send)  # type: ignore[arg-type]
        await worker.tick()
        return [command.command_id for command in worker.state.commands.all()]

    worker = await stage.send(*spiked(job))
    await worker.autopilot.put("wait_steps: 40", "ada")
    first = await look(worker)
    assert len(first) == 1
    for _ in range(2):
        await stage.restart()
        worker = await stage.manager.get("run-1")
        assert worker.autopilot.mode == "on"
        assert await look(worker) == first
        assert [one.entry_id for one in worker.autopilot.shown(worker.state).entries] == first
    (order,) = worker.state.commands.all()
    assert (order.to_step, order.issuer) == (200, "autopilot")
    audited = [set(fields) for _, fields in await stage.redis.xrange(KEYS.command_audit)]
    assert {b"p"} in audited
    assert {b"o"} in audited
    assert {b"c"} in audited


async def test_where_orders_take_two_persons_it_orders_nothing(stage: Stage) -> None:
    worker = await stage.send(*spiked(Job()))
    await worker.autopilot.put("wait_steps: 40", "ada")
    worker.autopilot.two_persons = True
    await worker.autopilot.load()
    assert worker.autopilot.mode == "dry run"
    with pytest.raises(Conflict, match="takes two persons"):
        await worker.autopilot.put("wait_steps: 40", "ada")
    await worker.autopilot.put("dry_run: true", "ada")


async def test_after_a_kill_before_it_was_stored_the_same_order_is_given_again_under_its_id(stage: Stage) -> None:
    job = Job()
    worker = await stage.send(*spiked(job))
    await worker.autopilot.put("wait_steps: 40", "ada")

    async def send(message: object) -> None:
        pass

    await worker.agent_connected(HELLO, send)  # type: ignore[arg-type]
    decided = []
    for _ in range(2):  # what is decided and not stored is gone with the process
        changes = Effects()
        await worker.autopilot.load()
        worker.state.commands._commands.clear()
        worker.autopilot.judge(worker.state, changes)
        decided.append(list(changes.commands))
    assert decided[0] == decided[1]
    assert len(decided[0]) == 1


@pytest.fixture
async def agent(server: RunningServer) -> RawAgent:
    async with RawAgent(server.agent_url) as connected:
        await connected.begin(*spiked(Job()))
        yield connected


async def test_it_is_set_shown_and_ended_over_http_and_in_a_terminal(
    server: RunningServer, program: Program, agent: RawAgent, tmp_path: Path
) -> None:
    place = "/api/v1/runs/run-1/autopilot"

    def ask(method: str, **body: object) -> httpx.Response:
        return server.client.request(method, place, json=body or None)

    off = (await asyncio.to_thread(ask, "GET")).json()
    assert (off["mode"], off["phase"], off["policy"], off["entries"]) == ("off", "off", None, [])
    bad = await asyncio.to_thread(ask, "PUT", policy="act_on: [level_shift]", file="n.yaml")
    assert bad.status_code == 422
    assert "n.yaml, line 1: act_on[1] is 'level_shift', expected one of" in bad.json()["error"]["message"]
    assert (await asyncio.to_thread(ask, "GET")).json()["mode"] == "off"

    policy = tmp_path / "night.yaml"
    policy.write_text("dry_run: true\nwait_steps: 40\n")
    at = ("--url", server.url)
    code, out, _ = await asyncio.to_thread(program, "autopilot", "run-1", "--policy", str(policy), *at)
    assert code == 0
    assert "autopilot: dry run" in out
    noted = await asyncio.to_thread(
        server.wait_for, "/runs/run-1/autopilot", lambda a: a["entries"], "it has noted what it would do"
    )
    (entry,) = noted["entries"]
    assert (entry["action"], entry["to_step"], entry["dry_run"], entry["command"]) == ("roll_back", 200, True, None)
    assert (await asyncio.to_thread(server.get, "/runs/run-1/commands"))["commands"] == []

    policy.write_text("wait_stepz: 40\n")
    code, _, err = await asyncio.to_thread(program, "autopilot", "run-1", "--policy", str(policy), *at)
    assert code == 1
    assert "line 1: 'wait_stepz' is not known" in err
    code, out, _ = await asyncio.to_thread(program, "autopilot", "run-1", "--show", *at)
    assert "would have rolled back to" in out
    code, out, _ = await asyncio.to_thread(program, "autopilot", "run-1", "--off", "--json", *at)
    assert '"mode": "off"' in out
