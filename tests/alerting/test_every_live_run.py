"""Alerts come from every live run, however many newer ones there are: the whole server and a real receiver."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilitybackend.runs.index import RunIndex
from stabilityclient.wire import Hello
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer
from support.waiting import until

#: More than any page of the list holds.
NEWER = 600


def _loss(steps: range, bad: int | None = None) -> dict[str, list[float]]:
    """Return a loss that wriggles around 2, with a jump from step ``bad`` on."""
    return {"loss": [2.0 + 0.01 * (s * 7 % 11) + (6.0 if bad is not None and s >= bad else 0.0) for s in steps]}


async def test_a_spike_in_a_live_run_older_than_six_hundred_others_reaches_the_receiver(
    redis: Redis, redis_url: str, receiver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STABILITY_WEBHOOK_URL", f"{receiver.url}/hook")
    monkeypatch.setenv("STABILITY_WEBHOOK_SECRET", "secret")
    server = RunningServer(redis_url, tmp_path / "server")
    await asyncio.to_thread(server.__enter__)
    try:
        job = Job()
        async with RawAgent(server.agent_url) as agent:
            await agent.begin(job.rows(range(400), _loss(range(400))), run_id="old")
            index = RunIndex(redis)
            for n in range(NEWER):
                await index.register(Hello(f"newer-{n}", "a1", "n0", "0.1.0"), 2e9 + n)
            await agent.store(job.rows(range(400, 420), _loss(range(400, 420), bad=404)))

            async def told() -> list[Any]:
                return [one.json for one in receiver.received]

            (first, *_) = await until(told, 20, "the receiver hears of it")
    finally:
        await asyncio.to_thread(server.__exit__, None, None, None)
    assert (first["incident"]["run_id"], first["incident"]["kind"]) == ("old", "spike")
