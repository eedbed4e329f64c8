"""The processes of the demo, server and training job, each with all its children, and how they are ended.

Each runs in a session of its own, so that a Ctrl-C in the terminal reaches the demo only and the demo ends the others
in order: the job, the agent that drains the job's spool, the server. If the demo itself is killed, the kernel sends
SIGTERM to both.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from stabilitybackend.base.errors import StartError

__all__ = ["ManagedProcess", "end_agents", "end_strays", "free_port", "server_command", "training_command"]

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.05
#: Ports tried after the wanted one.
_PORTS_TRIED = 50
#: Lines of a process's output that are shown when it fails.
_TAIL_LINES = 15


class ManagedProcess:
    """A process group that is started here and ended here.

    Args:
        command: program and arguments.
        log: file that gets its output.
        env: variables besides those of this process.
    """

    def __init__(self, command: Sequence[str], *, log: Path, env: Mapping[str, str]) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )

    @property
    def pid(self) -> int:
        """Process id, and id of the group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the first process of the group still runs."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the first process, None while it runs, negative for a signal."""
        return self._process.poll()

    def tail(self) -> str:
        """Return the last lines of its output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])

    def wait(self, timeout_s: float) -> bool:
        """Return whether the whole group was gone within ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while self._group_alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def end(self, grace_s: float) -> bool:
        """Ask the group to end, wait ``grace_s``, then kill it; return whether asking was enough."""
        self._signal(signal.SIGTERM)
        if self.wait(grace_s):
            return True
        self._signal(signal.SIGKILL)
        self.wait(5.0)
        return False

    def ask_to_end(self) -> None:
        """Send SIGTERM to the first process only; it passes it on as it sees fit."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def _group_alive(self) -> bool:
        if self._process.poll() is None:
            return True
        # Not killpg(pid, 0): it also finds dead orphans that were never reaped, as in many containers.
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
                if int(group) == self.pid and state not in "ZX":
                    return True
        return False

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def server_command(port: int, data_dir: Path, root_path: str | None = None) -> list[str]:
    """Return the command of a server of its own on loopback; a proxy may serve it below a path."""
    below = [] if root_path is None else ["--root-path", root_path]
    where = ["--host", "127.0.0.1", "--port", str(port), "--data-dir", str(data_dir)]
    return [sys.executable, "-m", "stabilitybackend.cli", "up", *where, *below]


def training_command(script: Path, ranks: int, arguments: Sequence[str]) -> list[str]:
    """Return the command that starts ``script`` on ``ranks`` processes by torchrun."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*torchrun, str(script), *arguments]


def end_agents(spool_dir: Path, run_id: str, grace_s: float) -> None:
    """Wait until the agent of a run has drained the spool and left, and end it when it does not."""
    for number in (0, signal.SIGTERM, signal.SIGKILL):
        pid = _agent_pid(spool_dir / run_id / "agent" / "agent.json")
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
        deadline = time.monotonic() + grace_s
        while _agent_alive(pid) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if not _agent_alive(pid):
            return


def end_strays(variable: str, grace_s: float) -> None:
    """End the ranks of a job whose launcher was killed: nothing else ends them.

    torchrun gives each rank a session of its own: they are found by ``variable``, ``NAME=value`` in their environment.
    Agents are left alone.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + grace_s
        for pid in _with_variable(variable):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        while _with_variable(variable) and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def free_port(wanted: int) -> int:
    """Return ``wanted``, or the next free port on loopback.

    Raises:
        StartError: fifty ports in a row are taken.
    """
    for port in range(wanted, min(wanted + _PORTS_TRIED, 65536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise StartError(f"no free port from {wanted} to {wanted + _PORTS_TRIED - 1}", hint="give another --port")


def _agent_pid(path: Path) -> int | None:
    try:
        pid = int(json.loads(path.read_text())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if _agent_alive(pid) else None


def _agent_alive(pid: int) -> bool:
    """Return whether ``pid`` runs our agent (and not a stranger who got the number later)."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"stabilityclient" in command


def _with_variable(variable: str) -> list[int]:
    """Return the living processes, agents apart, that were started with ``variable`` in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or belongs to another user
            given = (process / "environ").read_bytes().split(b"\0")
            if variable.encode() in given and not _agent_alive(int(process.name)):
                found.append(int(process.name))
    return found


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
