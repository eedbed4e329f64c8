"""Doors, workers, pages and alerting as processes of their own, on one Redis and one archive."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from redis import Redis
from redis.cluster import RedisCluster
from redis.sentinel import Sentinel

from support.plain_redis import PlainRedis
from support.ports import free_port
from support.processes import Server
from support.redis_servers.cluster import RedisNodes
from support.redis_servers.sentinel import WatchedRedis
from support.redis_servers.shared import shared_cluster
from support.roles.balancer import Balancer
from support.roles.planted import CLOCK_FILE, PLANTED
from support.waiting import wait_until

__all__ = ["RoleServers", "sources_of"]


def sources_of(tree: Path) -> dict[str, str]:
    """Return what lets a Python take our packages from a folder with the repository's files."""
    return {"PYTHONPATH": os.pathsep.join(str(tree / name) for name in ("backend", "client", "alerting", "frontend"))}


class RoleServers:
    """Processes with roles. Each is a ``Server``; agents connect to ``url``, a balancer before the doors.

    Args:
        folder: of all that they keep.
        nodes: a cluster that runs, or what a Sentinel watches, in place of a Redis of their own.
        own: they have a Redis of their own, also where ``STABILITY_TEST_REDIS`` asks for a cluster.
        settings: of all of them, as environment variables without ``STABILITY_``.
    """

    def __init__(
        self, folder: Path, nodes: RedisNodes | WatchedRedis | None = None, *, own: bool = False, **settings: object
    ) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._shared = shared_cluster() if nodes is None and not own else None
        self.nodes = nodes or self._shared
        self.redis_server = PlainRedis(folder, "--appendonly", "yes", "--appendfsync", "everysec")
        self.redis_url = self.redis_server.url if self.nodes is None else self.nodes.url
        self._settings = {f"STABILITY_{name.upper()}": str(value) for name, value in settings.items()}
        self._stack = ExitStack()
        self.balancer = Balancer([])
        self.servers: dict[str, Server] = {}
        #: Data folder, port and environment of each.
        self._made: dict[str, tuple[Path, int, dict[str, str]]] = {}

    def add(self, name: str, role: str, tree: Path | None = None, **settings: object) -> Server:
        """Return a started process with a role, or several with commas between; wait with ``ready``.

        Args:
            role: "" for one process that does everything.
            tree: folder of another version's sources, that it is to run.
        """
        data = self.folder / name / "data"
        data.parent.mkdir(exist_ok=True)
        port = free_port()
        env = {
            "STABILITY_REDIS_URL": self.redis_url, "STABILITY_LOG_LEVEL": "info",
            "STABILITY_ARCHIVE_URL": str(self.folder / "archive"), CLOCK_FILE: str(self._clock_of(name)),
        } | self._settings  # fmt: skip
        env |= {f"STABILITY_{name.upper()}": str(value) for name, value in settings.items()}
        # What whoever runs the test has planted is planted into its servers, too.
        env[PLANTED] = ",".join(filter(None, (env.get(PLANTED), os.environ.get(PLANTED))))
        if role:
            env["STABILITY_ROLE"] = role
        self._made[name] = data, port, env
        self._start(name, tree)
        if "door" in role or not role:
            self.balancer.ports.append(port)
        return self.servers[name]

    def _start(self, name: str, tree: Path | None) -> None:
        data, port, env = self._made[name]
        python = None if tree is None else Path(sys.executable)
        env = env if tree is None else env | sources_of(tree)
        self.servers[name] = self._stack.enter_context(_Quiet(Server(data, port, env, python=python)))
        self.servers[name].start(wait=False)

    def upgrade(self, name: str, tree: Path | None = None) -> None:
        """Stop a process in good order and start it from other sources, by default the working tree's; wait for it."""
        self.servers[name].stop()
        self._start(name, tree)
        self.ready(name)

    def ready(self, *names: str) -> None:
        """Wait until these processes answer, or all of them."""
        for name in names or self.servers:
            wait_until(self.servers[name].answers, 60, f"{name} answers")

    def member_of(self, name: str) -> str:
        """Return the member id of a process."""
        url = self.servers[name].url
        found = [one for one, entry in self.client.hgetall("sb:members").items() if f'"{url}"'.encode() in entry]
        return str(found[-1].decode())

    def owner_of(self, run_id: str) -> str:
        """Return the name of the process that owns a run, "" for none."""
        address: Any = self.client.hget(f"sb:{{{run_id}}}:owner", "address")
        if address is None:
            return ""
        return next((name for name, server in self.servers.items() if server.url == address.decode()), "")

    def owned(self, run_id: str) -> Server:
        """Return the process that owns a run, as soon as one that lives does."""

        def found() -> Server | None:
            server = self.servers.get(self.owner_of(run_id))
            alive = server is not None and server.process is not None and server.process.poll() is None
            return server if alive else None

        return wait_until(found, 30, f"somebody owns {run_id}")

    @property
    def redis_urls(self) -> list[str]:
        """The address of each Redis."""
        if isinstance(self.nodes, RedisNodes):
            return [f"redis://{node.name}" for node in self.nodes.nodes]
        return [self.redis_url] if self.nodes is None else [one.url for one in self.nodes.servers]

    def limit_memory(self, limit_bytes: int) -> None:
        """Let each Redis have so much memory, 0 for as much as it wants. Raises RedisError where one is away."""
        for url in self.redis_urls:
            with Redis.from_url(url, socket_timeout=5) as client:
                client.config_set("maxmemory", limit_bytes)

    def redis_of(self, key: str) -> Redis:
        """Return a client of the Redis that has a key now."""
        if isinstance(self.nodes, RedisNodes):
            url = f"redis://{self.nodes.owner(key).name}"
        else:
            url = self.redis_url if self.nodes is None else self.nodes.primary_now().url
        return Redis.from_url(url, socket_timeout=5)

    @property
    def written(self) -> int:
        """Bytes that Redis has written of its append-only file."""
        return sum(file.stat().st_size for file in self._append_only())

    def lose_power(self, kept: int) -> None:
        """Kill Redis, and let what it wrote behind ``kept`` bytes be lost: it had not reached the disk."""
        self.redis_server.kill()
        (file,) = self._append_only()
        os.truncate(file, min(kept, file.stat().st_size))

    def _append_only(self) -> list[Path]:
        return list(self.folder.glob("appendonlydir/*.incr.aof"))

    def _clock_of(self, name: str) -> Path:
        return self.folder / name / "clock"

    def set_clock(self, name: str, off_s: float) -> None:
        """Set the wall clock of a process that was started with ``stepped_clock`` off by so much."""
        new = self._clock_of(name).with_suffix(".new")
        new.write_text(str(off_s))
        new.replace(self._clock_of(name))

    def send_signal(self, name: str, number: int) -> None:
        """Send a process a signal."""
        process = self.servers[name].process
        assert process is not None
        os.kill(process.pid, number)

    def stop_for(self, name: str) -> None:
        """SIGSTOP a process."""
        self.send_signal(name, signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        """SIGCONT a process."""
        self.send_signal(name, signal.SIGCONT)

    @property
    def url(self) -> str:
        """Where agents connect to."""
        return self.balancer.url

    def __enter__(self) -> RoleServers:
        self.client: Any
        if self._shared is not None:
            self._shared.flush()
        if self.nodes is None:
            self._stack.enter_context(self.redis_server)
            self.client = self._stack.enter_context(Redis.from_url(self.redis_server.url))
        elif isinstance(self.nodes, WatchedRedis):
            watching: Any = Sentinel([("127.0.0.1", self.nodes.port)], sentinel_kwargs={"protocol": 2})  # type: ignore[no-untyped-call]
            self.client = self._stack.enter_context(watching.master_for(self.nodes.name, protocol=2, socket_timeout=5))
        else:
            self.client = RedisCluster(host="127.0.0.1", port=self.nodes.masters[0].port)
            self._stack.callback(self.client.close)
        self._stack.enter_context(self.balancer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)


class _Quiet:
    """Ends a server when the context ends, whatever it is at: one that was stopped goes on first."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def __enter__(self) -> Server:
        return self._server

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._server.process
        if process is not None and process.poll() is None:
            os.kill(process.pid, signal.SIGCONT)
            self._server.__exit__(kind, error, trace)
