"""What receivers accepted and refused last is known after a restart, and says when a heartbeat is late."""

from __future__ import annotations

import time

import pytest
from redis.asyncio import Redis

from stabilityalerting import HEARTBEAT, AlertingService, Heartbeat, Outcomes, SendError, Server
from stabilityalerting.alertmanager import AlertmanagerSink
from stabilitybackend.alerts.receivers import receivers_now


async def no_streams() -> list[str]:
    return []


@pytest.mark.parametrize(
    ("beaten", "refused", "status", "why"),
    [
        (None, None, "nothing sent", ""),
        (1_000.0, None, "accepted", ""),
        (900.0, None, "late", ""),
        (1_000.0, 990.0, "accepted", "answered 503"),
        (990.0, 1_000.0, "refused", "answered 503"),
    ],
)
async def test_the_heartbeat_is_accepted_late_or_refused_by_what_came_last(
    redis: Redis, beaten: float | None, refused: float | None, status: str, why: str
) -> None:
    if beaten is not None:
        await Outcomes(redis, lambda: beaten).accepted(HEARTBEAT)
    if refused is not None:
        error = SendError("https://hc.test/s3cret answered 503", recoverable=True, status=503)
        await Outcomes(redis, lambda: refused).refused(HEARTBEAT, error)
    service = AlertingService(redis, Server(no_streams, "http://board", time.time), [AlertmanagerSink(["http://am"])])
    beat = Heartbeat("http://hc.test/s3cret", lambda: "")

    found = await receivers_now(service, beat, [], 1_010.0)

    assert (found.heartbeat.status, found.heartbeat.why) == (status, why)
    assert (found.watchdog.status, [one.name for one in found.receivers]) == ("nothing sent", ["alertmanager"])
    assert (await receivers_now(service, None, [], 1_010.0)).heartbeat.status == "off"
