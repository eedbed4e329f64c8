"""Routes, mutes and escalation, from the stream to the receiver: real Redis, time handed in."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from redis.asyncio import Redis

from stabilityalerting import AlertingService, RecordingSink, RetryPolicy, Server
from stabilityalerting.due import DueLater
from stabilityalerting.routing import Mute, Rules
from stabilitybackend.alerts.rules import read_routes
from support.incident_stream import STREAM, incident, publish, settled
from support.waiting import until

QUICK = RetryPolicy(first_s=0.02, longest_s=0.1, per_second=1e3, burst=1000)
#: When the incidents of `incident()` opened.
OPENED = 1_700_000_000.0
ESCALATING = """
routes:
  - match: {project: llm}
    receivers: [first]
    escalate: [{after_min: 10, receivers: [lead]}]
  - receivers: []
"""


@dataclass
class World:
    """What alerting sees of the world: the clock, rules, and incidents as they are stored."""

    redis: Redis
    now: float = OPENED
    rules: Rules = field(default_factory=Rules)
    stored: dict[str, bytes] = field(default_factory=dict)
    sinks: list[RecordingSink] = field(default_factory=list)

    async def has(self, *changes: dict[str, object], events: int) -> None:
        """Store and publish incidents, and wait until each receiver is done with all events so far."""
        for one in changes:
            self.stored[str(one["incident_id"])] = json.dumps(one).encode()
        await publish(self.redis, *changes)
        for sink in self.sinks:
            await settled(self.redis, f"alerting:{sink.name}", events)

    def told(self, name: str) -> list[tuple[str, str]]:
        notices = next(sink.notices for sink in self.sinks if sink.name == name)
        return [(notice.alert.incident_id, notice.change) for notice in notices]


def sink(name: str, *, acknowledges: bool = False) -> RecordingSink:
    made = RecordingSink()
    made.name, made.acknowledges = name, acknowledges
    return made


@contextlib.asynccontextmanager
async def alerting(redis: Redis, *sinks: RecordingSink) -> AsyncIterator[World]:
    world = World(redis, sinks=list(sinks))

    async def streams() -> list[str]:
        return [STREAM]

    async def rules() -> Rules:
        return world.rules

    async def incidents_now(run_id: str, incident_ids: list[str]) -> list[bytes | None]:
        return [world.stored.get(incident_id) for incident_id in incident_ids]

    async def project_of(run_id: str) -> str:
        return "llm"

    service = AlertingService(
        redis,
        Server(
            streams, "http://board", lambda: world.now, rules=rules, project_of=project_of, incidents_now=incidents_now
        ),
        sinks,
        retry_policy=QUICK,
        lease_s=0.6,
    )
    stop = asyncio.Event()
    task = asyncio.create_task(service.run(stop))
    try:
        yield world
    finally:
        stop.set()
        await task


async def test_only_those_to_whom_a_route_leads_get_an_alert(redis: Redis) -> None:
    async with alerting(redis, sink("first"), sink("lead")) as world:
        text = "routes: [{match: {kind: hang}, receivers: [lead]}, {receivers: [first]}]"
        world.rules = Rules(read_routes(text, "routes", ["first", "lead"]))
        await world.has(incident(1), incident(2, kind="hang"), events=2)
        await world.has(incident(2, 2, kind="hang", state="resolved"), events=3)
        assert world.told("first") == [("i-1", "opened")]
        assert world.told("lead") == [("i-2", "opened"), ("i-2", "resolved")]


async def test_what_nobody_acknowledges_goes_on_to_the_next_receiver(redis: Redis) -> None:
    async with alerting(redis, sink("first"), sink("lead")) as world:
        world.rules = Rules(read_routes(ESCALATING, "routes", ["first", "lead"]))
        await world.has(incident(1), incident(2), incident(3), events=3)
        await world.has(incident(2, 2, acknowledged_by="anna"), incident(3, 2, state="recovered"), events=5)
        assert world.told("lead") == []
        world.now = OPENED + 601
        await until(lambda: _one(len(world.told("lead"))), 10, "the lead is told")
        lead = world.sinks[1]
        assert world.told("lead") == [("i-1", "opened")]
        assert lead.notices[0].line.startswith("Nobody acknowledged it for 10 min. Loss spike at step 100")
        await until(lambda: _nothing_is_due(redis, world.now), 10, "nobody waits any more")


async def test_a_restart_forgets_nobody_who_waits(redis: Redis) -> None:
    async with alerting(redis, sink("first"), sink("lead")) as world:
        world.rules = Rules(read_routes(ESCALATING, "routes", ["first", "lead"]))
        await world.has(incident(1), events=1)
        stored = world.stored
    async with alerting(redis, sink("first"), sink("lead")) as world:
        world.rules, world.stored, world.now = (
            Rules(read_routes(ESCALATING, "routes", ["first", "lead"])), stored, OPENED + 601,
        )  # fmt: skip
        await until(lambda: _one(len(world.told("lead"))), 10, "the lead is told")
        assert (world.told("first"), world.told("lead")) == ([], [("i-1", "opened")])


async def test_a_muted_incident_is_sent_at_the_end_of_the_mute_if_it_is_still_open(redis: Redis) -> None:
    async with alerting(redis, sink("first")) as world:
        mute = Mute("m", {"kind": "spike", "project": "llm"}, "anna", "disk swap", OPENED - 60, OPENED + 3600)
        world.rules = Rules(mutes=(mute,))
        await world.has(incident(1), incident(2), incident(3, kind="hang"), events=3)
        await world.has(incident(2, 2, state="recovered"), events=4)
        assert world.told("first") == [("i-3", "opened")]
        world.now = OPENED + 3601
        await until(lambda: _one(len(world.told("first")) - 1), 10, "it is told")
        assert world.told("first") == [("i-3", "opened"), ("i-1", "opened")]


async def test_an_acknowledgement_goes_once_to_those_who_want_it(redis: Redis) -> None:
    async with alerting(redis, sink("first", acknowledges=True), sink("lead")) as world:
        known = incident(1, 2, acknowledged_by="anna")
        await world.has(incident(1), known, {**known, "version": 3, "text": "it grew"}, events=3)
        await world.has({**known, "version": 4, "state": "resolved"}, events=4)
        assert [change for _, change in world.told("first")] == ["opened", "acknowledged", "resolved"]
        assert [change for _, change in world.told("lead")] == ["opened", "resolved"]


async def _one(count: int) -> bool:
    return count >= 1


async def _nothing_is_due(redis: Redis, now: float) -> bool:
    return await DueLater(redis, "lead").ripe(now + 1e6) == []
