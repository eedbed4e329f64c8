"""A real Alertmanager is told what is open, again after each restart, and what ends; its routes and silences work."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from stabilityalerting import AlertingService, RetryPolicy, Server
from stabilityalerting.alertmanager import AlertmanagerSink
from support.incident_stream import STREAM, incident, publish
from support.outside.alertmanager import Alertmanager
from support.outside.receiver_thread import ReceiverThread
from support.waiting import until

#: Each test has incidents and a run of its own, so that all share one Alertmanager.
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def outside() -> Iterator[ReceiverThread]:
    """What stands for Slack, PagerDuty and the watchdog's receiver behind Alertmanager."""
    with ReceiverThread() as running:
        yield running


@pytest.fixture(scope="module")
def alertmanager(outside: ReceiverThread, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alertmanager]:
    with Alertmanager(tmp_path_factory.mktemp("alertmanager"), outside.url) as running:
        yield running


@pytest.fixture
def run() -> str:
    """A run that no other test has."""
    return f"run-{next(_NUMBERS)}-{time.time_ns()}"


@contextlib.asynccontextmanager
async def alerting(
    redis: Redis,
    url: str,
    project: str = "llm",
    trouble: Callable[[], str] = lambda: "",
    now: Any = None,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[AlertingService]:
    async def streams() -> list[str]:
        return [STREAM]

    async def project_of(run_id: str) -> str:
        return project

    sink = AlertmanagerSink(url.split(","), every_s=0.3)
    service = AlertingService(
        redis,
        Server(streams, "http://board:8080/hub/jo", clock, project_of=project_of, problem=trouble, incidents_now=now),
        [sink],
        retry_policy=RetryPolicy(first_s=0.02),
        lease_s=0.6,
    )
    stop = asyncio.Event()
    task = asyncio.create_task(service.run(stop))
    try:
        yield service
    finally:
        stop.set()
        await task


async def fires(alertmanager: Alertmanager, count: int = 1, **labels: str) -> list[dict[str, Any]]:
    """Wait until so many alerts with these labels fire, and return them."""

    async def found() -> list[dict[str, Any]] | None:
        alerts = await asyncio.to_thread(alertmanager.alerts, **labels)
        return alerts or [{}] if len(alerts) == count else None

    return await until(found, 10, f"{count} alerts with {labels} fire")


async def test_an_alert_has_the_labels_that_people_route_by_and_what_they_read(
    redis: Redis, alertmanager: Alertmanager, run: str
) -> None:
    async with alerting(redis, alertmanager.url):
        await publish(redis, incident(7, run_id=run, rank=3, node="n1", dataset="web", kind="gpu_fault"))
        (alert,) = await fires(alertmanager, run=run)
    assert alert["labels"] == {
        "alertname": "StabilityboardGpuFault", "run": run, "project": "llm", "kind": "gpu_fault",
        "severity": "warning", "node": "n1", "rank": "3", "dataset": "web", "incident": "i-7",
    }  # fmt: skip
    assert alert["annotations"] == {
        "summary": f"Loss spike at step 700 (data set web): roll back to step 50 (run {run})",
        "description": "The loss rose from 2 to <3>.",
        "what_to_do": "Roll back to step 50.",
        "url": f"http://board:8080/hub/jo/runs/{run}/incidents/i-7",
    }
    assert alert["generatorURL"] == f"http://board:8080/hub/jo/runs/{run}/incidents/i-7"
    assert alert["startsAt"] == "2023-11-14T22:13:20.000Z"


async def test_the_routes_of_the_documentation_bring_it_to_slack_and_its_end_too(
    redis: Redis, alertmanager: Alertmanager, outside: ReceiverThread, run: str
) -> None:
    async with alerting(redis, alertmanager.url):
        await publish(redis, incident(1, run_id=run))
        await until(lambda: outside.heard("/slack", run, "Loss spike at step 100"), 10, "Slack hears of it")
        await publish(redis, incident(1, 2, run_id=run, state="recovered"))
        await fires(alertmanager, 0, run=run)
        await until(lambda: outside.heard("/slack", run, ": 0 open"), 10, "Slack hears of its end")
    assert not outside.heard("/pagerduty", run)


async def test_a_critical_one_of_a_project_that_matters_goes_to_the_pager_as_well(
    redis: Redis, alertmanager: Alertmanager, outside: ReceiverThread, run: str
) -> None:
    async with alerting(redis, alertmanager.url, project="pretrain"):
        await publish(redis, incident(1, run_id=run, severity="critical"))
        await until(lambda: outside.heard("/pagerduty", run, "trigger"), 10, "PagerDuty hears of it")
        await until(lambda: outside.heard("/slack", run), 10, "Slack hears of it")


async def test_an_escalation_replaces_the_alert_and_keeps_the_other_labels(
    redis: Redis, alertmanager: Alertmanager, run: str
) -> None:
    async with alerting(redis, alertmanager.url):
        await publish(redis, incident(1, run_id=run, node="n1"))
        await fires(alertmanager, run=run, severity="warning", node="n1")
        await publish(redis, incident(1, 2, run_id=run, node=None, severity="critical"))
        await fires(alertmanager, run=run, severity="critical", node="n1")
        await fires(alertmanager, run=run)
        await publish(redis, incident(1, 3, run_id=run, severity="info", state="resolved"))
        await fires(alertmanager, 0, run=run)


async def test_a_silence_there_and_an_inhibit_rule_keep_messages_back(
    redis: Redis, alertmanager: Alertmanager, outside: ReceiverThread, run: str
) -> None:
    alertmanager.silence("2100-01-01T00:00:00Z", run=run, kind="spike")
    async with alerting(redis, alertmanager.url):
        await publish(redis, incident(1, run_id=run, kind="hang", title="Hang"))
        await until(lambda: outside.heard("/slack", run, "Hang"), 10, "Slack hears of the hang")
        await publish(
            redis,
            incident(2, run_id=run, title="silenced"),
            incident(3, run_id=run, kind="straggler", title="inhibited"),
            incident(4, run_id=run, kind="nonfinite", title="sent"),
        )
        await until(lambda: outside.heard("/slack", run, "sent"), 10, "Slack hears of the last one")
    states = {one["labels"]["kind"]: one["status"]["state"] for one in alertmanager.alerts(run=run)}
    assert states == {"hang": "active", "nonfinite": "active", "spike": "suppressed", "straggler": "suppressed"}
    assert not outside.heard("/slack", run, "silenced")
    assert not outside.heard("/slack", run, "inhibited")


async def test_an_alertmanager_that_was_killed_is_told_everything_that_is_open_again(
    redis: Redis, outside: ReceiverThread, run: str, tmp_path: Path
) -> None:
    with Alertmanager(tmp_path, outside.url) as alertmanager:
        async with alerting(redis, alertmanager.url):
            await publish(redis, incident(1, run_id=run), incident(2, run_id=run))
            before = await fires(alertmanager, 2, run=run)
            alertmanager.kill()
            await publish(redis, incident(3, run_id=run), incident(2, 2, run_id=run, state="resolved"))
            alertmanager.__enter__()
            after = await fires(alertmanager, 2, run=run)
            while {one["labels"]["incident"] for one in after} == {"i-1", "i-2"}:  # a round from before the news
                after = await fires(alertmanager, 2, run=run)
    fingerprints = [{one["labels"]["incident"]: one["fingerprint"] for one in alerts} for alerts in (before, after)]
    assert fingerprints[1].keys() == {"i-1", "i-3"}
    assert fingerprints[0]["i-1"] == fingerprints[1]["i-1"]


async def test_of_a_pair_the_one_that_is_away_holds_nothing_up(
    redis: Redis, alertmanager: Alertmanager, run: str, free_port: int
) -> None:
    async with alerting(redis, f"http://127.0.0.1:{free_port},{alertmanager.url}") as service:
        await publish(redis, incident(1, run_id=run))
        await fires(alertmanager, run=run)

        async def told() -> bool:
            found = await service.outcomes.read()
            return found.keys() >= {"alertmanager 1", "alertmanager 2"}

        await until(told, 10, "it is known of both")
        outcomes = await service.outcomes.read()
    assert outcomes["alertmanager 1"].why == "no answer"
    assert outcomes["alertmanager 1"].is_refused
    assert not outcomes["alertmanager 2"].is_refused


async def test_what_is_gone_from_the_server_or_over_there_is_ended_by_the_next_round(
    redis: Redis, alertmanager: Alertmanager, run: str
) -> None:
    gone: set[str] = set()

    async def now(run_id: str, ids: list[str]) -> list[bytes | None]:
        return [None if one in gone else b'{"not": "readable"}' for one in ids]

    async with alerting(redis, alertmanager.url, now=now):
        await publish(redis, incident(1, run_id=run), incident(2, run_id=run))
        await fires(alertmanager, 2, run=run)
        gone.add("i-1")
        (left,) = await fires(alertmanager, run=run)
    assert left["labels"]["incident"] == "i-2"


async def test_the_watchdog_fires_as_long_as_the_server_is_well(
    redis: Redis, alertmanager: Alertmanager, outside: ReceiverThread
) -> None:
    trouble = ["restoring"]
    async with alerting(redis, alertmanager.url, trouble=lambda: trouble[-1]) as service:
        await publish(redis, incident(1, run_id="while-not-well"))
        await fires(alertmanager, run="while-not-well")
        await fires(alertmanager, 0, alertname="StabilityboardWatchdog")
        outside.received.clear()
        trouble.append("")
        (alert,) = await fires(alertmanager, alertname="StabilityboardWatchdog")
        await until(lambda: outside.heard("/watchdog", "StabilityboardWatchdog"), 10, "its receiver hears of it")

        async def accepted() -> bool:
            return "watchdog" in await service.outcomes.read()

        await until(accepted, 10, "it is noted")
        trouble.append("redis_away")
        await fires(alertmanager, 0, alertname="StabilityboardWatchdog")
    assert alert["labels"] == {
        "alertname": "StabilityboardWatchdog",
        "severity": "none",
        "instance": "board:8080/hub/jo",
    }


@pytest.mark.parametrize("off_s", [-300.0, 300.0])
async def test_an_alertmanager_whose_clock_is_minutes_off_holds_and_ends_alerts_all_the_same(
    redis: Redis, alertmanager: Alertmanager, run: str, off_s: float
) -> None:
    async with alerting(redis, alertmanager.url, clock=lambda: time.time() + off_s):
        await publish(redis, incident(1, run_id=run, opened=time.time() + off_s))
        await fires(alertmanager, run=run)
        await publish(redis, incident(1, 2, run_id=run, state="resolved"))
        await fires(alertmanager, 0, run=run)


@pytest.mark.parametrize(
    ("given", "sent"),
    [({"token": "s3cret"}, "Bearer s3cret"), ({"login": ("me", "s3cret")}, "Basic bWU6czNjcmV0")],
)
async def test_a_token_or_password_is_sent_and_appears_nowhere(
    redis: Redis, receiver: Any, caplog: pytest.LogCaptureFixture, given: dict[str, Any], sent: str
) -> None:
    receiver.status = 401
    sink = AlertmanagerSink([f"{receiver.url}/am"], every_s=0.1, **given)

    async def streams() -> list[str]:
        return [STREAM]

    caplog.set_level("DEBUG", "httpx")
    service = AlertingService(redis, Server(streams, "http://board", time.time), [sink], lease_s=0.6)
    stop = asyncio.Event()
    task = asyncio.create_task(service.run(stop))
    try:
        await publish(redis, incident(1))
        await until(lambda: receiver.received and receiver.received[-1].body != b"[]", 10, "it is asked")
        outcomes = await until(service.outcomes.read, 10, "the refusal is noted")
    finally:
        stop.set()
        await task
    assert receiver.received[0].path == "/am/api/v2/alerts"
    assert receiver.received[0].headers["authorization"] == sent
    assert outcomes["alertmanager"].why == "answered 401"
    assert not {"s3cret", "bWU6czNjcmV0"} & set(caplog.text.split())
    assert "s3cret" not in caplog.text


@pytest.mark.soak
async def test_five_hundred_incidents_of_a_hundred_runs_reach_it_in_seconds_and_a_few_requests(
    redis: Redis, alertmanager: Alertmanager, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"storm-{at}" for at in range(100)]
    keys = {name: f"sb:{{{name}}}:incident_events" for name in names}

    async def streams() -> list[str]:
        return list(keys.values())

    async def change(**changes: Any) -> None:
        for number, name in itertools.product(range(5), names):
            event = incident(number, run_id=name, incident_id=f"{name}-{number}", **changes)
            await redis.xadd(keys[name], {"i": json.dumps(event)})

    def firing() -> int:
        return sum(one["labels"].get("run", "").startswith("storm-") for one in alertmanager.alerts())

    posted: list[int] = []
    post = httpx.AsyncClient.post

    async def counted(client: httpx.AsyncClient, url: str, *, content: bytes) -> httpx.Response:
        posted.append(len(json.loads(content)))
        return await post(client, url, content=content)

    monkeypatch.setattr(httpx.AsyncClient, "post", counted)
    sink = AlertmanagerSink([alertmanager.url])
    service = AlertingService(redis, Server(streams, "http://board", time.time), [sink])
    stop = asyncio.Event()
    task = asyncio.create_task(service.run(stop))
    try:
        await change()
        await until(lambda: firing() == 500, 20, "all fire")
        await change(version=2, state="resolved")
        await until(lambda: firing() == 0, 20, "all are over")
    finally:
        stop.set()
        await task
    assert len(posted) < 100
