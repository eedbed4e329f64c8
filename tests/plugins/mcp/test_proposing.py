"""``stabilityboard mcp --allow-orders`` with a key of the role assistant: it proposes, a person decides."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client

from stabilitybackend.access.auth import ROLES, KeyRing
from stabilitybackend.storage.redis_link import make_redis
from stabilityclient.wire import CommandMessage
from support.cli_program import Program
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.people.assistant import spoken_to
from support.server_stack import RunningServer


@pytest.mark.soak
async def test_an_assistant_proposes_a_person_approves_and_only_then_the_job_is_asked(
    redis_url: str, tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = make_redis(redis_url)
    ring = KeyRing(redis)
    keys = {name: (await ring.create(name, ROLES[name]))[1] for name in ("assistant", "operator", "agent")}
    await redis.aclose()
    job = Job()
    with RunningServer(redis_url, tmp_path / "server", host="0.0.0.0") as server:
        async with RawAgent(server.agent_url, keys["agent"]) as agent:
            frames = [job.rows(range(1, 201)), job.event("checkpoint", 200, path="c/200"), job.rows(range(201, 251))]
            await agent.begin(*frames)
            transport = spoken_to(server.url, "--allow-orders", "--api-key", keys["assistant"])
            async with Client(transport) as client:

                async def call(tool: str, **given: Any) -> Any:
                    return json.loads((await client.call_tool(tool, {"run": "run-1", **given})).content[0].text)  # type: ignore[union-attr]

                made = await call("propose_command", kind="rollback", to_step=200, reason="the loss is flat")
                assert (made["state"], "You can't approve it" in made["next"]) == ("proposed", True)
                # What it said is no secret, but its key can do no more than that.
                place = f"{server.url}/api/v1/runs/run-1/proposals/{made['proposal_id']}/approve"
                own = {"Authorization": f"Bearer {keys['assistant']}"}
                assert (await asyncio.to_thread(httpx.post, place, headers=own, verify=False)).status_code == 403

                monkeypatch.setenv("STABILITY_API_KEY", keys["operator"])
                code, said, _ = await asyncio.to_thread(program, "commands", "run-1", "--url", server.url)
                assert (code, made["proposal_id"] in said, "assistant (program)" in said) == (0, True, True)
                approve = ("approve", made["proposal_id"], "--json", "--url", server.url)
                code, said, _ = await asyncio.to_thread(program, *approve)
                assert (code, json.loads(said)["state"]) == (0, "approved")
                sent = (await agent.next(CommandMessage)).command
                assert (sent["to_step"], sent["reason"]) == (200, "the loss is flat")
                after = await call("proposals")
                assert after["proposals"][0]["command"]["line"].startswith("Rollback to step 200 under way")
