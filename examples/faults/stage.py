"""Starts a job of real processes, lets one fault happen to it, and says when; every process of it ends with it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from catalog import Fault
from collective import Hub
from proxy import Road

__all__ = ["FaultyJob"]

_RANK = Path(__file__).with_name("rank.py")
_CGROUPS = Path("/sys/fs/cgroup/memory")
#: Memory that a rank may still take before it is killed for it, bytes: what it has does not count in its new group.
_CGROUP_BYTES = 64 * 1024 * 1024


class FaultyJob:
    """A job with one fault, from ``start`` to ``stop``; a context manager.

    Args:
        fault: None for a healthy job.
        url: of the server. run_id: of the run. folder: of this job, empty.
        world_size: ranks. rank: the one that it happens on; not 0, which logs the loss.
        torch: use gloo, else the hub.
        plan: more of rank.py's plan.
    """

    def __init__(
        self,
        fault: Fault | None,
        *,
        url: str,
        run_id: str,
        folder: Path,
        world_size: int = 2,
        rank: int = 1,
        torch: bool = False,
        **plan: Any,
    ) -> None:
        self.fault, self.run_id, self.folder, self.rank = fault, run_id, folder, rank
        self._url, self._world_size = url, world_size
        self._plan = {"fault": fault.name if fault else "", "rank": rank, "mark": str(folder / "mark"), **plan}
        self._plan["group"] = "torch" if torch else f"hub:{_short_path()}"
        self._hub: Hub | None = None
        self._road: Road | None = None
        self._lock: int | None = None
        self._cgroup: Path | None = None
        self.processes: list[subprocess.Popen[bytes]] = []
        self._happened: float | None = None
        self._watch = threading.Event()

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all ranks."""
        if self._plan["group"].startswith("hub:"):
            self._hub = Hub(self._plan["group"].removeprefix("hub:"), self._world_size)
        if self.fault is not None and self.fault.name == "oom":
            self._cgroup = _make_cgroup(self.run_id)
            self._plan["cgroup"] = str(self._cgroup)
        if self.fault is not None and self.fault.name in ("partition", "node_lost"):
            self._road = Road(int(self._url.rpartition(":")[2]))
        port = _store_port()
        nodes = self.fault is not None and self.fault.node
        with (self.folder / "ranks.log").open("ab") as log:
            for rank in range(self._world_size):
                env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")} | {
                    "STABILITY_URL": self._url,
                    "STABILITY_DIR": str(self.folder / "spool"),
                    "STABILITY_RUN_ID": self.run_id,
                    "RANK": str(rank),
                    "LOCAL_RANK": "0" if nodes else str(rank),
                    "WORLD_SIZE": str(self._world_size),
                    "LOCAL_WORLD_SIZE": "1" if nodes else str(self._world_size),
                    "STABILITY_NODE": f"node-{rank}" if nodes else "node-0",
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "OMP_NUM_THREADS": "1",
                    "TORCH_FR_BUFFER_SIZE": "2000",
                    "STABILITY_DRAIN_S": "5",
                }
                if self._road is not None and rank == self.rank:
                    env["STABILITY_URL"] = self._road.url
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, str(_RANK), json.dumps(self._plan)], env=env, stdout=log, stderr=log
                    )
                )

    def happen(self, server: Any = None) -> None:
        """Let a fault of a node or of the server happen now; those of a rank happen by themselves at their step.

        Args:
            server: has ``kill()`` and ``start()``, for ``server_away``.
        """
        assert self.fault is not None
        act = getattr(self, f"_{self.fault.name}", None)
        if act is not None:
            act(server)
            self._happened = time.time()

    @property
    def happened(self) -> float | None:
        """Unix seconds of the fault, None before it."""
        mark = self.folder / f"mark.{self.rank}"
        if self._happened is None and mark.exists():
            self._happened = float(mark.read_text())
        return self._happened

    def stop(self) -> None:
        """End every process of the job, its agents too, and what was made for it."""
        self._watch.set()
        if self._lock is not None:
            os.close(self._lock)
        if self._road is not None:
            self._road.close()
        for process in self.processes:
            process.kill()  # SIGKILL ends stopped ones too
            process.wait()
        for folder in (self.folder / "spool").glob("*"):
            _kill(_agent_pid(folder))
        if self._hub is not None:
            self._hub.close()
        if self._cgroup is not None:
            _remove_cgroup(self._cgroup)

    def __enter__(self) -> FaultyJob:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- faults of nodes and servers, by their name in catalog.py ------------------------------------------------

    def _run_folder(self) -> Path:
        nodes = self.fault is not None and self.fault.node
        return self.folder / "spool" / (f"{self.run_id}@node-{self.rank}" if nodes else self.run_id)

    def _agent_dead(self, server: Any) -> None:
        folder = self._run_folder()
        _kill(_agent_pid(folder))
        # Holding its lock keeps the ranks from starting another: as if a hung one still held it.
        self._lock = os.open(folder / "agent" / "lock", os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def _partition(self, server: Any) -> None:
        assert self._road is not None
        self._road.cut()

    def _node_lost(self, server: Any) -> None:
        assert self._road is not None
        self._road.cut()
        self.processes[self.rank].send_signal(signal.SIGSTOP)
        pid = _agent_pid(self._run_folder())
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)

    def _server_away(self, server: Any) -> None:
        assert self.fault is not None
        server.kill()
        self._later(self.fault.lasts_s, server.start)

    def _agent_paused(self, server: Any) -> None:
        assert self.fault is not None
        pid = _agent_pid(self._run_folder())
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        self._later(self.fault.lasts_s, lambda: os.kill(pid, signal.SIGCONT))

    def _later(self, seconds: float, act: Any) -> None:
        def wait() -> None:
            if not self._watch.wait(seconds):
                act()

        threading.Thread(target=wait, daemon=True).start()


def _store_port() -> int:
    """Return a free port for the ranks' store, below those that connections get by themselves.

    A rank that asks for the store before it listens may otherwise be given that very port, and then talks to itself for
    ever: TCP allows it on one machine.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no free port among 100 between 20000 and 32000")


def _short_path() -> str:
    return os.path.join(tempfile.mkdtemp(prefix="sbf-"), "hub")  # a Unix socket's path has 107 characters at most


def _agent_pid(run_folder: Path) -> int | None:
    try:
        return int(json.loads((run_folder / "agent" / "agent.json").read_bytes())["pid"])
    except (OSError, ValueError, KeyError):
        return None


def _kill(pid: int | None) -> None:
    if pid is not None:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _make_cgroup(name: str) -> Path:
    """Return a new memory cgroup (version 1). Raises OSError where this user can't make one."""
    group = _CGROUPS / f"stability-{name}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(_CGROUP_BYTES))
    return group


def _remove_cgroup(group: Path) -> None:
    for _ in range(50):
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.05)  # its last process is still being taken apart
        else:
            return
