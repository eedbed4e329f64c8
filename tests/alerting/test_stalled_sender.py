"""A sender that is stalled beyond its lease, at the worst moment: when it goes on, nobody is told twice, and it sends
again only what is new."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilityalerting.lease import Interrupted, Lease
from stabilityalerting.notification_log import NotificationLog, Record
from support.incident_stream import SLACK_PATH, STREAM, incident, publish, settled
from support.waiting import until

PROGRAM = Path(__file__).parents[1] / "support" / "alerting_process.py"


@contextmanager
def alerting(redis_url: str, url: str, stall_at: str = "") -> Iterator[subprocess.Popen[bytes]]:
    env = os.environ | {"STABILITY_SLACK_WEBHOOK_URL": url + SLACK_PATH, "STALL_AT": stall_at}
    process = subprocess.Popen([sys.executable, str(PROGRAM), redis_url, "0.2", STREAM], env=env)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def is_stopped(process: subprocess.Popen[bytes]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("stall_at", ["before", "after"])
async def test_what_a_stalled_sender_was_about_to_send_is_sent_once(
    redis: Redis, redis_url: str, receiver: Any, stall_at: str
) -> None:
    with alerting(redis_url, receiver.url, stall_at) as stalled:
        await publish(redis, incident(1))
        await until(lambda: is_stopped(stalled), 20, "it is stalled with its first message")
        with alerting(redis_url, receiver.url):  # takes the lease over
            await settled(redis, "alerting:slack", 1)
        stalled.send_signal(signal.SIGCONT)
        await publish(redis, incident(2))
        await settled(redis, "alerting:slack", 2)  # by the one that goes on, which comes to this after the first
    said = [request.json["text"] for request in receiver.received]
    assert [text.split(":")[2].strip() for text in said] == ["Loss spike at step 100", "Loss spike at step 200"]


async def _holding(redis: Redis, name: str) -> Lease:
    """Return a lease that is held, and runs out at once."""
    lease = Lease(redis, "sb:lease", name, 0.001)
    await until(lambda: _took(lease), 10, f"{name} holds it")
    return lease


async def _took(lease: Lease) -> bool:
    before = lease.token[0]
    await lease._once()
    return lease.token[0] > before


async def test_once_the_next_holder_has_looked_at_a_stream_the_last_one_writes_nothing_there(redis: Redis) -> None:
    first = await _holding(redis, "first")
    log = NotificationLog(redis, "slack", first)
    await log.write(STREAM, "i-1", Record("open", "warning", 1))
    second = await _holding(redis, "second")
    assert (await NotificationLog(redis, "slack", second).read(STREAM, "i-1")).state == "open"
    with pytest.raises(Interrupted):
        await log.write(STREAM, "i-1", Record("over", "warning", 2))
    assert (await NotificationLog(redis, "slack").read(STREAM, "i-1")).state == "open"


async def test_a_number_that_a_failover_gave_out_twice_lets_only_one_of_both_write(redis: Redis) -> None:
    first = await _holding(redis, "first")
    await NotificationLog(redis, "slack", first).write(STREAM, "i-1", Record("open", "warning", 1))
    await redis.delete("sb:{sb:lease}:number", "sb:lease")  # what a replica that takes over had not got yet
    second = await _holding(redis, "second")
    assert second.token[0] == first.token[0]
    with pytest.raises(Interrupted):
        await NotificationLog(redis, "slack", second).read(STREAM, "i-1")
    await _holding_again(second)
    assert (await NotificationLog(redis, "slack", second).read(STREAM, "i-1")).state == "open"


async def _holding_again(lease: Lease) -> None:
    await until(lambda: _took(lease), 10, "it holds a newer one")
