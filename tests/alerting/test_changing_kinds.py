"""An incident whose kind changes while it lasts: one alert with one more message, in Slack, PagerDuty and the feed."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilityalerting import AlertingService, RetryPolicy, Server, sinks_from_env
from stabilitybackend.judging.detectors.curve.detector import CurvesDetector
from stabilitybackend.judging.detectors.engine.bank import DetectorBank
from stabilitybackend.judging.detectors.engine.base import Row
from stabilitybackend.judging.incidents.incidents import IncidentBook
from stabilitybackend.judging.incidents.rollback_target import UsableOf
from stabilitybackend.schema.incidents import as_json
from stabilityplugins.pagerduty.channel import PagerDutySink
from support.incident_stream import SLACK_PATH, STREAM, publish, settled
from support.outside.pagerduty import ROUTING_KEY, FakePagerDuty

ONSET, BEGAN = 400, 1_700_000_000.0


def spike_then_climb(at: int) -> float:
    return 1.5 + 0.01 * at


def jump_that_stays(at: int) -> float:
    return 1.5


def climb_that_comes_back(at: int) -> float:
    return 1.5 + 0.01 * at if at < 140 else 1.0


def versions(shape: Callable[[int], float], points: int) -> list[dict[str, Any]]:
    """Return the loss incident of a job as it changed, as alerting gets it."""
    bank, book, dice = DetectorBank({"curve": CurvesDetector}), IncidentBook("run-1"), random.Random(7)
    events: list[dict[str, Any]] = []
    for step in range(points):
        fell = 2.0 * (1 + step / 50) ** -0.12
        loss = fell * math.exp(dice.gauss(0, 0.01)) * (shape(step - ONSET) if step >= ONSET else 1.0)
        for finding in bank.feed_row(Row(step, BEGAN + step, {"loss": loss})):
            changed = book.apply(finding, segment=0, time=BEGAN + step, checkpoints=UsableOf([]))
            events += [as_json(one) for one in changed]
    return events


@pytest.mark.parametrize(
    ("shape", "kinds", "changes"),
    [
        (spike_then_climb, ["spike", "divergence"], ["opened", "escalated"]),
        (jump_that_stays, ["spike", "level_shift"], ["opened", "escalated"]),
        (climb_that_comes_back, ["spike", "divergence"], ["opened", "escalated", "resolved"]),
    ],
)
async def test_a_kind_that_changes_is_the_same_alert_and_one_more_message(
    redis: Redis, receiver: Any, shape: Callable[[int], float], kinds: list[str], changes: list[str]
) -> None:
    events = versions(shape, 700)
    assert len({event["incident_id"] for event in events}) == 1
    assert list(dict.fromkeys(event["kind"] for event in events)) == kinds

    async def streams() -> list[str]:
        return [STREAM]

    with FakePagerDuty() as pagerduty:
        env = {"STABILITY_SLACK_WEBHOOK_URL": f"{receiver.url}{SLACK_PATH}", **pagerduty.variables()}
        quick = RetryPolicy(first_s=0.02, longest_s=0.1, per_second=1e3, burst=1000)
        service = AlertingService(
            redis,
            Server(streams, "http://board", lambda: BEGAN + 700),
            sinks_from_env(env, [PagerDutySink]),
            retry_policy=quick,
            lease_s=5.0,
        )
        stop = asyncio.Event()
        task = asyncio.create_task(service.run(stop))
        try:
            for count, event in enumerate(events, 1):
                await publish(redis, event)
                for sink in service.sinks:
                    await settled(redis, f"alerting:{sink.name}", count)
        finally:
            stop.set()
            await task
    (alert,) = pagerduty.alerts[ROUTING_KEY]
    assert alert.pages == 1
    assert [event["event_action"] for event in alert.events] == [
        "resolve" if change == "resolved" else "trigger" for change in changes
    ]
    texts = [one.json["text"] for one in receiver.received]
    assert len(texts) == len(changes)
    assert kinds[-1] == events[-1]["kind"]
    assert [text.split(":")[1] for text in texts][:2] == ["warning", "rotating_light"]
