"""PagerDuty over a socket: what it takes, whom it pages, and what it is not sent."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilityalerting import Alert, AlertingSettingsError, BoardChange, Notice, Outcomes, SendError, sinks_from_env
from stabilityalerting.server import Server, SinkContext
from stabilityalerting.sink import BeforeWrite, Outgoing
from stabilityplugins.pagerduty import channel
from stabilityplugins.pagerduty.channel import MAX_BODY_BYTES, ChangeEvents, PagerDutySink, alert_event
from stabilityplugins.pagerduty.memory import Memory, OwnIncident
from stabilityplugins.pagerduty.webhooks import Webhooks
from support.incident_stream import incident
from support.outside.pagerduty import ROUTING_KEY, WEBHOOK_SECRET, FakePagerDuty
from support.slack.pretended_actions import PretendedActions

BOARD = "http://board"
OURS = OwnIncident("run-1", "i-1")
WHO = "pagerduty:Ada Lovelace"


def notice(change: Any = "opened", why: str = "", **changes: Any) -> Notice:
    alert = Alert.from_json(json.dumps(incident(**changes)))
    return Notice(alert, change, f"{BOARD}/runs/{alert.run_id}/incidents/{alert.incident_id}", why=why)


async def mark() -> None:
    pass


async def deliver(sink: PagerDutySink, one: Notice) -> None:
    """Send a notice as the notifier does."""
    if not await sink.knows(one):
        await sink.send(one, mark)


@pytest.fixture
def there() -> Iterator[FakePagerDuty]:
    with FakePagerDuty() as running:
        yield running


async def no_streams() -> list[str]:
    return []


def context(redis: Redis, **more: Any) -> SinkContext:
    server = Server(no_streams, BOARD, time.time, **more)
    return SinkContext(redis, server, lambda: True, Outcomes(redis, time.time))


@pytest.fixture
async def sink(redis: Redis, there: FakePagerDuty) -> AsyncIterator[PagerDutySink]:
    made = PagerDutySink(ROUTING_KEY, f"{there.url}/v2/enqueue")
    made.begin(context(redis))
    yield made
    await made.aclose()


async def test_one_incident_is_one_page_from_its_begin_to_its_end(there: FakePagerDuty, sink: PagerDutySink) -> None:
    for one in (
        notice(),
        notice("escalated", severity="critical", version=2),
        notice("grouped", "3 more incidents in 3 runs with the same kind (spike): a, b, c.", version=2),
        notice("acknowledged", version=3, acknowledged_by="ada"),
        notice("resolved", version=4, state="resolved"),
    ):
        await deliver(sink, one)

    [alert] = there.alerts[ROUTING_KEY]
    assert there.refused == []
    assert [event["event_action"] for event in alert.events] == ["trigger"] * 3 + ["acknowledge", "resolve"]
    assert (alert.status, there.pages()) == ("resolved", 1)
    assert alert.events[2]["payload"]["summary"].startswith("3 more incidents in 3 runs")
    assert alert.events[0]["links"] == [
        {"href": f"{BOARD}/runs/run-1/incidents/i-1", "text": "Incident of run run-1"},
        {"href": f"{BOARD}/runs/run-1", "text": "Run run-1"},
    ]
    assert "images" not in alert.events[0]


@pytest.mark.parametrize(
    "large",
    [
        {"title": "t" * 2_000, "text": "é" * 2_000},
        {"incident_id": "i" * 400},
        {"evidence": {"verdict": {"class": "hang", "culprits": [f"rank {rank:09}" for rank in range(40_000)]}}},
    ],
    ids=["texts", "id", "verdict"],
)
async def test_what_is_too_long_is_made_to_fit(
    there: FakePagerDuty, sink: PagerDutySink, large: dict[str, Any]
) -> None:
    one = notice(**large)
    await deliver(sink, one)

    assert there.refused == []
    assert there.pages() == 1
    assert len(alert_event(one, ROUTING_KEY)) <= MAX_BODY_BYTES


async def test_what_pagerduty_said_itself_it_is_not_sent(
    there: FakePagerDuty, sink: PagerDutySink, redis: Redis
) -> None:
    await deliver(sink, notice())
    await Memory(redis, "pagerduty").acknowledged(OURS, WHO)
    await deliver(sink, notice("acknowledged", acknowledged_by=WHO))
    assert there.actions("i-1") == ["trigger"]

    await deliver(sink, notice("acknowledged", acknowledged_by="somebody else"))
    assert there.actions("i-1") == ["trigger", "acknowledge"]


async def test_who_resolved_it_there_is_not_paged_by_a_summary_but_when_it_opens_again(
    there: FakePagerDuty, sink: PagerDutySink, redis: Redis
) -> None:
    await deliver(sink, notice())
    there.alerts[ROUTING_KEY][0].status = "resolved"
    await Memory(redis, "pagerduty").resolved(OURS)
    await deliver(sink, notice("grouped", "2 more incidents.", version=2))
    assert there.pages() == 1

    await deliver(sink, notice(version=3))
    await deliver(sink, notice("grouped", "4 more incidents.", version=3))
    assert there.pages() == 2
    assert there.actions("i-1") == ["trigger"] * 3


@pytest.mark.parametrize(
    ("status", "headers", "body", "again", "retry_after_s"),
    [
        (400, {}, b'{"status":"invalid event","message":"Event object is invalid"}', False, None),
        (429, {"Retry-After": "30"}, b"", True, 30.0),
        (429, {"Retry-After": "soon"}, b"", True, None),
        (500, {}, b"<html>", True, None),
        (302, {"Location": "http://127.0.0.1:9/"}, b"", False, None),
    ],
)
async def test_what_an_answer_means(
    there: FakePagerDuty,
    sink: PagerDutySink,
    status: int,
    headers: dict[str, str],
    body: bytes,
    again: bool,
    retry_after_s: float | None,
) -> None:
    there.script = [(status, headers, body)]
    with pytest.raises(SendError, match=f"pagerduty answered {status}") as caught:
        await sink.send(notice(), mark)
    assert (caught.value.recoverable, caught.value.retry_after_s) == (again, retry_after_s)


async def test_an_answer_that_is_no_json_was_an_acceptance_all_the_same(
    there: FakePagerDuty, sink: PagerDutySink
) -> None:
    there.script = [(202, {}, b"<html>")]
    await sink.send(notice(), mark)


async def test_a_redis_that_is_away_has_the_message_sent_later(there: FakePagerDuty) -> None:
    away = Redis.from_url("redis://127.0.0.1:9")
    sink = PagerDutySink(ROUTING_KEY, f"{there.url}/v2/enqueue")
    sink.begin(context(away))
    with pytest.raises(SendError, match="Redis is away") as caught:
        await sink.send(notice(), mark)
    assert caught.value.recoverable
    assert there.events == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("STABILITY_PAGERDUTY_WEBHOOK_SECRET", "s3cret"),
        ("STABILITY_PAGERDUTY_API_TOKEN", "s3cret"),
        ("STABILITY_PAGERDUTY_CHANGES", "sometimes"),
        ("STABILITY_PAGERDUTY_API_URL", "api.s3cret.test"),
    ],
)
def test_a_wrong_or_lonely_value_stops_the_start(variable: str, value: str) -> None:
    with pytest.raises(AlertingSettingsError, match=variable) as caught:
        sinks_from_env({variable: value}, [PagerDutySink])
    assert "s3cret" not in str(caught.value)


async def test_where_no_key_says_which_incident_it_is_its_title_does(
    there: FakePagerDuty, sink: PagerDutySink, redis: Redis
) -> None:
    actions = PretendedActions()
    webhooks = Webhooks([WEBHOOK_SECRET], Memory(redis, "pagerduty"), actions, time.time)
    await sink.send(notice(), mark)
    [alert] = there.alerts[ROUTING_KEY]

    results = [
        (await webhooks.take(there.webhook(kind, alert, key=""))).outcome
        for kind in ("incident.annotated", "incident.acknowledged")
    ]
    alert.events[0]["payload"]["summary"] = "Another title"
    results.append((await webhooks.take(there.webhook("incident.acknowledged", alert, key=""))).outcome)
    other = there.webhook("incident.acknowledged", alert, key="", incident="POTHER")
    results.append((await webhooks.take(other)).outcome)

    assert results == ["noted", "acknowledged", "acknowledged", "unknown"], "what it is was learnt by then"
    assert actions.acknowledged == [("run-1", "i-1", WHO)] * 2
    assert actions.noted == [("i-1", "incident.note_in_pagerduty", WHO, "It is the learning rate.")]


# --- change events -----------------------------------------------------------------------------------------------


class Source:
    """Has changes to read."""

    def __init__(self, *changes: BoardChange) -> None:
        self.changes = list(changes)
        self.asked: list[dict[str, str]] = []

    async def since(self, cursors: Any) -> tuple[list[BoardChange], dict[str, str]]:
        self.asked.append(dict(cursors))
        return self.changes, {"sb:audit": "5-0"}


def change(key: str = "c-1:ordered", **more: Any) -> BoardChange:
    return BoardChange(**{"key": key, "time": 1_700_000_000.0, "run_id": "run 1", "summary": "Rollback"} | more)


def sender(redis: Redis, source: Source, post: Any, url: str = "http://there/v2/enqueue") -> ChangeEvents:
    around = context(redis, changes_since=source.since)
    return ChangeEvents(post, Memory(redis, "pagerduty"), around, url, ROUTING_KEY)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "BETWEEN_S", 0.0)
    monkeypatch.setattr(channel, "LONGEST_PAUSE_S", 0.01)


async def test_a_change_is_on_the_timeline_once_and_pages_nobody(
    there: FakePagerDuty, sink: PagerDutySink, redis: Redis
) -> None:
    there.script = [(429, {"Retry-After": "1"}, b""), (500, {}, b"")]
    long = change("r-1", run_id="", summary="s" * 2_000, details={"routes": "version 3" * 1_000, "none": ""})
    source = Source(change(details={"reason": "NaN"}), long)
    events = sender(redis, source, sink.post, f"{there.url}/v2/enqueue")
    for _ in range(2):
        await events._once(asyncio.Event())

    assert there.refused == []
    assert there.pages() == 0
    first, second = there.changes
    assert first["payload"] == {
        "summary": "Rollback", "source": "run 1", "timestamp": "2023-11-14T22:13:20+00:00",
        "custom_details": {"reason": "NaN"},
    }  # fmt: skip
    assert first["links"] == [{"href": f"{BOARD}/runs/run%201", "text": "Run run 1"}]
    assert second["links"] == [{"href": f"{BOARD}/alerting", "text": "Alerting"}]
    assert source.asked == [{}, {"sb:audit": "5-0"}]


async def test_a_kill_while_a_change_is_on_its_way_never_repeats_it_and_loses_no_other(redis: Redis) -> None:
    posted: list[str] = []

    async def killed(outgoing: Outgoing, before_write: BeforeWrite) -> None:
        posted.append(json.loads(outgoing.body)["payload"]["summary"])
        await before_write()
        raise asyncio.CancelledError

    async def post(outgoing: Outgoing, before_write: BeforeWrite) -> None:
        posted.append(json.loads(outgoing.body)["payload"]["summary"])
        await before_write()

    source = Source(change("1", summary="one"), change("2", summary="two"))
    with pytest.raises(asyncio.CancelledError):
        await sender(redis, source, killed)._once(asyncio.Event())
    await sender(redis, source, post)._once(asyncio.Event())

    assert posted == ["one", "two"]


async def test_a_change_that_is_refused_is_left_out_and_the_next_one_is_sent(
    there: FakePagerDuty, sink: PagerDutySink, redis: Redis
) -> None:
    there.script = [(400, {}, b"")]
    source = Source(change("1", summary="one"), change("2", summary="two"))
    await sender(redis, source, sink.post, f"{there.url}/v2/enqueue")._once(asyncio.Event())
    assert [one["payload"]["summary"] for one in there.changes] == ["two"]
