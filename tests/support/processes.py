"""Real processes for tests of the whole stack: the server as people start it, ranks as a launcher starts them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from support.forked_program import ForkedProgram
from support.redis_servers.shared import shared_cluster
from support.waiting import wait_until

__all__ = ["Ranks", "Server", "agent_pid", "end_agents"]

#: The programs that ranks run.
_PROGRAMS = Path(__file__).parents[1] / "stack"


class Server:
    """``stabilityboard up`` in a process of its own, on one port over all its lives.

    Args:
        data_dir: its folder.
        port: TCP port.
        env: more environment variables.
        python: that has the server; by default that of the tests, with the working tree and its imports made.

    Attributes:
        environ: all of its environment.
    """

    def __init__(
        self, data_dir: Path, port: int, env: dict[str, str] | None = None, *, python: Path | None = None
    ) -> None:
        self.data_dir = data_dir
        self._port = port
        self.url = f"http://127.0.0.1:{port}"
        self._arguments = ["up", "--port", str(port), "--data-dir", str(data_dir)]
        self._cluster = None if python is not None or "STABILITY_REDIS_URL" in (env or {}) else shared_cluster()
        if self._cluster is not None:
            self._cluster.flush()
            env = {"STABILITY_REDIS_URL": self._cluster.url} | (env or {})
        self._python = python
        around = dict(os.environ)
        if python is not None:  # it is to run what is installed there
            around.pop("PYTHONPATH", None)
        self.environ = around | (env or {})
        # One for all questions, without the TLS context that takes 30 ms of CPU. No connection is kept: the server is
        # killed now and then.
        self._client = httpx.Client(base_url=self.url, verify=False, limits=httpx.Limits(max_keepalive_connections=0))
        self.process: subprocess.Popen[bytes] | ForkedProgram | None = None

    def start(self, wait: bool = True) -> Server:
        """Start it and wait until it answers."""
        file = self.data_dir.parent / "server.log"
        if self._python is None:
            self.process = ForkedProgram(self._arguments, self.environ, file)
        else:
            with file.open("ab") as log:
                command = [str(self._python), "-m", "stabilitybackend.cli", *self._arguments]
                self.process = subprocess.Popen(command, env=self.environ, stdout=log, stderr=log)
        if wait:
            try:
                wait_until(self.answers, 30, "the server answers")
            except AssertionError:
                self.kill()  # nobody else will: a context that was not entered is not left
                raise
        return self

    def answers(self) -> bool:
        """Whether /healthz says ok."""
        assert self.process is not None
        log = self.data_dir.parent / "server.log"
        assert self.process.poll() is None, log.read_text(errors="replace")[-2000:]
        try:
            # Until it listens a bare look does: the client's costs 3 ms of CPU, and a start is looked at forty times.
            socket.create_connection(("127.0.0.1", self._port), timeout=2).close()
            return self._client.get("/healthz", timeout=2).status_code == 200
        except (httpx.HTTPError, OSError):
            return False

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ctrl-C; return the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)

    def kill_redis(self, run_id: str) -> None:
        """kill -9 of the embedded server, or of the master of a cluster that has a run; somebody brings it back."""
        if self._cluster is None:
            os.kill(self.redis_pid(), signal.SIGKILL)
        else:
            self._cluster.fail_over(f"sb:{{{run_id}}}:frames")

    def redis_pid(self) -> int:
        """Pid of the embedded server."""
        assert self.process is not None
        out = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=True).stdout
        for pid in map(int, out.split()):
            name = Path(f"/proc/{pid}/comm").read_text()
            if "redis" in name or "valkey" in name:
                return pid
        raise AssertionError(f"no Redis among the children {out.split()} of the server")

    def get(self, path: str, **params: Any) -> Any:
        """Return the JSON of ``GET /api/v1{path}``."""
        answer = self._client.get(f"/api/v1{path}", params=params, timeout=30)
        answer.raise_for_status()
        return answer.json()

    def wait_for(self, path: str, condition: Any, what: str, timeout_s: float = 30) -> Any:
        """Return what ``GET path`` answers once ``condition`` holds of it."""

        def answer() -> Any:
            try:
                found = self.get(path)
            except httpx.HTTPError:
                return None
            return found if condition(found) else None

        return wait_until(answer, timeout_s, what)

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                self.kill()


class Ranks:
    """Processes of a job on this node, one a rank, with the environment that a launcher gives.

    Args:
        script: file in tests/stack, or any path.
        arguments: of the script.
        url: the server's.
        folder: STABILITY_DIR.
        run_id: of the run.
        world_size: how many.
    """

    def __init__(
        self, script: str, arguments: list[str], *, url: str, folder: Path, run_id: str, world_size: int = 2, **env: str
    ) -> None:
        self.folder, self.run_id = folder, run_id
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
        common = clean | {
            "STABILITY_URL": url,
            "STABILITY_DIR": str(folder),
            "STABILITY_RUN_ID": run_id,
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
        }
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(_PROGRAMS / script), *arguments],
                env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world_size)
        ]

    def outputs(self, timeout_s: float = 120) -> list[list[str]]:
        """Wait for all ranks to end well; return the lines that each printed."""
        found = []
        for process in self.processes:
            out, err = process.communicate(timeout=timeout_s)
            assert process.returncode == 0, err
            found.append(out.split("\n"))
        return found

    def kill(self) -> None:
        """kill -9 what still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def agent_pid(folder: Path, run_id: str) -> int:
    """Return the pid of the run's agent on this node."""
    file = folder / run_id / "agent" / "agent.json"
    return int(wait_until(lambda: file.exists() and json.loads(file.read_text()).get("pid"), 20, "an agent runs"))


def end_agents(folder: Path, spools: str = "*") -> None:
    """End the agents that still work in spools in ``folder``, by the process ids that they wrote themselves.

    An agent whose server is gone tries to deliver for minutes, beside all tests that follow.
    """
    for state in folder.glob(f"{spools}/agent/agent.json"):
        try:
            pid = int(json.loads(state.read_bytes())["pid"])
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError, KeyError):
            continue  # it has ended
        if str(folder).encode() in command:
            os.kill(pid, signal.SIGKILL)
