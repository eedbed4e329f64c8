"""A server whose alerting is broken is not well: its heartbeat ends, and what alerts can go on do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilityalerting import AlertingService, RecordingSink, RetryPolicy, SendError, Server, Sink
from stabilityalerting import service as service_module
from stabilityalerting.lease import KEY as LEASE_KEY
from support.incident_stream import STREAM, incident, publish, settled
from support.outside.receiver_thread import ReceiverThread
from support.server_stack import RunningServer
from support.waiting import until, wait_until

QUICK = RetryPolicy(first_s=0.02, longest_s=0.1, per_second=1e3, burst=1000)


class Broken(RecordingSink):
    """Breaks on a mistake of its own, beside its messages or in one of them, until it is mended."""

    def __init__(self, name: str = "broken", *, serving: bool = False, incidents: Sequence[str] = ()) -> None:
        super().__init__()
        self.name, self._serving, self._incidents = name, serving, incidents
        self.tries = 0

    async def serve(self, stop: asyncio.Event) -> None:
        if self._serving:
            self.tries += 1
            raise TypeError("a mistake of ours")

    async def send(self, notice: Any, before_write: Any) -> None:
        if notice.alert.incident_id in self._incidents:
            self.tries += 1
            raise TypeError("a mistake of ours")
        await super().send(notice, before_write)

    def mend(self) -> None:
        self._serving, self._incidents = False, ()


class Away(RecordingSink):
    """Takes nothing while it is away."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.away = name, True

    async def send(self, notice: Any, before_write: Any) -> None:
        if self.away:
            raise SendError(f"{self.name}: no answer", recoverable=True)
        await super().send(notice, before_write)


@contextlib.asynccontextmanager
async def alerting(redis: Redis, *sinks: Sink) -> AsyncIterator[AlertingService]:
    async def streams() -> list[str]:
        return [STREAM]

    service = AlertingService(redis, Server(streams, "http://board", time.time), sinks, retry_policy=QUICK, lease_s=0.6)
    stop = asyncio.Event()
    task = asyncio.create_task(service.run(stop))
    try:
        yield service
    finally:
        stop.set()
        await task


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "FAILED_PAUSE_S", 0.02)
    monkeypatch.setattr(service_module, "FAILING_S", 0.5)


async def test_a_receiver_that_breaks_beside_its_messages_ends_neither_itself_nor_the_others(redis: Redis) -> None:
    broken, well = Broken(serving=True), RecordingSink()
    async with alerting(redis, broken, well) as service:
        await until(lambda: broken.tries >= 2, 10, "it is tried again")
        assert service.problem() == "broken fails (TypeError)"
        await publish(redis, incident(1))
        await settled(redis, "alerting:recording", 1)
        await settled(redis, "alerting:broken", 1)
        broken.mend()
        await until(lambda: not service.problem(), 10, "it is well again")
    assert [len(sink.notices) for sink in (broken, well)] == [1, 1]


async def test_an_incident_that_no_message_can_be_made_of_holds_up_no_other(redis: Redis) -> None:
    broken = Broken(incidents=["i-1"])
    async with alerting(redis, broken) as service:
        await publish(redis, incident(1), incident(2))
        await until(service.problem, 10, "it says that it fails")
        await settled(redis, "alerting:broken", 2)
        assert [notice.alert.incident_id for notice in broken.notices] == ["i-2"]
        assert service.status()["counts"]["broken"]["mistakes"] == 1
    assert broken.tries == service_module.MISTAKES


async def test_what_a_newer_version_noted_of_an_incident_is_read(redis: Redis) -> None:
    noted = {"told": "open", "severity": "warning", "version": 1, "of_the_future": True}
    await redis.set(f"{STREAM}:told:recording:i-1", json.dumps(noted))
    sink = RecordingSink()
    async with alerting(redis, sink):
        await publish(redis, incident(1), incident(1, 2, state="resolved"))
        await settled(redis, "alerting:recording", 2)
    assert [notice.change for notice in sink.notices] == ["resolved"]


async def test_a_lease_that_can_not_be_taken_is_trouble(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    await redis.hset(LEASE_KEY, "not", "a string")
    sink = RecordingSink()
    async with alerting(redis, sink) as service:
        await until(lambda: "lease" in service.problem(), 10, "it says that it can't send")
        await until(lambda: "can't be taken" in caplog.text, 10, "its log says so")
        await redis.delete(LEASE_KEY)
        await until(lambda: not service.problem(), 10, "it is well again")
    assert caplog.text.count("the lease for that can't be taken") == 1


async def test_where_another_process_sends_nothing_is_wrong(redis: Redis) -> None:
    async with alerting(redis, RecordingSink()) as first, alerting(redis, RecordingSink()) as second:
        await until(lambda: first.status()["sending"] or second.status()["sending"], 10, "one sends")
        await publish(redis, incident(1))
        await settled(redis, "alerting:recording", 1)
        assert (first.problem(), second.problem()) == ("", "")


async def test_when_no_receiver_takes_anything_for_minutes_somebody_else_has_to_hear_of_it(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Away("one"), Away("other")
    async with alerting(redis, one, other) as service:

        def tried() -> bool:
            counts = service.status()["counts"]
            return all(counts.get(sink.name, {}).get("retries") for sink in (one, other))

        await publish(redis, incident(1))
        await until(tried, 10, "both are tried")
        assert service.problem() == ""
        monkeypatch.setattr(service_module, "STUCK_S", 0.0)
        assert "no receiver takes what is sent" in service.problem()
        other.away = False
        await settled(redis, "alerting:other", 1)
        assert service.problem() == ""
        one.away = False
        await settled(redis, "alerting:one", 1)


def test_the_heartbeat_of_a_server_ends_while_its_alerting_can_not_send(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import redis as blocking

    with ReceiverThread() as outside:
        monkeypatch.setenv("STABILITY_HEARTBEAT_URL", f"{outside.url}/beat")
        monkeypatch.setenv("STABILITY_HEARTBEAT_STYLE", "healthchecks")
        monkeypatch.setenv("STABILITY_HEARTBEAT_S", "1")
        monkeypatch.setenv("STABILITY_WEBHOOK_URL", f"{outside.url}/hook")
        monkeypatch.setenv("STABILITY_WEBHOOK_SECRET", "s3cret")
        with RunningServer(redis_url, tmp_path / "server") as server, blocking.Redis.from_url(redis_url) as store:
            wait_until(lambda: outside.heard("/beat"), 20, "it is well")
            store.pipeline().delete(LEASE_KEY).hset(LEASE_KEY, "not", "a string").execute()  # no renewal in between
            wait_until(lambda: outside.heard("/beat/fail", "alerting"), 20, "the watcher is told why")
            said = server.get("/receivers")
            assert (said["ready"], [one["code"] for one in said["reasons"]]) == (False, ["alerting"])
            assert server.client.get("/readyz").status_code == 200
