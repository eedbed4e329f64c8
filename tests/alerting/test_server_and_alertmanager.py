"""The whole server with a real Alertmanager: from a job that spikes to the alert, and what the server says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.outside.alertmanager import Alertmanager
from support.outside.receiver_thread import ReceiverThread
from support.processes import Server
from support.server_stack import RunningServer
from support.waiting import until, wait_until


@pytest.fixture
def outside() -> Iterator[ReceiverThread]:
    with ReceiverThread() as running:
        yield running


def losses(steps: range) -> dict[str, list[float]]:
    """Return a loss that wriggles around 2, and jumps at step 404."""
    return {"loss": [2.0 + 0.01 * (s * 7 % 11) + (6.0 if s >= 404 else 0.0) for s in steps]}


async def test_a_spike_fires_in_alertmanager_and_the_server_says_what_was_accepted(
    redis_url: str, outside: ReceiverThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Alertmanager(tmp_path, outside.url) as alertmanager:
        monkeypatch.setenv("STABILITY_ALERTMANAGER_URL", alertmanager.url)
        monkeypatch.setenv("STABILITY_HEARTBEAT_URL", f"{outside.url}/beat")
        server = RunningServer(redis_url, tmp_path / "server")
        await asyncio.to_thread(server.__enter__)
        try:
            job = Job()
            async with RawAgent(server.agent_url) as agent:
                await agent.begin(job.rows(range(400), losses(range(400))), run_id="r", project="llm")
                await agent.store(job.rows(range(400, 420), losses(range(400, 420))))
                await until(lambda: alertmanager.alerts(run="r", project="llm", kind="spike"), 20, "the spike fires")

                def accepted() -> Any:
                    found = server.get("/receivers")
                    both = [found["heartbeat"], found["watchdog"], *found["receivers"]]
                    return [(one["name"], one["status"]) for one in both if one["status"] == "accepted"]

                said = await asyncio.to_thread(
                    wait_until, lambda: accepted() if len(accepted()) == 3 else None, 20, "all are accepted"
                )
        finally:
            await asyncio.to_thread(server.__exit__, None, None, None)
    assert said == [("heartbeat", "accepted"), ("watchdog", "accepted"), ("alertmanager", "accepted")]
    assert outside.heard("/beat")


@pytest.mark.soak
async def test_a_server_that_is_killed_tells_alertmanager_again_and_nothing_ended_in_between(
    outside: ReceiverThread, tmp_path: Path, free_port: int
) -> None:
    with Alertmanager(tmp_path, outside.url) as alertmanager:
        env = {"STABILITY_ALERTMANAGER_URL": alertmanager.url}
        with Server(tmp_path / "data", free_port, env) as server:
            job = Job()
            async with RawAgent(f"{server.url.replace('http', 'ws')}/api/v1/agent") as agent:
                await agent.begin(job.rows(range(420), losses(range(420))), run_id="r")
                (before,) = await until(lambda: alertmanager.alerts(run="r"), 20, "the spike fires")
            server.kill()
            outside.received.clear()
            server.start()

            def again() -> dict[str, Any] | None:
                (alert,) = alertmanager.alerts(run="r")  # it never ended
                return alert if alert["updatedAt"] > before["updatedAt"] else None

            after = await asyncio.to_thread(wait_until, again, 30, "it is told again")
    assert after["fingerprint"] == before["fingerprint"]
    assert not outside.heard("/slack", ": 0 open")
