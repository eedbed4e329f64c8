"""One thread an incident in Slack, kept up to date, and what its buttons do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilityalerting import AlertingService, RetryPolicy, sinks_from_env
from support.incident_stream import STREAM, incident, publish
from support.slack.fake_slack import FakeSlack
from support.slack.pretended_actions import PretendedActions
from support.waiting import until

USERS = json.dumps({"U0ADA": "command", "U0BOB": "read", "eve@example.com": "command"})


@pytest.fixture
def slack() -> Iterator[FakeSlack]:
    with FakeSlack() as running:
        yield running


@asynccontextmanager
async def running(
    redis: Redis, slack: FakeSlack, actions: PretendedActions, now: Any = None, **more: str
) -> AsyncIterator[AlertingService]:
    """Run alerting with this workspace as its one receiver."""

    async def streams() -> list[str]:
        return [STREAM]

    sinks = sinks_from_env(slack.variables(STABILITY_SLACK_USERS=USERS, **more))
    service = AlertingService(
        redis, streams, sinks, "http://board", now or (lambda: 1_700_000_100.0), actions=actions, lease_s=0.6,
        retry_policy=RetryPolicy(first_s=0.05, longest_s=0.2, per_second=1e3, burst=1000),
    )  # fmt: skip
    stop = asyncio.Event()
    task = asyncio.create_task(service.run(stop))
    try:
        yield service
    finally:
        stop.set()
        await task


async def soon(slack: FakeSlack, condition: Any, what: str) -> Any:
    await until(lambda: bool(condition(slack)), 10, what)
    return condition(slack)


async def test_an_incident_is_one_message_and_its_changes_are_replies_in_its_thread(
    redis: Redis, slack: FakeSlack
) -> None:
    async with running(redis, slack, PretendedActions()):
        await publish(redis, incident(1))
        await soon(slack, lambda s: s.messages, "the message is there")
        await publish(redis, incident(1, 2, severity="critical"), incident(1, 3, state="resolved"))
        await soon(slack, lambda s: len(s.messages) == 3, "the replies are there")
        await soon(slack, lambda s: "Resolved" in s.messages[0].text, "the message is up to date")

    [parent] = slack.parents()
    assert [one.text for one in slack.replies(parent)] == [
        "\U0001f6a8 Now critical: Loss spike at step 100 (run run-1)",
        "\u2705 Resolved: Loss spike at step 100 (run run-1)",
    ]
    assert [one.broadcast for one in slack.replies(parent)] == [True, False]


async def test_a_click_on_acknowledge_is_done_in_the_name_of_who_clicked(redis: Redis, slack: FakeSlack) -> None:
    actions = PretendedActions()
    async with running(redis, slack, actions):
        await publish(redis, incident(1))
        await soon(slack, lambda s: s.messages and s.listens(), "the message is there")
        await asyncio.to_thread(slack.press, slack.messages[0], "stability_ack")
        await soon(slack, lambda s: actions.acknowledged, "it is acknowledged")
        await publish(redis, incident(1, 2, acknowledged_by="slack:ada"))
        await soon(slack, lambda s: s.replies(s.messages[0]), "the thread says so")

    assert actions.acknowledged == [("run-1", "i-1", "slack:ada")]
    assert slack.replies(slack.messages[0])[0].text == "slack:ada takes care of it"
    assert "stability_ack" not in slack.messages[0].buttons()
