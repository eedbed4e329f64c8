"""Makes the alerting service of this server: which streams it reads, where it sends."""

from __future__ import annotations

import os
import time

from redis.asyncio import Redis

from stabilityalerting import AlertingService, sinks_from_env
from stabilitybackend.keys import RunKeys
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.settings import Settings

__all__ = ["alerting_service"]


def alerting_service(redis: Redis, settings: Settings) -> AlertingService:
    """Return the service that turns incident events into messages; idle where no sink is configured."""
    index = RunIndex(redis)

    async def streams() -> list[str]:
        return [RunKeys(run_id).incident_events for run_id in await index.ids()]

    base_url = os.environ.get("STABILITY_PUBLIC_URL") or f"http://{settings.host}:{settings.port}"
    return AlertingService(redis, streams, sinks_from_env(os.environ), base_url=base_url, clock=time.time)
