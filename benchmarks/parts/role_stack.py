"""A server for benchmarks, as one process or as some of each role on one Redis or a cluster; the CPU of each part."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from parts.server_process import ServerProcess, usage

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.redis_servers.cluster import RedisNodes
from support.roles.servers import RoleServers

__all__ = ["Shape", "Stack", "started"]

TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Shape:
    """How many processes. No door: one process does everything. ``masters`` 3: a cluster, with a replica of each."""

    doors: int = 0
    workers: int = 0
    masters: int = 1
    pages: int = 0
    alerting: int = 0

    def __str__(self) -> str:
        if not self.doors:
            return "one process"
        kinds = ("doors", "workers", "masters", "pages", "alerting")
        counts = {kind: getattr(self, kind) for kind in kinds}
        shown = (f"{count} {kind.removesuffix('s') if count == 1 else kind}" for kind, count in counts.items() if count)
        return ", ".join(shown).replace("1 page,", "1 pages,")


class Stack:
    """A server that has started.

    Attributes:
        doors: ports that agents connect to. urls: of the processes that answer about runs: pages, else workers.
        workers: urls of those that follow runs.
        pids: what it consists of -> its processes.
        redis_url: of its Redis.
    """

    def __init__(
        self, doors: list[int], urls: list[str], workers: list[str], pids: Mapping[str, list[int]], redis_url: str
    ) -> None:
        self.doors, self.urls, self.workers, self.pids, self.redis_url = doors, urls, workers, pids, redis_url
        self._client = httpx.Client(timeout=60.0)
        self._at: dict[str, str] = {}

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU seconds of each part so far."""
        return {part: sum(usage(pid).cpu_s for pid in pids) for part, pids in self.pids.items()}

    def run(self, run_id: str) -> dict[str, Any] | None:
        """Return a run as its owner shows it, None while nobody answers."""
        known = self._at.get(run_id)
        for url in [known] if known else self.urls:
            answer = self._client.get(f"{url}/api/v1/runs/{run_id}")
            if answer.status_code == 200:
                self._at[run_id] = url
                found: dict[str, Any] = answer.json()
                return found
        self._at.pop(run_id, None)
        return None

    def followed(self) -> int:
        """Return how many runs the workers follow and judge now."""
        lines = [line for url in self.workers for line in self._client.get(f"{url}/metrics").text.splitlines()]
        counts = [line for line in lines if line.startswith("stability_runs{") and '"restoring"' not in line]
        return int(sum(float(line.rpartition(" ")[2]) for line in counts))

    def wait_folded(self, last_steps: Mapping[str, int]) -> float:
        """Return the unix time at which the last step of each run was in its owner's answer."""
        left, end = dict(last_steps), time.monotonic() + TIMEOUT_S
        while left:
            if time.monotonic() > end:
                raise SystemExit(f"not folded within {TIMEOUT_S:.0f} s: {left}")
            for run_id, step in list(left.items()):
                found = self.run(run_id)
                if found is None or (found["last_step"] or 0) < step:
                    break
                del left[run_id]
            time.sleep(0.05)
        return time.time()


@contextlib.contextmanager
def started(shape: Shape, folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Stack]:
    """A server of a shape, while the context lasts.

    Args:
        settings: environment variables of every process.
    """
    given = dict(settings or {})
    if not shape.doors:
        with ServerProcess(folder / "data", given) as server:
            pids = {"server": [server.pid], "Redis": [server.redis_pid()]}
            yield Stack([server.port], [server.url], [server.url], pids, f"unix://{server.redis_socket()}")
        return
    lower = {name.removeprefix("STABILITY_").lower(): value for name, value in given.items()}
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(RoleServers(folder / "roles", **lower))
        pids = {"Redis": [int(servers.redis_server.info("server")["process_id"])]}
        url = servers.redis_server.url
        if shape.masters > 1:
            nodes = stack.enter_context(RedisNodes(folder / "cluster"))
            url = nodes.url
            pids = {
                kind: [one.process.pid for one in some if one.process is not None]
                for kind, some in (("Redis", nodes.masters), ("replicas", nodes.replicas))
            }
        for role, count in (
            ("door", shape.doors), ("worker", shape.workers), ("pages", shape.pages), ("alerting", shape.alerting)
        ):  # fmt: skip
            for number in range(count):
                servers.add(f"{role}-{number}", role, redis_url=url, log_level="warning")
        servers.ready()
        by_role: dict[str, list[str]] = {}
        for name, server in servers.servers.items():
            assert server.process is not None
            pids.setdefault(name.partition("-")[0], []).append(server.process.pid)
            by_role.setdefault(name.partition("-")[0], []).append(server.url)
        doors = [int(one.rpartition(":")[2]) for one in by_role["door"]]
        yield Stack(doors, by_role.get("pages") or by_role["worker"], by_role["worker"], pids, url)
