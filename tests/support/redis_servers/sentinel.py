"""A primary with its replicas and a Sentinel that watches them: ``redis-server`` processes on loopback."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from support.plain_redis import PlainRedis, redis_binary
from support.ports import free_port
from support.waiting import wait_until

__all__ = ["WatchedRedis"]

#: A primary that is silent for so long is taken over, milliseconds.
DOWN_AFTER_MS = 500


class WatchedRedis:
    """Runs while the context lasts.

    Args:
        folder: the servers' folders go there.
        options: further ones of each server's command line.
        name: what the Sentinel calls the primary.
        replicas: how many there are.

    Attributes:
        primary, replica: the first ones, whoever is the primary by now. servers: all of them.
    """

    def __init__(self, folder: Path, *options: str, name: str = "board", replicas: int = 1) -> None:
        for part in ("primary", *(f"replica-{n}" for n in range(replicas)), "sentinel"):
            (folder / part).mkdir(parents=True)
        usual = ("--appendonly", "yes", "--repl-diskless-sync-delay", "0", "--replica-priority", "1", *options)
        self.primary = PlainRedis(folder / "primary", *usual)
        follow = ("--replicaof", "127.0.0.1", str(self.primary.port))
        others = [PlainRedis(folder / f"replica-{n}", *usual, *follow) for n in range(replicas)]
        self.replica = others[0]
        self.servers = [self.primary, *others]
        self.port = free_port()
        self.name = name
        self._file = folder / "sentinel" / "sentinel.conf"
        self._file.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {folder / 'sentinel'}\n"
            f"sentinel monitor {name} 127.0.0.1 {self.primary.port} 1\n"
            f"sentinel down-after-milliseconds {name} {DOWN_AFTER_MS}\nsentinel failover-timeout {name} 5000\n"
        )
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/{self.name}"

    def primary_port(self) -> int:
        """Return the port of the primary as the Sentinel sees it, 0 while it does not answer."""
        found = self._ask("SENTINEL GET-MASTER-ADDR-BY-NAME", self.name)
        return int(found[1]) if found else 0

    def primary_now(self) -> PlainRedis:
        """Return the primary as the Sentinel sees it."""
        port = self.primary_port()
        return next(one for one in self.servers if one.port == port)

    def fail_over(self) -> None:
        """kill -9 the first primary and wait until the replica has taken over."""
        self.primary.kill()
        wait_until(lambda: self.primary_port() == self.replica.port, 30, "the replica has taken over")

    def _ask(self, *command: Any) -> Any:
        with Redis(port=self.port, decode_responses=True, protocol=2, socket_timeout=5) as client:
            try:
                return client.execute_command(*command)
            except (RedisError, OSError):
                return None

    def well(self) -> bool:
        """Whether all servers answer and follow the primary, and the Sentinel knows them."""
        port = self.primary_port()
        if not port or len(self._ask("SENTINEL SLAVES", self.name) or ()) < len(self.servers) - 1:
            return False
        try:
            found = {one.port: one.info("replication") for one in self.servers}
        except RedisError:
            return False
        return found.pop(port)["role"] == "master" and all(
            (one["role"], one.get("master_port"), one.get("master_link_status")) == ("slave", port, "up")
            for one in found.values()
        )

    def __enter__(self) -> WatchedRedis:
        with ExitStack() as stack:
            for server in self.servers:
                stack.enter_context(server)
            command = [*redis_binary(), str(self._file), "--sentinel"]
            sentinel = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(sentinel.wait)
            stack.callback(sentinel.kill)
            wait_until(self.well, 40, "the Sentinel knows the replicas")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
