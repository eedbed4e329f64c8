"""A process whose version is too far from that of the others takes no part, says so, and disturbs nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from stabilitybackend.server import stages
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from stabilityclient.wire import Welcome
from support.gateway_stack import RawAgent, log_frames
from support.job_frames import Job
from support.server_stack import RunningServer
from support.waiting import wait_until

ROLES = ("door", "worker", "pages", "alerting")


@pytest.fixture
def old(tmp_path: Path) -> Iterator[RunningServer]:
    """A process that does everything, and waits for others."""
    with (
        EmbeddedRedis(tmp_path) as redis,
        RunningServer(redis.url, tmp_path / "old", role=ROLES, archive_url=str(tmp_path / "archive")) as server,
    ):
        yield server


@pytest.fixture
def new(old: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    """One of two versions later."""
    major, minor, *_ = old.client.get("/healthz").json()["version"].split(".")
    monkeypatch.setattr(stages, "version", lambda _: f"{major}.{int(minor) + 2}.0")
    shared: dict[str, Any] = {"role": ROLES, "archive_url": str(tmp_path / "archive")}
    with RunningServer(old._redis_url, tmp_path / "new", **shared) as server:
        yield server


def owner(server: RunningServer, run_id: str) -> str:
    with Redis.from_url(server._redis_url, decode_responses=True) as redis:
        return str(redis.hget(f"sb:{{{run_id}}}:owner", "address"))


async def test_a_process_two_versions_away_takes_nothing_and_says_what_to_do_while_all_others_work_on(
    old: RunningServer, new: RunningServer
) -> None:
    health = wait_until(
        lambda: found if (found := old.client.get("/healthz").json())["versions"] != "ok" else None, 30, "it is seen"
    )
    assert (health["status"], health["redis"], old.client.get("/healthz").status_code) == ("degraded", "ok", 200)
    assert f"at {new.url}" in health["versions"]
    assert "upgrade by one at a time" in health["versions"]
    assert old.client.get("/readyz").json()["status"] == "ready"
    assert [one["code"] for one in new.client.get("/readyz").json()["reasons"]] == ["takes_no_part"]
    assert (new.client.get("/healthz").status_code, new.client.get("/livez").status_code) == (503, 200)
    assert new.client.post("/api/v1/views", json={}).json()["error"]["code"] == "takes_no_part"
    async with RawAgent(new.agent_url) as agent:
        assert not isinstance(await agent.hello("run-x"), Welcome)
    runs = [f"run-{place}" for place in range(6)]  # as many as placement would share out
    for run_id in runs:
        log_frames(old.url, Job().rows([1, 2, 3]), run_id=run_id)
    for run_id in runs:
        old.wait_for(f"/runs/{run_id}", lambda run: run["last_step"] == 3, "it is judged", 30)
        # Pages of both are well: the one that takes no part asks the owner. Both say what is wrong.
        assert new.wait_for(f"/runs/{run_id}", lambda run: run["last_step"] == 3, "it is shown", 30)["storing"]
        assert owner(old, run_id) == old.url
    assert old.get("/runs")["storing"]["code"] == "versions_apart"


def test_when_those_that_were_here_first_are_gone_the_one_that_waited_takes_their_runs(
    old: RunningServer, new: RunningServer
) -> None:
    wait_until(lambda: new.client.get("/readyz").status_code == 503, 30, "it waits")
    log_frames(old.url, Job().rows([1, 2, 3]))
    old.wait_for("/runs/run-1", lambda run: run["last_step"] == 3, "it is judged", 30)
    old._server.should_exit = True
    wait_until(lambda: new.client.get("/readyz").status_code == 200, 30, "it takes part")
    new.wait_for("/runs/run-1", lambda run: run["last_step"] == 3, "it is followed", 30)
    wait_until(lambda: owner(new, "run-1") == new.url, 30, "it is taken over")
    assert new.get("/runs")["storing"] is None
