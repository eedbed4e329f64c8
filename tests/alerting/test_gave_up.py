"""Who hears that the autopilot gave up: always a person, and nobody a second time who was called for its cause."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from stabilityalerting import AlertingService, RecordingSink, RetryPolicy, Server
from stabilityalerting.alert import Alert, Notice
from stabilityalerting.notification_log import NotificationLog, Record
from stabilityalerting.routing import Mute, Route, RoutingTable, Rules
from stabilityalerting.stages import Job, run_stages
from stabilityplugins.pagerduty.channel import alert_event
from stabilityplugins.pagerduty.memory import dedup_key
from support.incident_stream import STREAM, incident, publish, settled

OPENED = 1_700_000_000.0
GAVE_UP = OPENED + 300.0
QUICK = RetryPolicy(first_s=0.02, longest_s=0.1, per_second=1e3, burst=1000)


def lead(version: int = 1, **changes: Any) -> dict[str, Any]:
    return incident(1, version, kind="divergence", opened=OPENED, **changes)


def gave_up(version: int = 1, **changes: Any) -> dict[str, Any]:
    said = {
        "kind": "autopilot_gave_up", "about": "user", "severity": "critical", "caused_by": "i-1", "opened": GAVE_UP,
        "title": "Autopilot asks people: Loss spike", "text": "Autopilot gave up at step 450: nothing is left.",
    }  # fmt: skip
    return incident(2, version, **said | changes)


def alert(event: dict[str, Any]) -> Alert:
    return Alert.from_json(json.dumps(event))


def result(job: Job) -> str | None:
    """Return the change that is reported, or the reason why nothing is."""
    found = run_stages(job)
    return found.change if isinstance(found, Job) else found.reason


class Grouping(RecordingSink):
    """One that groups by itself, as Alertmanager does."""

    rate_bound = False


MUTED = Rules(mutes=(Mute("m", {"kind": "divergence"}, "ada", "known", OPENED, OPENED + 9_000),))
ALL_MUTED = Rules(mutes=(Mute("m", {"run": "run-1"}, "ada", "mending it", OPENED, OPENED + 9_000),))
ELSEWHERE = Rules(table=RoutingTable([Route([])]))
BEFORE = {"acknowledged_by": "ada", "acknowledged": GAVE_UP - 60}
SINCE = {"acknowledged_by": "ada", "acknowledged": GAVE_UP + 5}


@pytest.mark.parametrize(
    ("told", "cause", "rules", "expected"),
    [
        ("open", lead(), Rules(), "handed_over"),
        ("open", lead(severity="critical"), Rules(), "handed_over"),
        ("open", lead(), ELSEWHERE, "handed_over"),
        ("open", lead(**SINCE), Rules(), "handed_over"),
        ("open", lead(**BEFORE), Rules(), "opened"),
        ("open", lead(state="resolved"), Rules(), "opened"),
        ("open", None, Rules(), "opened"),
        ("", lead(), MUTED, "opened"),
        ("", lead(), Rules(), "opened"),
        ("over", lead(), Rules(), "opened"),
        ("", lead(**SINCE), Rules(), "acknowledged_before"),
        ("open", lead(), ALL_MUTED, "muted"),
    ],
    ids=[
        "sent and not answered", "sent as grave", "no route of its own", "taken over since", "taken over before",
        "over", "forgotten", "muted", "held back", "was over", "not sent and taken over since", "the run is muted",
    ],
)  # fmt: skip
def test_that_it_gave_up_is_news_of_its_own_unless_somebody_is_called_for_its_cause(
    told: str, cause: dict[str, Any] | None, rules: Rules, expected: str
) -> None:
    known = None if cause is None else alert(cause)
    record = Record(told, "warning", 1)
    job = Job(alert(gave_up()), RecordingSink(), Record(), cause=record, lead=known, rules=rules, now=GAVE_UP)
    assert result(job) == expected


def test_a_receiver_that_groups_by_itself_gets_it_as_an_alert_of_its_own() -> None:
    job = Job(alert(gave_up()), Grouping(), Record(), cause=Record("open", "critical", 1), lead=alert(lead()))
    assert result(job) == "opened"


def test_pagerduty_hears_it_under_the_key_of_the_cause_and_as_critical() -> None:
    notice = Notice(alert(lead()), "handed_over", "http://board/x", why="Gave up.", by=alert(gave_up()))
    event = json.loads(alert_event(notice, "R" * 32))
    assert (event["event_action"], event["dedup_key"]) == ("trigger", dedup_key("i-1"))
    assert (event["payload"]["severity"], event["payload"]["summary"][:9]) == ("critical", "Gave up. ")


@contextlib.asynccontextmanager
async def serving(redis: Redis, sink: RecordingSink, stored: dict[str, dict[str, Any]]) -> AsyncIterator[None]:
    async def streams() -> list[str]:
        return [STREAM]

    async def incidents_now(run_id: str, incident_ids: list[str]) -> list[bytes | None]:
        return [json.dumps(stored[one]).encode() for one in incident_ids]

    service = AlertingService(
        redis,
        Server(streams, "http://board", lambda: GAVE_UP, incidents_now=incidents_now),
        [sink],
        retry_policy=QUICK,
        lease_s=0.6,
    )
    stop = asyncio.Event()
    task = asyncio.create_task(service.run(stop))
    try:
        yield
    finally:
        stop.set()
        await task


async def test_it_is_said_once_behind_the_message_about_its_cause_and_ends_with_that(redis: Redis) -> None:
    sink, stored = RecordingSink(), {"i-1": lead()}
    async with serving(redis, sink, stored):
        await publish(redis, lead(), gave_up(), gave_up(2, text="Autopilot gave up. The advice changed."))
        await settled(redis, "alerting:recording", 3)
    async with serving(redis, sink, stored):  # the next process
        await publish(redis, lead(2, state="resolved"), gave_up(3, state="resolved"))
        await settled(redis, "alerting:recording", 5)
    assert [(one.alert.incident_id, one.change, one.why) for one in sink.notices] == [
        ("i-1", "opened", ""),
        ("i-1", "handed_over", "Autopilot gave up at step 450: nothing is left."),
        ("i-1", "resolved", ""),
    ]


@pytest.mark.parametrize(("arrived", "expected"), [(True, []), (False, ["handed_over"])])
async def test_after_a_crash_the_thread_of_the_cause_is_asked_whether_it_was_said(
    redis: Redis, arrived: bool, expected: list[str]
) -> None:
    asked: list[tuple[str, str]] = []

    class Asked(RecordingSink):
        async def arrived(self, stream: str, incident_id: str, key: str) -> bool | None:
            asked.append((incident_id, key))
            return arrived

    sink = Asked()
    log = NotificationLog(redis, sink.name)
    known = {
        "i-1": Record("open", "warning", 1),
        "i-2": Record(sending="handed_over", sending_version=1, sending_severity="critical"),
    }
    for incident_id, record in known.items():
        await redis.set(f"{STREAM}:told:{sink.name}:{incident_id}", msgspec.json.encode(record))
    async with serving(redis, sink, {"i-1": lead()}):
        await publish(redis, gave_up())
        await settled(redis, "alerting:recording", 1)
    assert asked == [("i-1", "i-2-1-handed_over")]
    assert [one.change for one in sink.notices] == expected
    assert (await log.read(STREAM, "i-2")).state == "with_cause"
