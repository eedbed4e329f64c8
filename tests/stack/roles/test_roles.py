"""A server of several processes: a job does not notice who of them dies, and no alarm comes of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.processes import Ranks, Server
from support.roles.servers import RoleServers
from support.waiting import wait_until

RUN = "r"


@contextmanager
def job(servers: RoleServers, folder: Path, *arguments: str, period_s: float = 0.02) -> Iterator[Ranks]:
    """A job of one rank; ``folder / "enough"`` ends it."""
    given = [str(folder / "enough"), str(period_s), *arguments]
    with Ranks(
        "roles/steady_rank.py", given, url=servers.url, folder=folder / "spool", run_id=RUN, world_size=1
    ) as ranks:
        yield ranks


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[RoleServers]:
    with RoleServers(tmp_path / "server") as found:
        found.add("door-1", "door")
        found.add("worker-1", "worker")
        found.add("worker-2", "worker")
        found.ready()
        yield found


def step_of(server: Server) -> int:
    """Return the last step that a worker has folded."""
    return int(server.get(f"/runs/{RUN}")["last_step"] or 0)


def follows(server: Server, step: int) -> None:
    """Wait until a worker has folded a step."""
    server.wait_for(f"/runs/{RUN}", lambda run: (run["last_step"] or 0) >= step, f"step {step} is folded", 30)


def whole(server: Server) -> bool:
    """Whether each step of the run is there once."""
    (entry,) = server.get(f"/runs/{RUN}/series", metric="loss", view="all", points=100_000)["series"]
    return bool(entry["steps"] == list(range(1, len(entry["steps"]) + 1)))


def kinds(server: Server) -> list[str]:
    """Return the kinds of the run's incidents."""
    return sorted(incident["kind"] for incident in server.get(f"/runs/{RUN}/incidents")["incidents"])


def ended(server: Server, ranks: Ranks, folder: Path) -> list[str]:
    """Let the job end; return what it printed once the run is shown as finished, whole."""
    (folder / "enough").touch()
    (lines,) = ranks.outputs()
    server.wait_for(f"/runs/{RUN}", lambda run: run["status"] == "finished", "the run is over", 30)
    assert whole(server)
    return [line for line in lines if line]


def test_a_killed_workers_run_is_judged_by_the_next_one_within_seconds_and_nothing_is_found_twice(
    servers: RoleServers, tmp_path: Path
) -> None:
    with job(servers, tmp_path, "30") as ranks:
        first = servers.owned(RUN)
        first.wait_for(f"/runs/{RUN}/incidents", lambda found: found["incidents"], "the NaN is found", 30)
        before = servers.client.xrange(f"sb:{{{RUN}}}:incident_events")
        first.kill()
        killed = time.monotonic()
        second = servers.owned(RUN)
        follows(second, step_of(second) + 1)
        print(f"the next worker judges after {time.monotonic() - killed:.2f} s")
        assert servers.client.xrange(f"sb:{{{RUN}}}:incident_events")[: len(before)] == before  # type: ignore[arg-type, index]
        ended(second, ranks, tmp_path)
        assert kinds(second) == ["nonfinite"]


def test_a_run_whose_worker_stops_in_good_order_goes_over_at_once(servers: RoleServers, tmp_path: Path) -> None:
    with job(servers, tmp_path) as ranks:
        first = servers.owned(RUN)
        follows(first, 20)
        assert first.stop() == 0
        second = servers.owned(RUN)
        assert second is not first
        follows(second, 40)
        ended(second, ranks, tmp_path)
        assert kinds(second) == []


def test_a_worker_that_was_stalled_while_another_one_took_its_run_drops_it(
    servers: RoleServers, tmp_path: Path
) -> None:
    with job(servers, tmp_path) as ranks:
        first = servers.owned(RUN)
        follows(first, 20)
        name = servers.owner_of(RUN)
        servers.stop_for(name)
        wait_until(lambda: servers.owner_of(RUN) not in (name, ""), 30, "another one owns it")
        second = servers.owned(RUN)
        follows(second, step_of(second) + 50)
        servers.go_on(name)
        log = (first.data_dir.parent / "server.log").read_text
        wait_until(lambda: "took it over" in log(), 30, "it finds out")
        follows(second, step_of(second) + 50)
        assert servers.owned(RUN) is second or servers.owner_of(RUN) == name  # it may be given back
        ended(servers.owned(RUN), ranks, tmp_path)
        assert kinds(servers.owned(RUN)) == []


def test_an_agent_that_goes_over_to_another_door_is_never_lost_and_gets_its_orders_there(
    servers: RoleServers, tmp_path: Path
) -> None:
    servers.add("door-2", "door")
    servers.ready("door-2")
    with job(servers, tmp_path) as ranks:
        owner = servers.owned(RUN)
        follows(owner, 60)
        for name in ("door-1", "door-2"):
            agents: Any = servers.client.hgetall(f"sb:{{{RUN}}}:agents")
            member = servers.member_of(name)
            if any(value.startswith(member.encode()) for key, value in agents.items() if key.startswith(b"a:")):
                servers.servers[name].kill()
                break
        follows(owner, step_of(owner) + 50)
        order = owner._client.post(f"/api/v1/runs/{RUN}/commands", json={"kind": "rollback", "to_step": 40})
        assert order.status_code in (200, 201, 202), order.text
        name = order.json()["command_id"]
        owner.wait_for(
            f"/runs/{RUN}/commands",
            lambda found: any(one["command_id"] == name and one["state"] == "done" for one in found["commands"]),
            "the job went back",
        )
        (tmp_path / "enough").touch()
        (lines,) = ranks.outputs()
        assert lines[0] == "back 40"
        assert kinds(owner) == []
