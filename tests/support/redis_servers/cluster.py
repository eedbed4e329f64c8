"""A Redis Cluster of ``redis-server`` processes on loopback: three masters, each with a replica."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from redis import Redis
from redis.crc import key_slot
from redis.exceptions import RedisError

from support.plain_redis import redis_binary
from support.ports import free_port
from support.redis_servers.certificates import Certificate
from support.waiting import wait_until

__all__ = ["ClusterNode", "RedisNodes"]

SLOTS = 16_384
#: How often other ports are drawn where nodes end as they start.
TRIES = 3
#: A node that is silent for so long is taken over, milliseconds; as docs/operations.md advises, but quicker.
NODE_TIMEOUT_MS = 1_000


@dataclass
class ClusterNode:
    """One process."""

    folder: Path
    options: tuple[str, ...]
    tls: Certificate | None = None
    port: int = field(default_factory=free_port)
    bus: int = field(default_factory=free_port)
    node_id: str = field(default_factory=lambda: secrets.token_hex(20))
    process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, with what it kept."""
        command = [
            *redis_binary(), *self._port(), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", "",
            "--appendonly", "yes", "--cluster-enabled", "yes", "--cluster-port", str(self.bus),
            "--cluster-node-timeout", str(NODE_TIMEOUT_MS), "--repl-diskless-sync-delay", "0", *self.options,
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _port(self) -> list[str]:
        if self.tls is None:
            return ["--port", str(self.port)]
        options = [option.format(port=self.port) for option in self.tls.options]
        return [*options, "--tls-cluster", "yes", "--tls-replication", "yes"]

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    @contextlib.contextmanager
    def client(self) -> Iterator[Redis]:
        """A client of this node alone."""
        secured: dict[str, Any] = {} if self.tls is None else {"ssl": True, "ssl_ca_certs": str(self.tls.authority)}
        with Redis("127.0.0.1", self.port, decode_responses=True, socket_timeout=5, protocol=2, **secured) as client:
            yield client

    def ask(self, *command: Any) -> Any:
        """Return what it answers to a command, None while it does not."""
        with self.client() as client:
            try:
                return client.execute_command(*command)  # type: ignore[no-untyped-call]
            except (RedisError, OSError):
                return None


class RedisNodes:
    """The cluster, while the context lasts; where no ``redis-server`` is installed see ``PlainRedis``.

    The topology is written into each node's file of it before the start, so that it stands in a second.

    Args:
        folder: the nodes' folders go there.
        options: further ones of each node's command line.
        tls: they speak nothing else, with this certificate.
    """

    def __init__(self, folder: Path, *options: str, tls: Certificate | None = None) -> None:
        self.masters = [ClusterNode(folder / f"master-{n}", options, tls) for n in range(3)]
        self.replicas = [ClusterNode(folder / f"replica-{n}", options, tls) for n in range(3)]
        self._tls = tls

    @property
    def nodes(self) -> list[ClusterNode]:
        return self.masters + self.replicas

    @property
    def url(self) -> str:
        """Address with two of its masters."""
        return self.url_for("")

    def url_for(self, login: str) -> str:
        """The same with a login, as ``user:password@``."""
        hosts = ",".join(node.name for node in self.masters[:2])
        if self._tls is None:
            return f"redis+cluster://{login}{hosts}"
        return f"rediss+cluster://{login}{hosts}?ssl_ca_certs={self._tls.authority}"

    def owner(self, key: str, *, without: ClusterNode | None = None) -> ClusterNode:
        """Return the node that has a key now, as the first node that answers sees it.

        Args:
            without: that one is not asked.
        """
        slot = key_slot(key.encode())
        for first, last, node in self._shards(without):
            if first <= slot <= last:
                return node
        raise AssertionError(f"nobody has slot {slot}")

    def owners(self) -> list[ClusterNode]:
        """Return the nodes that have slots now."""
        found = {node.port: node for _, _, node in self._shards(None)}
        return [found[port] for port in sorted(found)]

    def _shards(self, without: ClusterNode | None) -> Iterator[tuple[int, int, ClusterNode]]:
        for node in self.nodes:
            shards: Any = None if node is without else node.ask(b"CLUSTER", "SLOTS")
            for first, last, master, *_ in shards or ():
                yield first, last, next(each for each in self.nodes if each.port == int(master[1]))

    def well(self) -> bool:
        """Whether all nodes answer, all slots have a master, and each replica follows its own."""
        for node in self.nodes:
            info = node.ask(b"CLUSTER", "INFO")
            if info is None or "cluster_state:ok" not in info:
                return False
            found = node.ask("INFO", "replication")
            if found.get("role") == "slave" and found.get("master_link_status") != "up":
                return False
        return True

    def fail_over(self, key: str) -> ClusterNode:
        """kill -9 the master that has a key, wait until another one has it, and start the first again; returns it."""
        owner = self.owner(key)
        owner.kill()
        wait_until(lambda: self.owner(key, without=owner) is not owner, 20, "its replica has taken over")
        owner.start()
        return owner

    def move_slot(self, key: str, source: ClusterNode, target: ClusterNode) -> None:
        """Move the slot of a key to another master, key by key, as a reshard does."""
        slot = key_slot(key.encode())
        target.ask("CLUSTER SETSLOT", slot, "IMPORTING", source.node_id)
        source.ask("CLUSTER SETSLOT", slot, "MIGRATING", target.node_id)
        while keys := source.ask("CLUSTER GETKEYSINSLOT", slot, 1):
            moved = source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            assert moved in (b"OK", "OK", "NOKEY"), moved
        for node in (target, source):
            assert node.ask("CLUSTER SETSLOT", slot, "NODE", target.node_id) is not None

    def flush(self) -> None:
        """Empty it."""
        for node in self.nodes:
            node.ask("FLUSHALL")

    def __enter__(self) -> RedisNodes:
        try:
            for _ in range(TRIES):
                self._start()
                wait_until(lambda: self._lost() or self.well(), 30, "the cluster is well")
                if not self._lost():
                    return self
                self._draw_again()
            raise AssertionError(f"{TRIES} times nodes of a cluster ended as they started: was a port taken?")
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def _lost(self) -> bool:
        """Whether a node ended: another process took one of its ports since they were found free."""
        return any(node.process is not None and node.process.poll() is not None for node in self.nodes)

    def _draw_again(self) -> None:
        for node in self.nodes:
            node.kill()
            shutil.rmtree(node.folder)
            node.port, node.bus = free_port(), free_port()

    def _start(self) -> None:
        share = SLOTS // len(self.masters)
        lines = []
        for n, node in enumerate(self.masters):
            last = SLOTS - 1 if node is self.masters[-1] else (n + 1) * share - 1
            lines.append((node, "master", "-", n + 1, f" {n * share}-{last}"))
        for n, node in enumerate(self.replicas):
            lines.append((node, "slave", self.masters[n].node_id, n + 1, ""))
        for me in self.nodes:
            me.folder.mkdir(parents=True)
            known = [
                f"{one.node_id} {one.name}@{one.bus} {'myself,' * (one is me)}{role} {of} 0 0 {epoch} connected{more}"
                for one, role, of, epoch, more in lines
            ]
            epochs = f"vars currentEpoch {len(self.masters)} lastVoteEpoch 0"
            (me.folder / "nodes.conf").write_text("\n".join([*known, epochs, ""]))
            me.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            if node.process is not None and node.process.poll() is None:
                os.kill(node.process.pid, signal.SIGCONT)
            node.kill()
