"""The whole server as a process of its own, for benchmarks: started, asked, its memory and CPU time read from /proc."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from redis import Redis

from stabilitybackend.storage.redis_server.embedded import running_url

__all__ = ["HANDLE", "ServerProcess", "Usage", "free_port", "usage"]

#: Seconds until the server must answer; with ten million points in Redis it takes about a second to load.
START_TIMEOUT_S = 120.0
#: Seconds that a stop may take before the process is killed.
STOP_TIMEOUT_S = 30.0
#: Gives pages ``window.stability``: what is in them, for whoever measures.
HANDLE = Path(__file__).parents[2] / "tests" / "browser" / "handle.js"
_TICKS = os.sysconf("SC_CLK_TCK")


class Usage:
    """What a process has used so far.

    Attributes:
        cpu_s: CPU seconds, user and system, all threads.
        rss_mib, peak_mib: resident memory now and at its greatest, MiB.
    """

    def __init__(self, cpu_s: float, rss_mib: float, peak_mib: float) -> None:
        self.cpu_s, self.rss_mib, self.peak_mib = cpu_s, rss_mib, peak_mib


def usage(pid: int) -> Usage:
    """Return what process ``pid`` has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    memory = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    kib = {name: int(memory[name].split()[0]) for name in ("VmRSS", "VmHWM")}
    return Usage((int(fields[11]) + int(fields[12])) / _TICKS, kib["VmRSS"] / 1024, kib["VmHWM"] / 1024)


def free_port() -> int:
    """Return a TCP port that nobody uses now, below those that connections get by themselves (support/ports.py)."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no free port among 100 between 20000 and 32000")


class ServerProcess:
    """``stabilityboard up`` on a data folder, with its embedded Redis, from ``start`` to ``stop``; a context manager.

    Args:
        data_dir: kept between two starts.
        settings: environment variables besides those of this process.
        wrapper: words before the command, such as those of a profiler.
        port: to listen on each time; 0 takes a free one at every start.
    """

    def __init__(
        self,
        data_dir: Path,
        settings: dict[str, str] | None = None,
        wrapper: tuple[str, ...] = (),
        port: int = 0,
    ) -> None:
        self.data_dir = data_dir
        self._fixed_port = port
        self._settings = dict(settings or {})
        self._wrapper = wrapper
        self._process: subprocess.Popen[bytes] | None = None
        self._client: httpx.Client | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the server itself."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start and return once requests are answered."""
        self.port = self._fixed_port or free_port()
        command = [sys.executable, "-m", "stabilitybackend.cli", "up"]
        command += ["--port", str(self.port), "--data-dir", str(self.data_dir)]
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with open(self.data_dir.parent / f"{self.data_dir.name}.log", "ab") as log:
            self._process = subprocess.Popen(
                [*self._wrapper, *command], env=os.environ | self._settings, stdout=log, stderr=log
            )
        self._client = httpx.Client(base_url=self.url, timeout=60.0)
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                last = Path(log.name).read_text(errors="replace").strip().splitlines()[-1:]
                raise SystemExit(f"the server ended with {self._process.returncode}: {' '.join(last)}")
            try:
                if self._client.get("/healthz").status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
        self.stop()
        raise SystemExit(f"the server did not answer within {START_TIMEOUT_S:.0f} s; see {log.name}")

    def kill(self) -> None:
        """kill -9; ``start`` brings it back."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop; the data folder stays."""
        if self._client is not None:
            self._client.close()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def get(self, path: str, **params: Any) -> Any:
        """Return the JSON of ``GET /api/v1{path}``; an error status ends the benchmark."""
        response = self.ask(path, **params)
        return response.json()

    def ask(self, path: str, **params: Any) -> httpx.Response:
        """Return the answer of ``GET /api/v1{path}``, unread; an error status ends the benchmark."""
        assert self._client is not None
        response = self._client.get(f"/api/v1{path}", params=params)
        if response.status_code != 200:
            raise SystemExit(f"GET {response.url} answered {response.status_code}: {response.text[:500]}")
        return response

    def ping_ms(self) -> float:
        """Return the ms until ``GET /healthz`` was answered: a request with next to nothing in it."""
        assert self._client is not None
        begin = time.perf_counter()
        self._client.get("/healthz").raise_for_status()
        return (time.perf_counter() - begin) * 1e3

    def try_ask(self, path: str) -> httpx.Response | None:
        """Return the answer of ``GET /api/v1{path}``, None where the server does not have it (an older one)."""
        assert self._client is not None
        response = self._client.get(f"/api/v1{path}")
        return response if response.status_code == 200 else None

    def redis(self) -> Redis:
        """Return a client of the embedded server."""
        url = running_url(self.data_dir)
        if url is None:
            raise SystemExit(f"no Redis runs in {self.data_dir}")
        return Redis.from_url(url)

    def redis_socket(self) -> str:
        """Return the path of the embedded server's socket."""
        url = running_url(self.data_dir)
        assert url is not None
        return url.removeprefix("unix://")

    def redis_pid(self) -> int:
        """Return the process id of the embedded server."""
        with self.redis() as redis:
            info: Any = redis.info("server")
        return int(info["process_id"])
