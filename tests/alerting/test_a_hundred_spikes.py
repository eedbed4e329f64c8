"""A run that spikes a hundred times: the whole server, and a Slack behind a real socket that gets one message."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.gateway_stack import RawAgent
from support.incident_stream import SLACK_PATH, STREAM, settled
from support.job_frames import Job
from support.server_stack import RunningServer
from support.waiting import until

SPIKES, EVERY = 100, 40
FIRST = 400
LAST = FIRST + SPIKES * EVERY


def _loss(steps: range) -> dict[str, list[float]]:
    """Return a noisy loss around 2 with a spike of five points each EVERY steps."""
    rng = random.Random(3)
    noise = [rng.gauss(0, 0.02) for _ in range(LAST + EVERY)]
    return {"loss": [2.0 + noise[s] + (2.0 if s >= FIRST and s % EVERY < 5 and s < LAST else 0.0) for s in steps]}


@pytest.mark.soak
async def test_a_run_that_spikes_a_hundred_times_is_one_message_and_a_hundred_marks(
    redis: Redis, redis_url: str, receiver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STABILITY_SLACK_WEBHOOK_URL", f"{receiver.url}{SLACK_PATH}")
    server = RunningServer(redis_url, tmp_path / "server")
    await asyncio.to_thread(server.__enter__)
    try:
        job = Job()
        async with RawAgent(server.agent_url) as agent:
            await agent.begin(job.rows(range(FIRST), _loss(range(FIRST))), run_id="run-1")
            for begin in range(FIRST, LAST + EVERY, EVERY):
                for steps in (range(begin, begin + 3), range(begin + 3, begin + EVERY)):
                    await agent.store(job.rows(steps, _loss(steps)))

            async def spikes() -> list[dict[str, Any]] | None:
                found = await asyncio.to_thread(server.get, "/runs/run-1/incidents")
                spikes = [one for one in found["incidents"] if one["kind"] == "spike"]
                return spikes if len(spikes) >= SPIKES and all(one["state"] != "open" for one in spikes) else None

            marks = await until(spikes, 60, "every spike is an incident")

            # What opened and was over before the alerting read it is none of its business, the first one included.
            await settled(redis, "alerting:slack", await redis.xlen(STREAM))
    finally:
        await asyncio.to_thread(server.__exit__, None, None, None)
    marks = sorted(marks, key=lambda one: one["onset_step"])
    assert [one["onset_step"] // EVERY for one in marks] == list(range(FIRST // EVERY, LAST // EVERY))
    assert [one["nth"] for one in marks] == list(range(1, SPIKES + 1))
    opened = [
        one for one in receiver.received if not {b"resolved", b"recovered"} & set(re.findall(rb"\w+", one.body.lower()))
    ]
    assert len(opened) == 1
    assert len(receiver.received) <= 2
