"""Alerting with a Slack app as its one receiver, a real Redis, and a Slack of our own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from stabilityalerting import AlertingService, RetryPolicy, Server, sinks_from_env
from stabilityplugins.slack.channel import SlackAppSink
from support.incident_stream import STREAM
from support.slack.fake_slack import FakeSlack, Posted
from support.slack.pretended_actions import PretendedActions
from support.waiting import until

__all__ = ["ACK", "MUTE", "NOW", "ROLL_BACK", "USERS", "running", "soon", "told"]

#: Ada may order, Bob may look, nobody else is known; Eve may order by her address.
USERS = json.dumps({"U0ADA": "command", "U0BOB": "read", "eve@example.com": "command"})
ACK, MUTE, ROLL_BACK = "stability_ack", "stability_mute", "stability_roll_back"
NOW = 1_700_000_100.0


@asynccontextmanager
async def running(
    redis: Redis,
    slack: FakeSlack,
    actions: PretendedActions | None = None,
    clock: Callable[[], float] = lambda: NOW,
    **more: str,
) -> AsyncIterator[AlertingService]:
    """Run alerting; ``more``: variables."""

    async def streams() -> list[str]:
        return [STREAM]

    service = AlertingService(
        redis,
        Server(streams, "http://board", clock, actions=actions or PretendedActions()),
        sinks_from_env(slack.variables(STABILITY_SLACK_USERS=USERS, **more), [SlackAppSink]),
        retry_policy=RetryPolicy(first_s=0.05, longest_s=0.2, per_second=1e3, burst=1000),
        lease_s=0.6,
    )
    stop = asyncio.Event()
    task = asyncio.create_task(service.run(stop))
    try:
        yield service
    finally:
        stop.set()
        await task


async def soon(condition: Callable[[], Any], what: str) -> Any:
    """Return the truth of ``condition`` once it is there."""
    await until(lambda: bool(condition()), 10, what)
    return condition()


async def told(slack: FakeSlack) -> Posted:
    """Return the message of the incident once it is there and the app listens."""
    await soon(lambda: slack.messages and slack.listens(), "the incident is told")
    return slack.messages[0]
