"""A rollback that is ordered while a part of the server dies is carried out by all ranks, or by none, and known so.

ORDERS=20 python -m pytest -m soak tests/stack/roles/test_orders_under_kills.py -s
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.processes import Ranks
from support.redis_servers.cluster import RedisNodes
from support.roles.checker import ENDS
from support.roles.servers import RoleServers
from support.waiting import wait_until

ORDERS = int(os.environ.get("ORDERS", "20"))
RUN = "ordered"
#: The kill comes at most so long before or after the order, seconds.
APART_S = 0.3
pytestmark = pytest.mark.soak


class Night:
    """A job of two ranks whose run is ordered about, at pages, while parts of the server die."""

    def __init__(self, servers: RoleServers, folder: Path) -> None:
        self.servers = servers
        self.pages = servers.servers["pages-1"]
        self._enough = folder / "enough"
        self.ranks = Ranks(
            "roles/steady_rank.py", [str(self._enough), "0.02"], url=servers.url, folder=folder / "spool", run_id=RUN,
            world_size=2,
        )  # fmt: skip
        self.seen: Counter[str] = Counter()
        self.waits_s: list[float] = []

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response | None:
        """Return what pages answer about the run; None where they do not."""
        try:
            return self.pages._client.request(method, f"/api/v1/runs/{RUN}{path}", timeout=40, **more)
        except httpx.HTTPError:
            return None

    def ready(self) -> int:
        """Return the step of a checkpoint to go back to, once the job goes on and nothing is under way."""

        def step() -> int | None:
            run, found = self.ask("GET", ""), self.ask("GET", "/checkpoints")
            if run is None or found is None or not run.is_success or not found.is_success:
                return None
            usable = [one["step"] for one in found.json()["checkpoints"] if one["available"] and not one["dead"]]
            going = run.json()["status"] == "running" and run.json()["agents"] > 0
            return max(usable) if going and usable and max(usable) < (run.json()["last_step"] or 0) else None

        return int(wait_until(step, 90, "the job goes on and can go back"))

    def ordered(self, key: str, to_step: int) -> dict[str, Any] | None:
        """Order it until an answer comes; None where it was refused."""
        wish = {"kind": "rollback", "to_step": to_step, "idempotency_key": key, "accept_inside_incident": True}
        began = time.monotonic()
        while time.monotonic() < began + 90:
            answer = self.ask("POST", "/commands", json=wish)
            if answer is not None and answer.status_code in (201, 202):
                self.seen[str(answer.status_code)] += 1
                self.seen["warned"] += "warning" in answer.json()
                self.waits_s.append(time.monotonic() - began)
                return dict(answer.json())
            if answer is not None and answer.status_code in (409, 422):
                self.seen[f"refused: {answer.json()['error']['message'][:60]}"] += 1
                return None
            time.sleep(0.2)
        raise AssertionError("no answer to an order in 90 s")

    def end_of(self, command_id: str) -> dict[str, Any]:
        """Return a command once it stays as it is."""

        def ended() -> Any:
            found = self.ask("GET", f"/commands/{command_id}")
            return found.json() if found is not None and found.is_success and found.json()["state"] in ENDS else None

        return dict(wait_until(ended, 90, f"{command_id} is over"))

    def finish(self) -> list[set[str]]:
        """Let the job end; return the commands that each rank carried out."""
        self._enough.touch()
        return [{line.split()[2] for line in lines if line.startswith("back ")} for lines in self.ranks.outputs(240)]


def _door(servers: RoleServers) -> str:
    agents: Any = servers.client.hgetall(f"sb:{{{RUN}}}:agents")
    at = [value.split(b" ")[0].decode() for key, value in agents.items() if key.startswith(b"a:")]
    return next((name for name in ("door-1", "door-2") if servers.member_of(name) in at), "door-1")


def _kill_process(servers: RoleServers, name: str) -> Callable[[], None]:
    servers.servers[name].kill()
    return lambda: servers.servers[name].start() and None


@pytest.mark.parametrize("victim", ["door", "owner", "master"])
def test_all_ranks_go_back_or_none_whatever_dies_meanwhile(victim: str, tmp_path: Path) -> None:
    draw, back = random.Random(victim), list[Callable[[], Any]]()
    with ExitStack() as stack:
        nodes = stack.enter_context(RedisNodes(tmp_path / "cluster")) if victim == "master" else None
        servers = stack.enter_context(RoleServers(tmp_path / "server", nodes))
        for name in ("door-1", "door-2", "worker-1", "worker-2", "pages-1"):
            servers.add(name, name[:-2])
        servers.ready()
        night = Night(servers, tmp_path)
        stack.enter_context(night.ranks)

        def kill() -> None:
            if nodes is not None:
                nodes.fail_over(f"sb:{{{RUN}}}:frames")
                back.append(lambda: wait_until(nodes.well, 60, "the cluster is well"))
            else:
                back.append(_kill_process(servers, servers.owner_of(RUN) if victim == "owner" else _door(servers)))

        ends = dict[str, dict[str, Any]]()
        for turn in range(ORDERS):
            to_step = night.ready()
            killing = threading.Timer(draw.uniform(0.0, APART_S), kill)
            killing.start()
            time.sleep(draw.uniform(0.0, APART_S))
            command = night.ordered(f"{victim}-{turn}", to_step)
            killing.join()
            if command is not None:
                ends[command["command_id"]] = night.end_of(command["command_id"])
                night.seen[ends[command["command_id"]]["state"]] += 1
            while back:
                back.pop()()
        did = night.finish()
        waits = sorted(night.waits_s)
        print(f"{victim}: {dict(night.seen)}; answered after p50 {waits[len(waits) // 2]:.2f} s, max {waits[-1]:.2f} s")
    done = {name for name, one in ends.items() if one["state"] == "done"}
    assert did == [done, done]
    assert all({rank["state"] for rank in ends[name]["ranks"].values()} == {"acted"} for name in done)
    assert len(ends) == ORDERS
