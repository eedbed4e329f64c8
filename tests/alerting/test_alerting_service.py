"""From the stream to the receiver: real Redis and a real receiver on a socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from stabilityalerting import AlertingService, RecordingSink, RetryPolicy, Server, Sink, stream_reader
from stabilityalerting.notification_log import Record
from stabilityalerting.slack import SlackSink
from stabilityalerting.webhook import WebhookSink, verify
from stabilityplugins.pagerduty.channel import PagerDutySink
from support.incident_stream import SLACK_PATH, STREAM, incident, publish, settled
from support.waiting import until

QUICK = RetryPolicy(first_s=0.02, longest_s=0.1, per_second=1e3, burst=1000)


@contextlib.asynccontextmanager
async def alerting(
    redis: Redis,
    sinks: Sequence[Sink],
    retry_policy: RetryPolicy = QUICK,
    lease_s: float = 0.6,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[AlertingService]:
    async def streams() -> list[str]:
        return [STREAM, "sb:{no-incident-yet}:incident_events"]

    service = AlertingService(
        redis, Server(streams, "http://board", clock), sinks, retry_policy=retry_policy, lease_s=lease_s
    )
    stop = asyncio.Event()
    task = asyncio.create_task(service.run(stop))
    try:
        yield service
    finally:
        stop.set()
        await task


def changes(sink: RecordingSink) -> list[tuple[str, str, str]]:
    return [(n.alert.incident_id, n.change, n.alert.severity) for n in sink.notices]


async def test_opened_escalated_and_resolved_are_told_once_each(redis: Redis) -> None:
    sink = RecordingSink()
    events = [
        incident(version=1),
        incident(version=2, text="it grew"),
        incident(version=3, severity="critical"),
        incident(version=4, severity="critical", text="it grew"),
        incident(version=5, severity="info", state="recovered"),
        incident(version=6, severity="info", state="resolved"),
    ]
    async with alerting(redis, [sink]):
        await publish(redis, *events, *events)
        await settled(redis, "alerting:recording", 12)
    assert changes(sink) == [
        ("i-1", "opened", "warning"),
        ("i-1", "escalated", "critical"),
        ("i-1", "resolved", "info"),
    ]


async def test_a_message_that_a_kill_cut_off_is_sent_again_under_its_name_though_the_incident_changed_since(
    redis: Redis,
) -> None:
    class Repeats(RecordingSink):
        idempotent = True

    sink = Repeats()
    left = Record(sending="opened", sending_version=1, sending_severity="warning")
    await redis.set(f"{STREAM}:told:{sink.name}:i-1", msgspec.json.encode(left))
    async with alerting(redis, [sink]):
        await publish(redis, incident(version=3), incident(version=4, severity="critical"))
        await settled(redis, "alerting:recording", 2)
    assert [one.idempotency_key for one in sink.notices] == ["i-1-1-opened", "i-1-4-escalated"]


async def test_a_server_whose_clock_is_ahead_of_redis_misses_no_first_event(redis: Redis) -> None:
    sink = RecordingSink()
    await publish(redis, incident())
    async with alerting(redis, [sink], clock=lambda: time.time() + 3_600):
        await settled(redis, "alerting:recording", 1)
    assert [change for _, change, _ in changes(sink)] == ["opened"]


async def test_an_incident_that_opens_again_is_told_again(redis: Redis) -> None:
    sink = RecordingSink()
    states = ["open", "recovered", "open"]
    async with alerting(redis, [sink]):
        await publish(redis, *(incident(version=i + 1, state=state) for i, state in enumerate(states)))
        await settled(redis, "alerting:recording", 3)
    assert [change for _, change, _ in changes(sink)] == ["opened", "resolved", "opened"]


async def test_a_receiver_hears_only_of_what_is_grave_enough_and_then_also_of_its_end(redis: Redis) -> None:
    sink = RecordingSink(min_severity="critical")
    async with alerting(redis, [sink]):
        await publish(
            redis,
            incident(1, 1),
            incident(1, 2, state="resolved"),
            incident(2, 1),
            incident(2, 2, severity="critical"),
            incident(2, 3, severity="info", state="recovered"),
        )
        await settled(redis, "alerting:recording", 5)
    assert changes(sink) == [("i-2", "opened", "critical"), ("i-2", "resolved", "info")]


async def test_of_a_train_the_first_that_can_be_sent_is_and_no_other(redis: Redis) -> None:
    sink = RecordingSink()
    async with alerting(redis, [sink]):
        await publish(
            redis,
            incident(1, 1, state="recovered", train="i-1"),  # over before anybody read of it
            incident(2, 1, train="i-1", nth=2),
            incident(3, 1, train="i-1", nth=3),
            incident(2, 2, state="recovered", train="i-1", nth=2),
            incident(4, 1, severity="critical", train="i-4"),
        )
        await settled(redis, "alerting:recording", 5)
    assert changes(sink) == [
        ("i-2", "opened", "warning"), ("i-2", "resolved", "warning"), ("i-4", "opened", "critical")
    ]  # fmt: skip


async def test_what_is_only_known_is_never_told_but_what_the_job_says_is(redis: Redis) -> None:
    sink = RecordingSink()
    known = incident(1, 1, kind="level_shift", severity="info")  # as an older server sends it
    async with alerting(redis, [sink]) as service:
        await publish(
            redis,
            known,
            known | {"version": 2, "state": "resolved"},
            incident(2, 1, kind="grad_norm", severity="info", alarm=False),
            incident(2, 2, kind="grad_norm", severity="warning", alarm=True),
            incident(3, 1, kind="of_a_plug_in", severity="info", alarm=True),
        )
        await settled(redis, "alerting:recording", 5)
        assert service.status()["counts"]["recording"] == {"info_only": 2, "never_notified": 1, "sent": 2}
    assert changes(sink) == [("i-2", "opened", "warning"), ("i-3", "opened", "info")]


@pytest.mark.parametrize(
    ("suggestion", "words"),
    [
        (
            {"action": "wait", "wait_steps": 50, "to_step": 60, "skip_batches": 90, "lr_scale": None, "text": "Wait."},
            "wait 50 steps, then roll back to step 60, skip 90 batches",
        ),
        (
            {"action": "roll_back", "to_step": 60, "skip_batches": 90, "lr_scale": 0.5, "text": "Roll back."},
            "roll back to step 60, skip 90 batches, half the learning rate",
        ),
        (
            {"action": "restart", "to_step": 60, "skip_batches": 90, "skip_range": [100, 150], "text": "Start it, x."},
            "start again from the checkpoint of step 60, leave out the batches of steps 100 to 150",
        ),
        (
            {"action": "restart", "to_step": 60, "fix_first": "change", "text": "Find out what changed. Then go back."},
            "Find out what changed",
        ),
        ({"action": "inspect", "to_step": 60, "text": "Look at the list. Then go back."}, "Look at the list"),
        ({"action": "wait", "wait_steps": 50, "to_step": None, "text": "Wait."}, "wait 50 steps"),
    ],
)
async def test_the_data_set_and_the_advice_stand_in_one_line(
    redis: Redis, receiver: Any, suggestion: dict[str, Any], words: str
) -> None:
    async with alerting(redis, [SlackSink(receiver.url + SLACK_PATH), PagerDutySink("k", receiver.url + "/v2")]):
        await publish(redis, incident(dataset="code", suggestion=suggestion))
        await settled(redis, "alerting:slack", 1)
        await settled(redis, "alerting:pagerduty", 1)
    texts = {r.path: r.json.get("text") or r.json["payload"]["summary"] for r in receiver.received}
    line = f"Loss spike at step 100 (data set code): {words} (run run-1)"
    assert texts[SLACK_PATH] == f":warning: {line}"
    assert texts["/v2"] == f"{line}: The loss rose from 2 to <3>."


async def test_slack_gets_a_message_with_blocks_and_a_link(redis: Redis, receiver: Any) -> None:
    async with alerting(redis, [SlackSink(receiver.url + SLACK_PATH)]):
        left = {"state": "resolved", "dead": True, "status_word": "discarded by rollback"}
        await publish(redis, incident(), incident(version=2, **left))
        await publish(redis, incident(2), incident(2, version=2, state="resolved"))  # of an older server
        await settled(redis, "alerting:slack", 4)
    opened, resolved, _, over = receiver.received
    assert opened.path == SLACK_PATH
    assert opened.json["text"] == ":warning: Loss spike at step 100: roll back to step 50 (run run-1)"
    blocks = opened.json["blocks"]
    assert [block["type"] for block in blocks] == ["header", "section", "section", "context", "actions"]
    assert blocks[1]["text"]["text"] == "The loss rose from 2 to &lt;3&gt;."
    assert blocks[2]["text"]["text"] == "*What to do:* Roll back to step 50."
    assert blocks[4]["elements"][0]["url"] == "http://board/runs/run-1/incidents/i-1"
    assert resolved.json["text"] == ":white_check_mark: Discarded by rollback: Loss spike at step 100 (run run-1)"
    assert over.json["text"].startswith(":white_check_mark: Resolved: ")


async def test_slack_names_no_step_before_the_first_one(redis: Redis, receiver: Any) -> None:
    async with alerting(redis, [SlackSink(receiver.url + SLACK_PATH)]):
        await publish(redis, incident(onset_step=-1), incident(2, onset_step=0))
        await settled(redis, "alerting:slack", 2)
    said = [json.dumps(one.json["blocks"][3]) for one in receiver.received]
    assert ["step " in words for words in said] == [False, True]


async def test_pagerduty_gets_a_trigger_and_a_resolve_with_one_dedup_key(redis: Redis, receiver: Any) -> None:
    receiver.status = 202
    async with alerting(redis, [PagerDutySink("routing-secret", receiver.url + "/v2/enqueue")]):
        await publish(
            redis,
            incident(1, 1),
            incident(1, 2, severity="critical"),
            incident(1, 3, state="recovered"),
            incident(2, 1, severity="info"),
        )
        await settled(redis, "alerting:pagerduty", 4)
    events = [request.json for request in receiver.received]
    assert [(e["event_action"], e["dedup_key"], e["routing_key"]) for e in events] == [
        ("trigger", "i-1", "routing-secret"),
        ("trigger", "i-1", "routing-secret"),
        ("resolve", "i-1", "routing-secret"),
    ]
    assert [event["payload"]["severity"] for event in events[:2]] == ["warning", "critical"]
    assert events[0]["payload"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    assert events[0]["payload"]["class"] == "spike"


async def test_the_webhook_is_signed_over_its_body_and_every_attempt_has_the_same_key(
    redis: Redis, receiver: Any
) -> None:
    receiver.script = [(503, {})]
    now = 1_700_000_000.0
    async with alerting(redis, [WebhookSink(receiver.url + "/hook", "s3cret", lambda: now)]):
        await publish(redis, incident())
        await settled(redis, "alerting:webhook", 1)
    first, second = receiver.received
    assert verify("s3cret", first.body, first.headers["x-stability-signature"], now)
    assert not verify("s3cret", first.body + b" ", first.headers["x-stability-signature"], now)
    assert not verify("s3cret", first.body, first.headers["x-stability-signature"], now + 301)
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"] == "i-1-1-opened"
    assert second.json["type"] == "incident.opened"
    assert second.json["incident"]["onset_step"] == 100


async def test_the_webhook_names_the_suspects_and_where_the_plan_is(redis: Redis, receiver: Any) -> None:
    verdict = {"class": "io", "confidence": "high", "culprits": [5], "nodes": ["n1"], "gpus": [], "since": 9.0}
    async with alerting(redis, [WebhookSink(receiver.url + "/hook", "s3cret", time.time)]):
        await publish(
            redis, incident(kind="hang", evidence={"verdict": verdict | {"text": "long"}}), incident(version=2)
        )
        await settled(redis, "alerting:webhook", 2)
    (told,) = receiver.received
    assert told.json["incident"]["verdict"] == verdict
    assert told.json["plan"] == "http://board/api/v1/runs/run-1/plan"


@pytest.mark.parametrize("status", [500, 503, 429, 408])
async def test_an_answer_that_may_get_better_is_tried_again(redis: Redis, receiver: Any, status: int) -> None:
    receiver.script = [(status, {}), (status, {})]
    async with alerting(redis, [SlackSink(receiver.url + SLACK_PATH)]) as service:
        await publish(redis, incident())
        await settled(redis, "alerting:slack", 1)
        assert service.status()["counts"]["slack"] == {"retries": 2, "sent": 1}
    assert len(receiver.received) == 3


@pytest.mark.parametrize("status", [400, 403, 404, 301])
async def test_an_answer_that_will_not_get_better_is_not_tried_again_and_the_next_alert_goes_out(
    redis: Redis, receiver: Any, status: int
) -> None:
    receiver.script = [(status, {})]
    async with alerting(redis, [SlackSink(receiver.url + SLACK_PATH)]) as service:
        await publish(redis, incident(1), incident(2))
        await settled(redis, "alerting:slack", 2)
        assert service.status()["counts"]["slack"] == {"refused": 1, "sent": 1}
    assert len(receiver.received) == 2


async def test_a_receiver_that_is_away_does_not_hold_up_the_others(redis: Redis, receiver: Any) -> None:
    away = WebhookSink("http://127.0.0.1:9/hook", "s", time.time)
    async with alerting(redis, [away, SlackSink(receiver.url + SLACK_PATH)]) as service:
        await publish(redis, incident(1), incident(2))
        await settled(redis, "alerting:slack", 2)
        await until(lambda: service.status()["counts"]["webhook"].get("retries", 0) > 0, 5, "it is tried again")
    assert len(receiver.received) == 2


async def test_what_a_receiver_never_takes_is_given_up_in_the_end(redis: Redis, receiver: Any) -> None:
    receiver.status = 500
    retry_policy = RetryPolicy(first_s=0.02, longest_s=0.05, give_up_s=0.2, per_second=1e3, burst=1000)
    async with alerting(redis, [SlackSink(receiver.url + SLACK_PATH)], retry_policy) as service:
        await publish(redis, incident())
        await settled(redis, "alerting:slack", 1)
        assert service.status()["counts"]["slack"]["given_up"] == 1


async def test_the_rate_bound_delays_and_drops_nothing(redis: Redis) -> None:
    sink = RecordingSink()
    async with alerting(redis, [sink], RetryPolicy(per_second=20.0, burst=1)) as service:
        await publish(redis, *(incident(i) for i in range(8)))
        began = time.monotonic()
        await settled(redis, "alerting:recording", 8)
        assert service.status()["counts"]["recording"]["rate_waits"] > 0
    assert len(sink.notices) == 8
    assert time.monotonic() - began > 0.2


async def test_events_that_are_no_incidents_are_counted_and_passed_over(redis: Redis) -> None:
    sink = RecordingSink()
    async with alerting(redis, [sink]) as service:
        await redis.xadd(STREAM, {"i": b"\xff not json"})
        await redis.xadd(STREAM, {"other": "field"})
        await publish(redis, incident(severity="terrible"), incident(version="x"), incident(2))
        await settled(redis, "alerting:recording", 5)
        assert service.unreadable == 4
    assert [n.alert.incident_id for n in sink.notices] == ["i-2"]


async def test_without_a_receiver_the_service_idles_and_says_so(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stabilityalerting")
    async with alerting(redis, []) as service:
        await publish(redis, incident())
        await until(lambda: bool(caplog.records), 5, "it says so")
        assert service.status()["sinks"] == []
    assert "no receiver is set up" in caplog.text


async def test_of_two_processes_only_one_sends(redis: Redis) -> None:
    one, two = RecordingSink(), RecordingSink()
    lease_s = 60.0  # both are in this process: a pause of it may let no lease run out
    async with alerting(redis, [one], lease_s=lease_s), alerting(redis, [two], lease_s=lease_s):
        await publish(redis, *(incident(i) for i in range(20)))
        await settled(redis, "alerting:recording", 20)
    assert sorted([len(one.notices), len(two.notices)]) == [0, 20]


async def test_events_that_redis_handed_out_and_nobody_got_are_told_all_the_same(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader, "PENDING_EVERY_S", 0.1)
    sink = RecordingSink()
    await publish(redis, incident(1))
    async with alerting(redis, [sink]):
        await settled(redis, "alerting:recording", 1)
        async with redis.pipeline(transaction=True) as lost:
            lost.xadd(STREAM, {"i": json.dumps(incident(2))})
            lost.xreadgroup("alerting:recording", "alerting", {STREAM: ">"})
            await lost.execute()
        await settled(redis, "alerting:recording", 2)
    assert [notice.alert.incident_id for notice in sink.notices] == ["i-1", "i-2"]


async def test_no_secret_is_in_logs_errors_or_reprs(
    redis: Redis, receiver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    slack = SlackSink(receiver.url + SLACK_PATH)
    pager = PagerDutySink("routing-secret", receiver.url + "/v2")
    hook = WebhookSink(f"http://127.0.0.1:9{SLACK_PATH}", "hook-secret", time.time)
    receiver.script = [(500, {}), (404, {}), (403, {})]
    async with alerting(redis, [slack, pager, hook]) as service:
        await publish(redis, incident(1), incident(2))
        await settled(redis, "alerting:slack", 2)
        await settled(redis, "alerting:pagerduty", 2)
        await until(lambda: service.status()["counts"]["webhook"].get("retries", 0) > 1, 5, "it is tried")
        shown = caplog.text + repr(service.status()) + repr([slack, pager, hook])
    for secret in ("slack-secret", "routing-secret", "hook-secret"):
        assert secret not in shown
