"""What people changed, as it is read from the records: orders and their ends, settings, policies, routes."""

from __future__ import annotations

import json
from typing import Any

from redis.asyncio import Redis

from stabilitybackend.access.audit import AuditLog
from stabilitybackend.alerts.changes import RecordedChanges
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.runs.index import RunIndex
from stabilityclient.wire import Hello

NOW = 1_700_000_000.0


def command(state: str, kind: str = "rollback", lines: int = 1, **more: Any) -> str:
    plan = {"version": 1, "run_id": "r", "written": NOW, "action": "relaunch", "text": "", "exit_code": 0}
    history = [{"state": state, "time": NOW + at, "detail": "because"} for at in range(lines)]
    return json.dumps(
        {
            "kind": kind, "command_id": f"c-{kind}", "run_id": "r", "to_step": 5_000, "reason": "NaN", "issuer": "ada",
            "issued": NOW, "expires": NOW + 600, "fence": {"segment": 0, "segment_key": "k"}, "world_size": 1,
            "state": state, "history": history, "plan": plan, "grace_s": 10.0,
        } | more
    )  # fmt: skip


async def run(redis: Redis, run_id: str, *records: tuple[str, str], **config: Any) -> None:
    """Register a run, with these entries in its record."""
    await RunIndex(redis).register(Hello(run_id, "a-1", "n0", "1", config=config), NOW)
    for kind, data in records:
        await redis.xadd(RunKeys(run_id).command_audit, {kind: data}, id=f"{int(NOW * 1000)}-*")


async def read(redis: Redis, cursors: dict[str, str] | None = None) -> tuple[list[str], dict[str, str]]:
    changes, read_to = await RecordedChanges(redis, lambda: NOW + 5).since(cursors or {})
    return [change.summary for change in changes], read_to


async def test_an_order_is_reported_when_it_is_given_and_when_it_ends_and_not_in_between(redis: Redis) -> None:
    await run(
        redis,
        "r",
        ("c", command("pending")),
        ("c", command("pending", lines=2)),
        ("c", command("acted", lines=3)),
        ("c", command("done", lines=4)),
        ("c", command("pending", "restart", to_step=None)),
        ("c", command("expired", "restart", 2, to_step=None)),
        ("c", command("rejected", "stop", to_step=None)),
        ("c", command("pending", "dump_stacks", to_step=None)),
        ("c", command("pending", "checkpoint_now", to_step=None)),
    )
    summaries, read_to = await read(redis)
    assert summaries[:3] == [
        "Rollback to step 5,000 of run r ordered by ada",
        "Rollback to step 5,000 of run r: done",
        "Restart of run r ordered by ada",
    ]
    assert [summary[:25] for summary in summaries[3:]] == ["Restart of run r: expired", "Stop of run r: refused: T"]
    assert (await read(redis, read_to))[0] == []


async def test_settings_policies_and_routes_are_changes_and_what_people_look_at_is_none(redis: Redis) -> None:
    policy = {"text": None, "who": "ada", "time": NOW}
    settings = {"settings": {"spike": {"k": 3}, "hang": {}}, "who": "ada", "time": NOW, "position": "0-1"}
    await run(
        redis, "r", ("d", json.dumps(settings)), ("p", json.dumps(policy)), ("a", "{}"), ("d", "broken"), ("c", "{}")
    )
    audit = AuditLog(redis, lambda: NOW)
    await audit.add("bob", "k1", "alerting.routes", "version 3", "from 10.0.0.1")
    await audit.add("bob", "k1", "incident.acknowledge", "i-1")
    cursors = {"sb:audit": "0-1"}  # the stream's ids are of Redis's own clock

    changes, _ = await RecordedChanges(redis, lambda: NOW + 5).since(cursors)

    assert [change.summary for change in changes] == [
        "Routes of alerts changed by bob",
        "Detectors of run r changed by ada: hang, spike",
        "Autopilot of run r turned off by ada",
    ]
    assert "10.0.0.1" not in repr(changes)
    assert len({change.key for change in changes}) == 3


async def test_of_an_imported_run_nothing_is_read(redis: Redis) -> None:
    await run(redis, "followed", ("c", command("pending")), imported_from="tensorboard", followed=True)
    assert (await read(redis))[0] == []
