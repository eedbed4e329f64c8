"""Makes the alerting service of this server: which streams it reads, where it sends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from redis.asyncio import Redis

from stabilityalerting import AlertingService, Heartbeat, heartbeat_url, sinks_from_env
from stabilitybackend.keys import RunKeys
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.settings import Settings

__all__ = ["alerting_service", "heartbeat"]

#: Runs of which an incident changed within this time are read, seconds: a receiver that was away for days gets it then.
READ_FOR_S = 7 * 86_400.0


def alerting_service(redis: Redis, settings: Settings) -> AlertingService:
    """Return the service that turns incident events into messages; idle where no sink is configured."""
    index = RunIndex(redis)
    imported: dict[str, bool] = {}

    async def streams() -> list[str]:
        ids = await index.with_incidents_since(time.time() - READ_FOR_S)
        for gone in imported.keys() - set(ids):
            del imported[gone]
        for run_id in ids:
            if run_id not in imported:
                config = (await index.stored(run_id)).config
                imported[run_id] = "imported_from" in config and not config.get("followed")
        # What happened in a run that was imported happened long ago: its page shows it, nobody is woken for it. One
        # whose log is followed goes on.
        return [RunKeys(run_id).incident_events for run_id in ids if not imported[run_id]]

    base_url = settings.public_url or f"http://{settings.host}:{settings.port}"
    return AlertingService(redis, streams, sinks_from_env(os.environ), base_url=base_url, clock=time.time)


def heartbeat(well: Callable[[], bool]) -> Heartbeat | None:
    """Return what tells a watcher outside that all is well; None where none is set up."""
    url = heartbeat_url(os.environ)
    return Heartbeat(url, well) if url is not None else None
