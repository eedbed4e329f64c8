"""What people do in PagerDuty comes back, over signed webhooks, and nobody is paged again for it."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from redis import Redis

from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from stabilityplugins.pagerduty.api import MAX_PAGERDUTY_BYTES
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.outside.pagerduty import API_TOKEN, OTHER_KEY, ROUTING_KEY, WEBHOOK_SECRET, Alert, FakePagerDuty
from support.server_stack import RunningServer
from support.waiting import until

#: The lead gets what nobody acknowledged for 3 s.
ROUTES = """
routes:
  - receivers: [pagerduty]
    escalate: [{after_min: 0.05, receivers: [lead]}]
"""
WHO = "pagerduty:Ada Lovelace"


@dataclass
class Stage:
    """A server that pages a service of PagerDuty, and its lead through another one; ``shared``: nobody has this one."""

    server: RunningServer
    there: FakePagerDuty
    redis: Redis
    shared: Alert | None = None

    def hear(self, body: bytes, signature: str | None = None) -> Any:
        return self.there.post(f"{self.server.url}/api/v1/pagerduty", body, signature)

    def told(self, body: bytes) -> tuple[int, str]:
        answer = self.hear(body)
        return answer.status_code, answer.json()["outcome"]

    def incident(self, alert: Alert, run_id: str) -> Any:
        return self.server.get(f"/runs/{run_id}/incidents/{alert.key}")

    def audit(self, run_id: str) -> list[tuple[str, str]]:
        return [(one["action"], one["who"]) for one in self.server.get("/audit", run=run_id)["entries"]]

    def waits_for_lead(self, alert: Alert) -> bool:
        return any(alert.key.encode() in member for member in self.redis.zrange("sb:alerting:due:lead", 0, -1))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("pagerduty")
    (folder / "routes.yml").write_text(ROUTES)
    with FakePagerDuty() as there, EmbeddedRedis(folder) as redis, pytest.MonkeyPatch.context() as patch:
        lead = {
            "STABILITY_RECEIVERS": "lead=pagerduty", "STABILITY_PAGERDUTY_ROUTING_KEY_LEAD": OTHER_KEY,
            "STABILITY_PAGERDUTY_URL_LEAD": f"{there.url}/v2/enqueue", "STABILITY_PAGERDUTY_CHANGES_LEAD": "off",
            "STABILITY_PAGERDUTY_API_TOKEN": API_TOKEN, "STABILITY_PAGERDUTY_API_URL": there.url,
        }  # fmt: skip
        patch.setattr("stabilityalerting.storms.SINGLE_RUNS", 1_000)  # each test has a run of its own
        for name, value in there.variables(**lead).items():
            patch.setenv(name, value)
        with RunningServer(redis.url, folder / "data", alert_routes=str(folder / "routes.yml")) as server:
            yield Stage(server, there, Redis.from_url(redis.url))
    assert there.refused == []


@asynccontextmanager
async def paged(stage: Stage, run_id: str) -> AsyncIterator[tuple[RawAgent, Job, Alert]]:
    """A job whose loss is NaN from step 60 on, and the alert about it."""
    job = Job()
    job._time = time.time()
    before = len(stage.there.alerts[ROUTING_KEY])
    async with RawAgent(stage.server.agent_url) as agent:
        await agent.begin(
            job.rows(range(1, 60), {"loss": [2.0 + 1 / step for step in range(1, 60)]}),
            job.event("checkpoint", 50, path="c/50"),
            job.rows(range(60, 70), {"loss": [math.nan] * 10}),
            run_id=run_id,
        )
        await until(lambda: len(stage.there.alerts[ROUTING_KEY]) > before, 20, "somebody is paged")
        yield agent, job, stage.there.alerts[ROUTING_KEY][-1]


async def shared(stage: Stage) -> Alert:
    """Return an alert that no test acknowledges."""
    if stage.shared is None:
        async with paged(stage, "shared") as (_, _, alert):
            stage.shared = alert
    return stage.shared


async def test_who_acknowledges_in_pagerduty_has_it_here_and_nobody_else_is_woken(stage: Stage) -> None:
    async with paged(stage, "seen") as (_, _, alert):
        await until(lambda: stage.waits_for_lead(alert), 10, "the lead would get it")
        heard = await asyncio.to_thread(stage.told, stage.there.webhook("incident.acknowledged", alert))
        await until(lambda: not stage.waits_for_lead(alert), 20, "the time is over")

    assert heard == (200, "acknowledged")
    assert stage.incident(alert, "seen")["acknowledged_by"] == WHO
    assert ("incident.acknowledge", WHO) in stage.audit("seen")
    assert stage.there.actions(alert.key) == ["trigger"], "PagerDuty is not told what it said itself"
    assert alert.key not in [one.key for one in stage.there.alerts[OTHER_KEY]]


async def test_what_a_person_resolves_there_stays_open_here_and_is_taken_care_of(stage: Stage) -> None:
    async with paged(stage, "resolved") as (_, _, alert):
        body = stage.there.webhook("incident.resolved", alert)
        alert.status = "resolved"
        heard = await asyncio.to_thread(stage.told, body)
        incident = stage.incident(alert, "resolved")

    assert heard == (200, "acknowledged")
    assert (incident["state"], incident["acknowledged_by"]) == ("open", WHO)
    assert ("incident.resolved_in_pagerduty", WHO) in stage.audit("resolved")


async def test_what_was_sent_to_pagerduty_is_not_taken_for_what_a_person_did(stage: Stage) -> None:
    agent = {"id": "PAC", "summary": "Events API V2", "type": "events_api_v2_inbound_integration_reference"}
    alert = await shared(stage)
    kinds = ("incident.triggered", "incident.acknowledged", "incident.resolved")

    heard = [stage.told(stage.there.webhook(kind, alert, agent=agent)) for kind in kinds]

    assert heard == [(200, "ignored")] * 3
    assert stage.incident(alert, "shared")["acknowledged_by"] is None


async def test_a_note_and_an_end_of_an_acknowledgement_are_in_the_audit_log(stage: Stage) -> None:
    alert = await shared(stage)
    # A note names PagerDuty's incident alone: which one that is was said before.
    for kind in ("incident.triggered", "incident.annotated", "incident.unacknowledged"):
        stage.hear(stage.there.webhook(kind, alert))

    entries = stage.server.get("/audit", run="shared")["entries"]
    said = {(one["action"], one["who"]): one["detail"] for one in entries}
    assert said["incident.note_in_pagerduty", WHO] == "It is the learning rate."
    assert ("incident.unacknowledged_in_pagerduty", WHO) in said


async def test_of_merged_incidents_the_rest_api_says_which_of_ours_are_in_one(stage: Stage) -> None:
    async with paged(stage, "merged-a") as (_, _, first), paged(stage, "merged-b") as (_, _, second):
        stage.there.merged["PMERGED"] = [first.key, second.key, "of somebody else"]
        body = stage.there.webhook("incident.acknowledged", first, key="d364", incident="PMERGED")
        heard = await asyncio.to_thread(stage.told, body)
        who = [stage.incident(first, "merged-a"), stage.incident(second, "merged-b")]

    assert heard == (200, "acknowledged")
    assert [one["acknowledged_by"] for one in who] == [WHO, WHO]


async def test_the_same_event_is_acted_on_once_and_an_old_one_never(stage: Stage) -> None:
    alert = await shared(stage)
    body = stage.there.webhook("incident.reopened", alert)
    old = stage.there.webhook("incident.acknowledged", alert, occurred_at="2026-01-01T00:00:00.000Z")

    first, again, aged = [stage.told(one) for one in (body, body, old)]

    assert (first, again, aged) == ((200, "noted"), (200, "repeated"), (200, "ignored"))
    assert len([one for one in stage.audit("shared") if one[0] == "incident.reopened_in_pagerduty"]) == 1


@pytest.mark.parametrize(
    ("signature", "status"),
    [
        ("", 401),
        ("v1=00", 401),
        ("v1=é", 401),
        ("v0={right}", 401),
        ("{other}", 401),
        ("{right}x", 401),
        ("{right}", 200),
        ("{other},{right}", 200),
        ("v2=abc, {right}", 200),
    ],
)
def test_one_of_the_signatures_has_to_be_right(stage: Stage, signature: str, status: int) -> None:
    body = stage.there.webhook("incident.acknowledged", Alert("of somebody else", "P9"))
    right, other = stage.there.sign(body), stage.there.sign(body, "another secret")

    answer = stage.hear(body, signature.format(right=right, other=other))

    assert answer.status_code == status
    assert WEBHOOK_SECRET not in answer.text


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "the body is no JSON"),
        (b"\xff", "the body is no JSON"),
        (b"[" * 100_000, "the body is no JSON"),
        (b"[]", "there is no object 'event'"),
        (b'{"messages": []}', "there is no object 'event'"),
        (b'{"event": {"id": 1, "event_type": "x"}}', "event.id or event.event_type is no text"),
        (b'{"event": {"id": "a", "event_type": "x", "occurred_at": "soon"}}', "event.occurred_at is no time"),
    ],
    ids=["half", "bytes", "deep", "list", "version 2", "number", "time"],
)
def test_what_is_no_webhook_is_refused_with_words(stage: Stage, body: bytes, words: str) -> None:
    answer = stage.hear(body)

    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_what_is_none_of_ours_is_answered_so_that_pagerduty_is_content(stage: Stage) -> None:
    unknown = stage.there.webhook("incident.acknowledged", Alert("of somebody else", "P9"))
    service = {"event": {"id": "e1", "event_type": "service.updated", "data": {"type": "service"}, "agent": None}}
    ping = {"event": {"id": "e2", "event_type": "pagey.ping", "data": {"message": "Hello", "type": "ping"}}}

    told = [stage.told(body) for body in (unknown, json.dumps(service).encode(), json.dumps(ping).encode())]

    assert told == [(200, "unknown"), (200, "unknown"), (200, "noted")]


def test_an_incident_whose_run_was_deleted_is_none_of_ours(stage: Stage) -> None:
    stage.redis.set("sb:alerting:pagerduty:pagerduty:of:i-gone", '["run-gone", "i-gone"]')

    assert stage.told(stage.there.webhook("incident.acknowledged", Alert("i-gone", "P8"))) == (200, "unknown")


def test_a_body_of_no_end_is_refused_before_it_is_read(stage: Stage) -> None:
    assert stage.hear(b" " * (MAX_PAGERDUTY_BYTES + 1)).status_code == 413


async def test_what_people_changed_is_on_the_timeline_of_the_service(stage: Stage) -> None:
    before = len(stage.there.changes)
    async with paged(stage, "changed"):
        order = {"kind": "rollback", "to_step": 50, "reason": "NaN"}
        stage.server.client.post("/api/v1/runs/changed/commands", json=order).raise_for_status()
        body = {"settings": {"spike": {"min_jump": 3.0}}}
        stage.server.client.put("/api/v1/runs/changed/detectors", json=body)
        await until(lambda: len(stage.there.changes) > before, 20, "the order is told")
    [change] = stage.there.changes[before : before + 1]

    assert change["payload"]["summary"] == "Rollback to step 50 of run changed ordered by local"
    assert change["payload"]["custom_details"]["reason"] == "NaN"
    assert change["links"] == [{"href": f"{stage.server.url}/runs/changed", "text": "Run changed"}]
