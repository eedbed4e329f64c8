"""A primary with its replica and a Sentinel that watches them: ``redis-server`` processes on loopback."""

from __future__ import annotations

import subprocess
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
        name: what the Sentinel calls the primary.
    """

    def __init__(self, folder: Path, name: str = "board") -> None:
        for part in ("primary", "replica", "sentinel"):
            (folder / part).mkdir(parents=True)
        options = ("--appendonly", "yes", "--repl-diskless-sync-delay", "0", "--replica-priority", "1")
        self.primary = PlainRedis(folder / "primary", *options)
        self.replica = PlainRedis(folder / "replica", *options, "--replicaof", "127.0.0.1", str(self.primary.port))
        self.port = free_port()
        self._name = name
        self._file = folder / "sentinel" / "sentinel.conf"
        self._file.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {folder / 'sentinel'}\n"
            f"sentinel monitor {name} 127.0.0.1 {self.primary.port} 1\n"
            f"sentinel down-after-milliseconds {name} {DOWN_AFTER_MS}\nsentinel failover-timeout {name} 5000\n"
        )
        self._sentinel: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/{self._name}"

    def primary_port(self) -> int:
        """Return the port of the primary as the Sentinel sees it, 0 while it does not answer."""
        found = self._ask("SENTINEL GET-MASTER-ADDR-BY-NAME", self._name)
        return int(found[1]) if found else 0

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

    def _knows_the_replica(self) -> bool:
        link = self.replica.info("replication").get("master_link_status")
        replicas = self._ask("SENTINEL SLAVES", self._name)
        return link == "up" and bool(replicas)

    def __enter__(self) -> WatchedRedis:
        self.primary.__enter__()
        try:
            self.replica.__enter__()
            command = [*redis_binary(), str(self._file), "--sentinel"]
            self._sentinel = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wait_until(self._knows_the_replica, 40, "the Sentinel knows the replica")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (self._sentinel, self.replica, self.primary):
            if isinstance(process, PlainRedis):
                process.kill()
            elif process is not None:
                process.kill()
                process.wait()
