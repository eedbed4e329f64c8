"""A run is counted once, and as the same, wherever runs or incidents are counted."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any, get_args

import pytest
from redis import Redis

from stabilitybackend.base.api_client import ApiClient
from stabilitybackend.base.keys import RUNS_WITH_INCIDENTS, RunKeys
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.schema.incidents import encoded
from stabilitybackend.schema.runs import RunStatus, RunView, StoppedBy, WorstIncident
from stabilitybackend.schema.severity import RunCondition, Severity
from stabilitybackend.storage.redis_link import make_redis
from stabilityclient.wire import Hello
from stabilityplugins.mcp.shortened import run_row, run_state
from support.server_stack import RunningServer
from support.stored.incident import stored
from support.stored.run import store_view

STOPPED = StoppedBy(by="ann", reason="", before_step=9, time=1.0, saved=False, command_id="c")
#: Each status that a run can have, one that was stopped, and one that never reported, with each severity that is open.
EVERY: list[tuple[str, dict[str, Any], Severity | None]] = [
    (f"{name}-{severity}", view, severity)
    for (name, view), severity in itertools.product(
        [
            *((status, {"status": status, "last_step": 9, "logged": 1.0}) for status in get_args(RunStatus)),
            ("ordered", {"status": "finished", "last_step": 9, "logged": 1.0, "stopped": STOPPED}),
            ("empty", {"status": "unreachable"}),
        ],
        (None, *get_args(Severity)),
    )
]


async def _fill(redis_url: str) -> None:
    redis = make_redis(redis_url)
    index = RunIndex(redis)
    for run_id, view, severity in EVERY:
        await index.register(Hello(run_id, "a1", "n0", "0.1.0", project="llm"), 1_000.0)
        worst = None if severity is None else WorstIncident(f"i-{run_id}", "spike", severity, "Spike", since=1.0)
        alarm = int(severity not in (None, "info"))
        whole = RunView(**view, open_incidents=alarm, worst_incident=worst)
        await store_view(redis, run_id, whole, 1_000.0)
        if severity is not None:
            incident = stored("spike", incident_id=f"i-{run_id}", run_id=run_id, severity=severity)
            await redis.hset(RunKeys(run_id).incidents, f"i-{run_id}", encoded(incident))
            await redis.zadd(RUNS_WITH_INCIDENTS, {run_id: 1_000.0})
    await redis.aclose()


@pytest.fixture
def server(redis_url: str, tmp_path: Path) -> Any:
    """A server that finds a run of each status, with each severity open."""
    asyncio.run(_fill(redis_url))
    with Redis.from_url(redis_url), RunningServer(redis_url, tmp_path / "data") as server:
        server.wait_for("/run_table", lambda answer: answer["total"] == len(EVERY), "all runs are known")
        server.wait_for("/incidents", lambda answer: answer["complete"], "all incidents are read")
        yield server


def runs_of(server: RunningServer) -> tuple[list[dict[str, Any]], int]:
    """Return what the program lists, and how many runs it says that there are."""
    with ApiClient(server.url) as client:
        return client.runs(None)


def test_conditions_are_disjoint_and_sum_to_the_number_of_runs_everywhere(server: RunningServer) -> None:
    table = server.get("/run_table", limit=1_000)
    conditions: dict[str, int] = table["conditions"]
    assert list(conditions) == list(get_args(RunCondition))
    assert min(conditions.values()) > 0
    assert sum(conditions.values()) == table["total"] == len(table["rows"])
    listed, total = runs_of(server)
    assert total == table["total"]
    for condition, count in conditions.items():
        rows = [row for row in table["rows"] if row["state"]["condition"] == condition]
        assert len(rows) == count
        assert server.get("/run_table", q=f"state:{condition}", limit=1)["fit"] == count
        assert sum(run_row(row)["condition"] == condition for row in table["rows"]) == count
        assert sum(run_state(run)["condition"] == condition for run in listed) == count
    for column in ("project", "status", "state"):
        groups = server.get("/run_table", group=column, limit=1)["groups"]
        assert {name: sum(group["conditions"][name] for group in groups) for name in conditions} == conditions
        assert all(sum(group["conditions"].values()) == group["count"] for group in groups)


def test_open_incidents_of_the_runs_are_those_of_the_badge(server: RunningServer) -> None:
    counts = server.get("/incidents", limit=0)["counts"]
    rows = server.get("/run_table", limit=1_000)["rows"]
    listed, _ = runs_of(server)
    assert (
        counts["alarms"] == sum(row["open_incidents"] for row in rows) == sum(one["open_incidents"] for one in listed)
    )
    assert counts["alarms"] == counts["open"] - counts["info"] > 0
