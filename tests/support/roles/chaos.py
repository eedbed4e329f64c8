"""Kills, stops and cuts parts of a server of several processes, at moments and in an order that a seed decides."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
from redis.exceptions import OutOfMemoryError, RedisError

from stabilityplugins.scale.members import EXPIRY_S
from support.agent.store_proxy import Mood, StoreProxy
from support.outside.black_hole import black_hole
from support.plain_redis import PlainRedis
from support.processes import Ranks, Server
from support.redis_servers.cluster import NODE_TIMEOUT_MS, ClusterNode, RedisNodes
from support.roles.servers import RoleServers
from support.waiting import wait_until

__all__ = ["ALL_FAULTS", "ON_A_CLUSTER", "ON_SENTINEL", "WITH_A_BUCKET", "WITH_A_FULL_REDIS", "Chaos", "order_rollback"]

_OF_PARTS = (
    "kill_worker", "kill_worker", "kill_door", "kill_alerting", "stop_worker", "stop_worker", "stop_door", "cut",
    "drop", "rollback", "set_clock",
)  # fmt: skip
#: What is drawn from for each turn, on one Redis, on a cluster and where a Sentinel watches.
ALL_FAULTS = (*_OF_PARTS, "kill_redis", "cut_power")
ON_A_CLUSTER = (*_OF_PARTS, "kill_master", "lose_master", "stop_master", "move_slot", "fill_redis")
ON_SENTINEL = (*_OF_PARTS, "kill_master", "kill_master", "stop_master")
#: The same with a Redis, or a bucket, that is in trouble half of the time.
WITH_A_FULL_REDIS = (*_OF_PARTS, "kill_redis", "fill_redis", "fill_redis", "fill_redis")
WITH_A_BUCKET = (*ALL_FAULTS, "trouble_bucket", "trouble_bucket", "trouble_bucket")
#: What is due where a node of the cluster is to come back, Redis is to have room again, the bucket is to be well again.
NODE, ROOM, BUCKET = "node", "room", "bucket"
#: Redis is full for so long, seconds: its processes would be dead by then, if that made one dead.
FULL_S = (0.2, 2.5 * EXPIRY_S)
#: The bucket is in trouble for so long, and a slow one answers so much later, seconds.
BUCKET_S, BUCKET_DELAY_S = (0.5, 6.0), 1.0
MOODS: tuple[Mood, ...] = ("slow", "failing", "silent", "away")
#: A node of a cluster is away for at most so long, in terms of the time after which its replica takes over.
NODE_AWAY = 4.0
#: Of the jobs' steps, seconds.
PERIOD_S = 0.01
#: A process that was killed is started again after at most so long, seconds.
DOWN_S = 1.0
#: Redis writes to its disk once a second: what is older survives a power cut, seconds.
ON_DISK_S = 1.2
#: The wall clock of a process is set by so many seconds, and back after at most CLOCK_S.
CLOCK_STEPS = (-3600.0, -5.0, 5.0, 3600.0)
CLOCK_S = 10.0
#: A process is stopped for this many lease times.
STOPS = (0.5, 3.0)


class Chaos:
    """A server of several processes, jobs, and what is done to the former.

    Args:
        servers: that run.
        jobs: run id -> its ranks, and the folder of each below ``folder``.
        draw: decides all that is random.
        faults: what is drawn from. metrics: more of them in each row.
        env: more environment variables of the jobs.
        bucket: what stands before the archive's bucket, where it has one.
    """

    def __init__(
        self,
        servers: RoleServers,
        folder: Path,
        runs: int,
        draw: random.Random,
        faults: tuple[str, ...],
        metrics: int,
        env: Mapping[str, str] | None = None,
        bucket: StoreProxy | None = None,
    ) -> None:
        self._bucket = bucket
        self._env = dict(env or {})
        self.done: Counter[str] = Counter()
        #: What was done, a line each: unix seconds, fault.
        self.history: list[str] = []
        self._servers, self._folder, self._draw, self._faults = servers, folder, draw, faults
        #: When so many bytes of Redis' file were written, of the last seconds.
        self._written: list[tuple[float, int]] = []
        self._stopped: list[tuple[float, str]] = []
        self._due: list[tuple[float, str]] = []
        self._node: ClusterNode | PlainRedis | None = None
        self._node_stopped = False
        self._hole = ExitStack()  # in its place while it is lost
        self.jobs = {f"run-{n}": self._job(f"run-{n}", metrics) for n in range(runs)}

    def _job(self, run_id: str, metrics: int) -> Ranks:
        folder = self._folder / run_id
        folder.mkdir()
        return Ranks(
            "roles/chaos_rank.py", [str(folder), str(PERIOD_S)], url=self._servers.url, folder=folder / "spool",
            run_id=run_id, world_size=1, CHAOS_METRICS=str(metrics), **self._env,
        )  # fmt: skip

    def folder_of(self, run_id: str) -> Path:
        """Return the folder of a job."""
        return self._folder / run_id

    def turn(self, pause_s: float) -> None:
        """Do one thing at a random moment."""
        until = time.monotonic() + self._draw.uniform(0.0, 2 * pause_s)
        while time.monotonic() < until:
            self.supervise()
            time.sleep(0.02)
        fault = self._draw.choice(self._faults)
        self.history.append(f"{time.time():.2f} {fault}")
        getattr(self, f"_{fault}")()
        self.done[fault] += 1

    def supervise(self) -> None:
        """Bring back what is due, as supervisors do."""
        now = time.monotonic()
        self._written = [*(one for one in self._written if one[0] > now - 5.0), (now, self._servers.written)]
        for at, name in [due for due in self._due if due[0] <= now]:
            self._due.remove((at, name))
            if name.startswith("clock of "):
                self._servers.set_clock(name.removeprefix("clock of "), 0.0)
            elif name == "balancer":
                self._servers.balancer.cut(up=False, down=False)
            elif name == "redis":
                self._servers.redis_server.come_back()
            elif name == NODE:
                self._node_comes_back()
            elif name == ROOM:
                self._make_room()
            elif name == BUCKET:
                self._heal_bucket()
            else:
                self._servers.servers[name].start(wait=False)
        for at, name in [due for due in self._stopped if due[0] <= now]:
            self._stopped.remove((at, name))
            with suppress(ProcessLookupError):
                self._servers.go_on(name)
        for name, server in self._servers.servers.items():
            ended = server.process is not None and server.process.poll() is not None
            if ended and name not in (one for _, one in self._due):
                self.done["ended by itself"] += 1
                server.start(wait=False)

    def settle(self) -> None:
        """Bring everything back, and wait until it works."""
        now = time.monotonic()
        self._due = [(now, name) for _, name in self._due]
        self._stopped = [(now, name) for _, name in self._stopped]
        self.supervise()
        if self._servers.nodes is not None:
            wait_until(self._servers.nodes.well, 60, "all nodes are well")
        for name, server in self._servers.servers.items():

            def answers(server: Server = server) -> bool:
                self.supervise()  # one that started while Redis was away ends by itself, perhaps only now
                with suppress(AssertionError):
                    return server.answers()
                return False

            wait_until(answers, 60, f"{name} answers")

    def _is_due(self, *names: str) -> bool:
        return any(name in names for _, name in self._due)

    def _up(self, role: str) -> list[str]:
        away = {name for _, name in (*self._due, *self._stopped)}
        return [name for name in self._servers.servers if name.startswith(role) and name not in away]

    def _kill(self, role: str) -> None:
        if names := self._up(role):
            name = self._draw.choice(names)
            self._servers.servers[name].kill()
            self._due.append((time.monotonic() + self._draw.uniform(0.0, DOWN_S), name))

    def _kill_worker(self) -> None:
        self._kill("worker")

    def _kill_door(self) -> None:
        self._kill("door")

    def _kill_alerting(self) -> None:
        self._kill("alerting")

    def _stop(self, role: str) -> None:
        if len(names := self._up(role)) > 1:
            name = self._draw.choice(names)
            with suppress(ProcessLookupError):  # it has just ended, since Redis was away when it started
                self._servers.send_signal(name, signal.SIGSTOP)
            self._stopped.append((time.monotonic() + EXPIRY_S * self._draw.uniform(*STOPS), name))

    def _stop_worker(self) -> None:
        self._stop("worker")

    def _stop_door(self) -> None:
        self._stop("door")

    def _cut(self) -> None:
        if not self._is_due("balancer"):
            self._servers.balancer.cut(up=self._draw.random() < 0.6, down=self._draw.random() < 0.6)
            self._due.append((time.monotonic() + self._draw.uniform(0.2, 3.0), "balancer"))

    def _drop(self) -> None:
        self._servers.balancer.drop_all()

    def _kill_redis(self) -> None:
        if not self._is_due("redis"):
            self._servers.redis_server.kill()
            self._due.append((time.monotonic() + self._draw.uniform(0.0, DOWN_S), "redis"))

    def _cut_power(self) -> None:
        """Take from Redis what it wrote in the last second, too."""
        older = [size for at, size in self._written if at < time.monotonic() - ON_DISK_S]
        if older and not self._is_due("redis"):
            self._servers.lose_power(older[-1])
            self._due.append((time.monotonic() + self._draw.uniform(0.0, DOWN_S), "redis"))

    def _fill_redis(self) -> None:
        """Let it have half of the memory that it uses: it takes no writes, on a cluster of one master's runs."""
        if not self._is_due(ROOM, "redis", NODE):
            run_id = self._draw.choice(list(self.jobs))
            with suppress(RedisError), self._servers.redis_of(f"{{{run_id}}}") as client:
                client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
                try:
                    client.set(f"chaos:{{{run_id}}}", 1)
                except OutOfMemoryError:
                    self.done["redis full"] += 1
            self._due.append((time.monotonic() + self._draw.uniform(*FULL_S), ROOM))

    def _make_room(self) -> None:
        try:
            self._servers.limit_memory(0)
        except RedisError:  # it is away just now; one that is started again has room
            self._due.append((time.monotonic() + DOWN_S, ROOM))

    def _trouble_bucket(self) -> None:
        if self._bucket is not None and not self._is_due(BUCKET):
            self._bucket.delay_s, self._bucket.mood = BUCKET_DELAY_S, self._draw.choice(MOODS)
            self.done[f"bucket {self._bucket.mood}"] += 1
            self._due.append((time.monotonic() + self._draw.uniform(*BUCKET_S), BUCKET))

    def _heal_bucket(self) -> None:
        assert self._bucket is not None
        self._bucket.mood = "well"
        self._bucket.release()

    # --- of a cluster, or what a Sentinel watches: one node at a time is away, so that each slot keeps one that has it

    def _kill_master(self) -> None:
        if (node := self._master()) is not None:
            node.kill()

    def _lose_master(self) -> None:
        """Its machine is gone: nothing says that nobody listens at its address."""
        if isinstance(node := self._master(), ClusterNode):
            node.kill()
            self._hole.enter_context(black_hole(node.port))

    def _stop_master(self) -> None:
        if (node := self._master()) is not None:
            self._node_stopped = True
            node.send_signal(signal.SIGSTOP)

    def _master(self) -> ClusterNode | PlainRedis | None:
        """Return the master of a run, which is due to come back; None while not all nodes are well."""
        nodes = self._servers.nodes
        if nodes is None or self._is_due(NODE, ROOM) or not nodes.well():
            return None
        if isinstance(nodes, RedisNodes):
            self._node = nodes.owner(f"{{{self._draw.choice(list(self.jobs))}}}")
        else:
            self._node = nodes.primary_now()
        self._node_stopped = False
        self.done["masters away"] += 1
        self._due.append((time.monotonic() + self._draw.uniform(0.0, NODE_AWAY) * NODE_TIMEOUT_MS / 1000, NODE))
        return self._node

    def _node_comes_back(self) -> None:
        assert self._node is not None
        self._hole.close()
        if self._node_stopped:
            self._node.send_signal(signal.SIGCONT)
        elif isinstance(self._node, ClusterNode):
            self._node.start()
        else:
            self._node.come_back()

    def _move_slot(self) -> None:
        """Move the slot of a run to another master, while all go on."""
        nodes = self._servers.nodes
        if isinstance(nodes, RedisNodes) and not self._is_due(NODE, ROOM) and nodes.well():
            key = f"{{{self._draw.choice(list(self.jobs))}}}"
            source = nodes.owner(key)
            nodes.move_slot(key, source, self._draw.choice([node for node in nodes.owners() if node is not source]))

    def _set_clock(self) -> None:
        """Set the clock of a process, whether it runs now or not; the next one to set it back is taken first."""
        name = self._draw.choice(list(self._servers.servers))
        self._servers.set_clock(name, self._draw.choice(CLOCK_STEPS))
        self._due = [due for due in self._due if due[1] != f"clock of {name}"]
        self._due.append((time.monotonic() + self._draw.uniform(0.0, CLOCK_S), f"clock of {name}"))

    def _rollback(self) -> None:
        """Order one, whether it is taken or not."""
        run_id = self._draw.choice(list(self.jobs))
        with suppress(httpx.HTTPError, RedisError, KeyError, ValueError):  # nobody owns it, or it has no checkpoint
            owner = self._servers.servers[self._servers.owner_of(run_id)]
            with httpx.Client(base_url=owner.url, verify=False, timeout=3.0) as client:
                answer = order_rollback(client, run_id)
            self.done["order taken" if answer.is_success else "order refused"] += 1

    def finish(self) -> dict[str, str]:
        """Let all jobs end; return what ``finish`` returned in each."""
        for run_id in self.jobs:
            (self._folder / run_id / "enough").touch()
        return {run_id: ranks.outputs(240)[0][-2] for run_id, ranks in self.jobs.items()}

    def kill_jobs(self) -> None:
        """kill -9 what still runs, and the agents."""
        for run_id, ranks in self.jobs.items():
            ranks.kill()
            for file in (self._folder / run_id / "spool").glob("*/agent/agent.json"):
                with suppress(OSError, ValueError, KeyError):
                    import json

                    os.kill(json.loads(file.read_text())["pid"], signal.SIGKILL)


def order_rollback(client: httpx.Client, run_id: str, **more: str) -> httpx.Response:
    """Order a rollback to the newest checkpoint; return the answer. ``more`` are fields of the order.

    Raises:
        httpx.HTTPError: the server is away. KeyError, ValueError: it answers with an error, or has no checkpoint.
    """
    found = client.get(f"/api/v1/runs/{run_id}/checkpoints").json()["checkpoints"]
    steps = [one["step"] for one in found if not one["dead"]]  # of the path that was left they may be ahead of the job
    order = {"kind": "rollback", "to_step": max(steps), "accept_inside_incident": True} | more
    return client.post(f"/api/v1/runs/{run_id}/commands", json=order)
