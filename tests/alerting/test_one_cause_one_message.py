"""From a job that breaks on many nodes to the pager: one message, whatever grows afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilityalerting import AlertingService, RetryPolicy, Server
from stabilityalerting.webhook import WebhookSink
from stabilitybackend.judging.incidents.incidents import IncidentBook
from stabilitybackend.judging.incidents.rollback_target import UsableOf
from stabilitybackend.schema.incidents import as_json
from support.incident_stream import STREAM, publish, settled
from support.jobs.watched_job import START, Job


def lose(count: int) -> Job:
    """Return a job of which so many agents fell silent, in two bursts some seconds apart."""
    job = Job(nodes={f"rack{at * 2 // count}-n{at:03}": [at] for at in range(2 * count)})
    job.run(10)
    away = list(job.nodes)[:count]
    job.silent = set(away[: count // 2])
    job.run(5)
    job.silent = set(away)
    job.run(45)
    return job


def crash(count: int) -> Job:
    """Return a job of which so many ranks raised, one after the other within some seconds."""
    job = Job(nodes={f"n{at:03}": list(range(8 * at, 8 * at + 8)) for at in range(count // 8)})
    job.run(10)
    for rank in range(count):
        said = {"type": "DistBackendError", "message": "NCCL error"} if rank != 5 else {"type": "ValueError"}
        job.event("exception", rank, said)
        if rank % (count // 4) == 0:
            job.run(1, moving=False)
    job.run(10, moving=False)
    return job


@pytest.mark.parametrize(
    ("broken", "count", "kind"),
    [(lose, 8, "agent_lost"), (lose, 256, "agent_lost"), (crash, 1_024, "process_death")],
)
async def test_what_one_cause_breaks_is_one_message(
    redis: Redis, receiver: Any, broken: Callable[[int], Job], count: int, kind: str
) -> None:
    job, book = broken(count), IncidentBook("run-1")
    changed = [book.apply(finding, segment=0, time=START, checkpoints=UsableOf([])) for finding in job.said]
    events = [as_json(incident) for incidents in changed for incident in incidents if incident.kind == kind]
    assert len(events) > 1, "it grew"

    async def streams() -> list[str]:
        return [STREAM]

    sink = WebhookSink(f"{receiver.url}/hook", "s3cret", time.time)
    quick = RetryPolicy(first_s=0.02, longest_s=0.1, per_second=1e3, burst=1000)
    service = AlertingService(
        redis, Server(streams, "http://board", time.time), [sink], retry_policy=quick, lease_s=0.6
    )
    stop = asyncio.Event()
    task = asyncio.create_task(service.run(stop))
    try:
        await publish(redis, *events)
        await settled(redis, f"alerting:{sink.name}", len(events))
    finally:
        stop.set()
        await task
    assert [(one.json["type"], one.json["incident"]["kind"]) for one in receiver.received] == [
        ("incident.opened", kind)
    ]
