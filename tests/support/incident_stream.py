"""A stream of incidents as the backend writes it, for the tests of the alerting service."""

from __future__ import annotations

import json
from typing import Any

from redis.asyncio import Redis

from support.waiting import until

__all__ = ["SLACK_PATH", "STREAM", "incident", "publish", "settled"]

STREAM = "sb:{run-1}:incident_events"
SLACK_PATH = "/services/T000/B000/slack-secret"


def incident(number: int = 1, version: int = 1, **changes: Any) -> dict[str, Any]:
    found = {
        "incident_id": f"i-{number}",
        "run_id": "run-1",
        "version": version,
        "kind": "spike",
        "severity": "warning",
        "state": "open",
        "title": f"Loss spike at step {100 * number}",
        "text": "The loss rose from 2 to <3>.",
        "onset_step": 100 * number,
        "metric": "loss",
        "rank": None,
        "node": None,
        "opened": 1_700_000_000.0,
        "updated": 1_700_000_000.0,
        "dead": False,
        "suggestion": {"action": "roll_back", "to_step": 50, "text": "Roll back to step 50.", "source": "x"},
        "something_new": {"is": "passed over"},
    } | changes
    # The words that the backend stores with it.
    alarm = found["severity"] != "info" or found["kind"] == "alert"
    words = {
        "label": found["kind"],
        "about": "model",
        "alarm": alarm,
        "status": found["state"],
        "status_word": found["state"],
    }
    return words | found


async def publish(redis: Redis, *incidents: dict[str, Any]) -> None:
    for event in incidents:
        await redis.xadd(STREAM, {"i": json.dumps(event)})


async def settled(redis: Redis, group: str, events: int) -> None:
    """Wait until the group has read and acknowledged all events of the stream."""

    async def done() -> bool:
        if not await redis.exists(STREAM):
            return False
        for found in await redis.xinfo_groups(STREAM):
            if found["name"] == group.encode():
                newest = (await redis.xinfo_stream(STREAM))["last-generated-id"]
                all_read = found["last-delivered-id"] == newest
                return bool(all_read and found["pending"] == 0 and await redis.xlen(STREAM) == events)
        return False

    await until(done, 10, f"{group} has done {events} events")
