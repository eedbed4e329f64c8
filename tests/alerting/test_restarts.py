"""A job that its launcher starts again: who is notified, how often, and what the message says."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilityalerting import AlertingService, RetryPolicy, Server, sinks_from_env
from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.incidents.incidents import IncidentBook
from stabilitybackend.judging.incidents.rollback_target import UsableOf
from stabilitybackend.schema.incidents import RolledBack, as_json
from stabilitybackend.schema.kinds import RESTART_S
from stabilityplugins.pagerduty.channel import PagerDutySink
from support.incident_stream import SLACK_PATH, STREAM, publish, settled
from support.jobs.watched_job import START, Job
from support.outside.pagerduty import FakePagerDuty
from support.waiting import until


@dataclass
class Watched:
    """A job of one process, and its incidents as they change: (unix seconds, JSON)."""

    job: Job = field(default_factory=lambda: Job(nodes={"a": [0]}))
    book: IncidentBook = field(default_factory=lambda: IncidentBook("run-1"))
    events: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    def run(self, seconds: int, *, moving: bool = True) -> None:
        for _ in range(seconds):
            for finding in self.job.run(1, moving=moving):
                self.find(finding)

    def find(self, finding: Finding) -> None:
        now = self.job.now
        self._take(self.book.apply(finding, segment=0, time=now, checkpoints=UsableOf([])))

    def go_back(self, step: int) -> None:
        self._take(self.book.rolled_back({0: step}, self.job.now, RolledBack(step, 0), step))

    def _take(self, changed: list[Any]) -> None:
        self.events += [(self.job.now, as_json(incident)) for incident in changed]

    def dies(self, cause: str = "signal") -> None:
        self.job.dies(0, start=self.job.start, cause=cause, signal_name="SIGKILL")

    def comes_back(self) -> None:
        self.job.start += 1
        self.job.stuck.clear()

    def restarts(self, away_s: int) -> None:
        """Run for a while, die, and be started again after so long."""
        self.run(20)
        self.dies()
        self.run(away_s, moving=False)
        self.comes_back()
        self.run(3)

    def now(self, incident_id: str, time: float) -> bytes | None:
        known = [event for at, event in self.events if event["incident_id"] == incident_id and at <= time]
        return json.dumps(known[-1]).encode() if known else None


def bump(step: int, **changes: Any) -> Finding:
    """A loss that came back higher from a resume."""
    known = {"state": "open", "severity": "warning", "recovery": "pending", "now_step": step + 5} | changes
    return Finding(
        detector="resume_artifact", key=f"resume_artifact:loss:{step}", kind="resume_artifact",
        title=f"Loss bump after the resume at step {step}", text="The loss rose.", onset_step=step, step=step + 5,
        metric="loss", **known,
    )  # fmt: skip


def spike(step: int) -> Finding:
    return Finding(
        "spike", f"spike:loss:{step}", "spike", "open", "warning", f"Loss spike at step {step}", "It rose.",
        step, step, step, metric="loss",
    )  # fmt: skip


@asynccontextmanager
async def told(redis: Redis, watched: Watched, env: dict[str, str]) -> AsyncIterator[Callable[[float], Any]]:
    """Yield how time goes on for alerting, up to a moment, with all that changed until then."""
    at = START

    async def streams() -> list[str]:
        return [STREAM]

    async def incidents_now(_: str, ids: list[str]) -> list[bytes | None]:
        return [watched.now(incident_id, at) for incident_id in ids]

    quick = RetryPolicy(first_s=0.02, longest_s=0.1, per_second=1e3, burst=1000)
    service = AlertingService(
        redis,
        Server(streams, "http://board", lambda: at, incidents_now=incidents_now),
        sinks_from_env(env, [PagerDutySink]),
        retry_policy=quick,
        lease_s=5.0,
    )
    stop = asyncio.Event()
    task = asyncio.create_task(service.run(stop))
    published = 0

    async def goes_on(time: float) -> None:
        nonlocal at, published
        for moment, event in [one for one in watched.events if at < one[0] <= time]:
            at = moment
            await publish(redis, event)
            published += 1
            for sink in service.sinks:
                await settled(redis, f"alerting:{sink.name}", published)
        at = time

    try:
        yield goes_on
    finally:
        stop.set()
        await task


async def messages(redis: Redis, receiver: Any, watched: Watched) -> list[str]:
    """Return what Slack gets of all that happened."""
    env = {"STABILITY_SLACK_WEBHOOK_URL": f"{receiver.url}{SLACK_PATH}"}
    async with told(redis, watched, env) as goes_on:
        await goes_on(watched.job.now)
    return [one.json["text"] for one in receiver.received]


async def test_a_dozen_restarts_with_a_bump_each_are_at_most_three_messages(redis: Redis, receiver: Any) -> None:
    watched = Watched()
    for nth in range(12):
        watched.restarts(away_s=5)
        step = 100 * (nth + 1)
        watched.find(bump(step))
        watched.run(2)
        watched.find(bump(step, state="recovered", recovery="fast", recovered_step=step + 9, now_step=step + 12))
    with FakePagerDuty() as pagerduty:
        env = {"STABILITY_SLACK_WEBHOOK_URL": f"{receiver.url}{SLACK_PATH}", **pagerduty.variables()}
        async with told(redis, watched, env) as goes_on:
            await goes_on(watched.job.now)
        texts = [one.json["text"] for one in receiver.received]
        triggers = [event for event in pagerduty.events if event["event_action"] == "trigger"]
        open_ones = [alert.status for alert in pagerduty.alerts["r0uting-key-of-32-characters-xxx"]]
    assert (len(texts), len(triggers)) == (2, 2)
    assert sum("for the 3rd time" in text for text in texts) == 2
    assert set(open_ones) == {"resolved"}


async def test_what_the_launcher_brought_back_is_information_and_twice_is_no_message(
    redis: Redis, receiver: Any
) -> None:
    watched = Watched()
    watched.restarts(away_s=5)
    watched.restarts(away_s=30)
    assert await messages(redis, receiver, watched) == []
    assert [(one.severity, one.state, one.nth) for one in watched.book.all()] == [
        ("info", "resolved", 2), ("info", "resolved", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("healed", [0, 1, 4])
async def test_a_job_that_does_not_come_back_is_a_page_whatever_healed_before(
    redis: Redis, receiver: Any, healed: int
) -> None:
    watched = Watched()
    for _ in range(healed):
        watched.restarts(away_s=5)
    watched.run(20)
    watched.dies()
    died = watched.job.now
    watched.run(int(RESTART_S) + 30, moving=False)
    env = {"STABILITY_SLACK_WEBHOOK_URL": f"{receiver.url}{SLACK_PATH}"}
    async with told(redis, watched, env) as goes_on:
        await goes_on(died + RESTART_S - 5)
        before = len(receiver.received)
        await goes_on(watched.job.now)

        async def arrived() -> bool:
            return len(receiver.received) > before

        await until(arrived, 10, "the page")
    assert before == (1 if healed >= 3 else 0)
    assert receiver.received[-1].json["text"].startswith(":rotating_light: Rank 0 was killed from outside by SIGKILL")


async def test_a_launcher_that_took_minutes_before_is_given_as_long_again(redis: Redis, receiver: Any) -> None:
    watched = Watched()
    watched.restarts(away_s=200)
    watched.restarts(away_s=250)
    assert [one.severity for one in watched.book.all()] == ["info", "warning"]


@pytest.mark.parametrize("seed", range(3))
async def test_restarts_at_any_pace_are_one_message_from_the_third_on(redis: Redis, receiver: Any, seed: int) -> None:
    rng, watched = random.Random(seed), Watched()
    count = rng.randint(1, 9)
    for _ in range(count):
        watched.restarts(away_s=rng.randint(2, int(RESTART_S) - 5))
    assert len(await messages(redis, receiver, watched)) == (count >= 3)


async def test_deaths_of_different_causes_are_not_counted_together(redis: Redis, receiver: Any) -> None:
    watched = Watched()
    for cause in ("signal", "oom_kill", "signal", "oom_kill"):
        watched.run(20)
        watched.dies(cause)
        watched.run(5, moving=False)
        watched.comes_back()
        watched.run(3)
    assert await messages(redis, receiver, watched) == []
    assert [one.nth for one in watched.book.all()] == [2, 2, 1, 1]


async def test_twelve_rollbacks_into_the_same_spike_are_told_with_a_count(redis: Redis, receiver: Any) -> None:
    watched = Watched()
    for nth in range(12):
        watched.run(5)
        watched.find(spike(301 + nth))
        watched.run(5)
        watched.go_back(300)
    texts = await messages(redis, receiver, watched)
    heads = (
        ":warning: Loss spike at step 301: ",
        "Discarded by rollback: Loss spike at step 301 (",
        ":warning: Loss spike at step 303, for the 3rd time: ",
        "Discarded by rollback: Loss spike at step 303, for the 3rd time (",
    )
    assert [text[: len(head)] for text, head in zip(texts, heads, strict=True)] == list(heads)
