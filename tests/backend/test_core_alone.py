"""The core without any plug-in: a job is judged, rolled back, and alerts go out."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

import pytest

from stabilitybackend.plugins import Plugins
from stabilityclient.wire import CommandMessage
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.outside.receiver_thread import ReceiverThread
from support.server_stack import RunningServer
from support.waiting import until


async def test_the_core_alone_takes_a_job_judges_it_rolls_it_back_and_sends_alerts(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job()
    with ReceiverThread() as outside:
        variables = {
            "STABILITY_WEBHOOK_URL": f"{outside.url}/hook",
            "STABILITY_WEBHOOK_SECRET": "s3cret",
            "STABILITY_ALERTMANAGER_URL": f"{outside.url}/alertmanager",
            "STABILITY_SLACK_WEBHOOK_URL": f"{outside.url}/slack",
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with RunningServer(redis_url, tmp_path, plugins=Plugins()) as server:
            async with RawAgent(server.agent_url) as agent:
                await agent.begin(
                    job.rows(range(1, 11)),
                    job.event("checkpoint", 5, path="c/5"),
                    job.rows(range(11, 21), {"loss": [math.nan] * 10}),
                )
                for path in ("/hook", "/alertmanager/api/v2/alerts", "/slack"):
                    await until(lambda path=path: outside.heard(path, "run-1", "critical"), 20, f"{path} is notified")
                order = {"kind": "rollback", "to_step": 5}
                assert server.client.post("/api/v1/runs/run-1/commands", json=order).status_code == 201
                command = (await agent.next(CommandMessage)).command
                for state in ("ready", "acted"):
                    event = {"command_id": command["command_id"], "attempt": 1, "state": state}
                    await agent.send(job.event("command", command["apply_at_step"], **event))
                await agent.send(job.rolled_back(5, command["command_id"], command_id=command["command_id"]))
                await agent.send(job.rows([6]))
                done = f"/runs/run-1/commands/{command['command_id']}"
                await asyncio.to_thread(server.wait_for, done, lambda one: one["state"] == "done", "it is done")
                await until(lambda: outside.heard("/hook", "incident.resolved"), 20, "the incident ends")
            receivers = [one["name"] for one in server.get("/alerting")["receivers"]]
            incidents = server.get("/runs/run-1/incidents")["incidents"]

    assert receivers == ["slack", "webhook", "alertmanager"]
    assert [(one["kind"], one["status"]) for one in incidents] == [("nonfinite", "discarded")]
    [opened] = [json.loads(body) for path, body in outside.received if path == "/hook" and "incident.opened" in body]
    assert opened["incident"]["onset_step"] == 11
