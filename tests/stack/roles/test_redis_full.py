"""Redis is full while processes with roles work on it: doors refuse, agents keep, nobody is taken for dead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from stabilityplugins.scale.members import EXPIRY_S
from support.processes import Ranks, Server
from support.roles.servers import RoleServers
from support.waiting import wait_until

NAMES = ("door-1", "worker-1", "worker-2")


def reasons(server: Server) -> list[dict[str, Any]]:
    """Return why a process is not ready."""
    answer = httpx.get(f"{server.url}/readyz", timeout=10.0).json()
    found: list[dict[str, Any]] = answer.get("reasons", [])
    return found


def metric(server: Server, line: str) -> float:
    text = httpx.get(f"{server.url}/metrics", timeout=10.0).text
    return sum(float(each.rpartition(" ")[2]) for each in text.splitlines() if each.startswith(line))


@pytest.mark.soak  # three processes and a job; tests/backend/base/test_members.py has the law
def test_a_full_redis_is_named_by_every_process_and_nothing_is_lost_or_taken_over_or_alarmed_about(
    tmp_path: Path,
) -> None:
    with RoleServers(tmp_path / "server") as servers:
        for name in NAMES:
            servers.add(name, name.partition("-")[0])
        servers.ready()
        ranks = Ranks(
            "roles/steady_rank.py", [str(tmp_path / "enough"), "0.02"], url=servers.url, folder=tmp_path / "spool",
            run_id="full", world_size=1,
        )  # fmt: skip
        with ranks:
            owner = servers.owned("full")
            owner.wait_for("/runs/full", lambda run: (run["last_step"] or 0) > 20, "it is folded")
            before: Any = servers.client.hmget("sb:{full}:owner", "token", "worker")
            servers.limit_memory(1)
            door = servers.servers["door-1"]
            for name in NAMES:
                wait_until(lambda name=name: reasons(servers.servers[name]), 30, f"{name} is not ready")
                named = {one["code"]: one for one in reasons(servers.servers[name])}
                assert "its memory has reached maxmemory" in named["redis_full"]["message"]
                assert "Raise maxmemory" in named["redis_full"]["hint"]
            wait_until(lambda: metric(door, 'stability_frames_refused_total{reason="busy"}') > 0, 30, "it refuses")
            step = owner.get("/runs/full")["last_step"]
            # Longer than makes a process dead that writes no entry: none is written meanwhile.
            seconds, _ = servers.client.time()
            wait_until(lambda: servers.client.time()[0] > seconds + EXPIRY_S + 1, 10, "it lasts")
            servers.limit_memory(0)
            owner.wait_for("/runs/full", lambda run: (run["last_step"] or 0) > step + 30, "it goes on")
            assert servers.client.hmget("sb:{full}:owner", "token", "worker") == before
            for name in NAMES:
                wait_until(lambda name=name: not reasons(servers.servers[name]), 30, f"{name} is ready")
                assert metric(servers.servers[name], "stability_ownership_refused_total") == 0
            (agent,) = owner.get("/runs/full/health")["agents"]
            assert agent["connected"]
            (tmp_path / "enough").touch()
            (lines,) = ranks.outputs()
            assert [line for line in lines if line] == ["delivered"]
        owner.wait_for("/runs/full", lambda run: run["status"] == "finished", "the run is over")
        assert owner.get("/runs/full/incidents")["incidents"] == []
        (entry,) = owner.get("/runs/full/series", metric="loss", view="all", points=100_000)["series"]
        assert entry["steps"] == list(range(1, len(entry["steps"]) + 1))
