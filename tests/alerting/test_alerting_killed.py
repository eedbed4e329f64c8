"""An alerting process that is killed at any moment: nothing is told twice and nothing is missing."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.incident_stream import SLACK_PATH, STREAM, incident, publish, settled
from support.outside.alertmanager import Alertmanager
from support.waiting import until


class Process:
    """An alerting process of its own, with Slack, PagerDuty and the webhook at one receiver."""

    def __init__(
        self, redis_url: str, url: str, longest_s: float = 0.2, receivers: dict[str, str] | None = None
    ) -> None:
        env = os.environ | (
            receivers
            or {
                "STABILITY_SLACK_WEBHOOK_URL": url + SLACK_PATH,
                "STABILITY_PAGERDUTY_ROUTING_KEY": "key",
                "STABILITY_PAGERDUTY_URL": url + "/v2/enqueue",
                "STABILITY_WEBHOOK_URL": url + "/hook",
                "STABILITY_WEBHOOK_SECRET": "secret",
            }
        )
        script = Path(__file__).parents[1] / "support" / "alerting_process.py"
        self.process = subprocess.Popen([sys.executable, str(script), redis_url, str(longest_s), STREAM], env=env)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


async def all_done(redis: Redis, process: Process, events: int) -> None:
    """Let a process do all events of the stream for each receiver, then end it."""
    try:
        for group in ("slack", "pagerduty", "webhook"):
            await settled(redis, f"alerting:{group}", events)
    finally:
        process.kill()


async def test_after_a_kill_at_any_moment_nothing_is_told_twice_and_nothing_is_missing(
    redis: Redis, redis_url: str, receiver: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    first = Process(redis_url, receiver.url)
    try:
        await publish(redis, *(incident(i) for i in range(10)))
        await until(lambda: len(receiver.received) >= 12, 20, "some messages arrive")
    finally:
        first.kill()
    await publish(redis, *(incident(i, 2, state="resolved") for i in range(10)))
    await all_done(redis, Process(redis_url, receiver.url), 20)
    slack = [request.json["text"] for request in receiver.received if request.path == SLACK_PATH]
    assert len(slack) == len(set(slack))
    # Slack may miss the one message whose mark left and which itself did not; then the next process says so.
    said = capfd.readouterr().err.count("is not sent again")
    assert 20 - said <= len(slack) <= 20
    assert said <= 1
    hooks = {request.headers["idempotency-key"] for request in receiver.received if request.path == "/hook"}
    assert len(hooks) == 20
    pages = {(r.json["dedup_key"], r.json["event_action"]) for r in receiver.received if r.path == "/v2/enqueue"}
    assert len(pages) == 20


async def test_a_kill_between_the_request_and_the_answer_repeats_nothing_to_slack(
    redis: Redis, redis_url: str, receiver: Any
) -> None:
    receiver.answering.clear()
    first = Process(redis_url, receiver.url)
    try:
        await publish(redis, incident(1))
        await until(lambda: len(receiver.received) == 3, 20, "all three requests are under way")
    finally:
        first.kill()
    receiver.answering.set()
    second = Process(redis_url, receiver.url)
    try:
        await publish(redis, incident(1, 2, state="resolved"))
        for group in ("slack", "pagerduty", "webhook"):
            await settled(redis, f"alerting:{group}", 2)
    finally:
        second.kill()
    by_path: dict[str, list[str]] = {}
    for request in receiver.received:
        said = request.headers.get("idempotency-key") or request.json.get("event_action") or request.json["text"]
        by_path.setdefault(request.path, []).append(said)
    title, where = "Loss spike at step 100", "(run run-1)"
    assert by_path == {
        SLACK_PATH: [
            f":warning: {title}: roll back to step 50 {where}",
            f":white_check_mark: Resolved: {title} {where}",
        ],
        "/v2/enqueue": ["trigger", "trigger", "resolve"],
        "/hook": ["i-1-1-opened", "i-1-1-opened", "i-1-2-resolved"],
    }


async def test_a_kill_while_a_retry_waits_loses_nothing(redis: Redis, redis_url: str, receiver: Any) -> None:
    receiver.script = [(503, {"Retry-After": "60"})] * 3
    first = Process(redis_url, receiver.url, longest_s=60.0)
    try:
        await publish(redis, incident(1))
        await until(lambda: len(receiver.received) == 3, 20, "each receiver has refused once")
        await until(lambda: _no_mark(redis), 20, "the marks are taken back")
    finally:
        first.kill()
    await all_done(redis, Process(redis_url, receiver.url), 1)
    assert sorted(request.path for request in receiver.received[3:]) == sorted([SLACK_PATH, "/v2/enqueue", "/hook"])


async def _no_mark(redis: Redis) -> bool:
    records = [json.loads(await redis.get(key)) async for key in redis.scan_iter("*:told:*")]
    return len(records) == 3 and all(record["sending"] is None for record in records)


async def test_after_a_kill_alertmanager_is_told_again_by_the_next_process_and_nothing_ended_in_between(
    redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    with Alertmanager(tmp_path, "http://127.0.0.1:9") as alertmanager:
        receivers = {"STABILITY_ALERTMANAGER_URL": alertmanager.url}

        async def until_known(what: str, **more: str) -> dict[str, Any]:
            async def known() -> dict[str, Any] | None:
                found = await asyncio.to_thread(alertmanager.alerts, run="run-1")
                return found[0] if len(found) == 1 and found[0]["updatedAt"] > more.get("after", "") else None

            found: dict[str, Any] = await until(known, 20, what)
            return found

        first = Process(redis_url, "", receivers=receivers)
        try:
            await publish(redis, incident(1))
            before = await until_known("it fires")
        finally:
            first.kill()
        assert [one["fingerprint"] for one in alertmanager.alerts(run="run-1")] == [before["fingerprint"]]
        second = Process(redis_url, "", receivers=receivers)
        try:
            after = await until_known("it is told again", after=before["updatedAt"])
            await publish(redis, incident(1, 2, state="resolved"))
            await until(lambda: not alertmanager.alerts(run="run-1"), 20, "it ended")
        finally:
            second.kill()
    assert (after["fingerprint"], after["startsAt"]) == (before["fingerprint"], before["startsAt"])
    assert after["endsAt"] > before["endsAt"]
