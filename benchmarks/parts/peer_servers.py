"""Real servers of others that rows can be pushed to: Prometheus (remote write) and Trackio, each a process."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from parts.server_process import free_port, usage

__all__ = ["PeerError", "Prometheus", "Row", "Trackio"]

#: rank, step, unix seconds, value of each metric.
Row = tuple[int, int, float, dict[str, float]]
START_S = 90.0
TOKEN = "benchmark"


class PeerError(Exception):
    """A peer can't be run here."""


class _Peer:
    """A server of somebody else, while the context lasts; ``refused``: what it answered to the last push, "" if ok."""

    def __init__(self, command: list[str], ready: str, port: int, env: dict[str, str], log: Path) -> None:
        self._command, self._ready, self._env, self._log = command, ready, env, log
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120.0)
        self.refused = ""

    def __enter__(self) -> Any:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, env=os.environ | self._env, stdout=log, stderr=log)
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._process.poll() is None:
            try:
                if self._client.get(self._ready).status_code == 200:
                    return self
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        self.__exit__(None, None, None)
        lines = self._log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        raise PeerError(f"it did not start: {lines[-1][:150]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        self._process.terminate()
        self._process.wait(30)

    def cpu_s(self) -> float:
        """Return what it has used so far."""
        return usage(self._process.pid).cpu_s

    def _post(self, path: str, content: bytes, headers: dict[str, str]) -> None:
        answer = self._client.post(path, content=content, headers=headers)
        self.refused = "" if answer.is_success else f"{answer.status_code}: {answer.text.strip()[:90]}"


class Prometheus(_Peer):
    """``prometheus --web.enable-remote-write-receiver``, the default storage."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("prometheus")
        if program is None:
            raise PeerError("there is no prometheus on the PATH (Debian: apt install prometheus)")
        port = free_port()
        folder.mkdir()
        (folder / "prometheus.yml").write_text("global: {}\n")
        command = [program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--web.enable-remote-write-receiver"]
        super().__init__(command, "/-/ready", port, {}, folder / "log")
        self._folder = folder

    @staticmethod
    def message(rows: Sequence[Row]) -> bytes:
        """Return a WriteRequest of rows: a series for each metric and rank. A step has no place in it but its time.

        Snappy of literals only: it is quick to read, so what it costs Prometheus is a lower bound.
        """
        series: dict[tuple[str, int], bytearray] = {}
        for rank, _, at, metrics in rows:
            for name, value in metrics.items():
                sample = b"\x09" + struct.pack("<d", value) + b"\x10" + _varint(int(at * 1000))
                series.setdefault((name, rank), bytearray()).extend(_field(2, sample))
        body = bytearray()
        for (name, rank), samples in series.items():
            labels = {"__name__": name, "rank": str(rank), "run": "peers"}
            head = b"".join(
                _field(1, _field(1, key.encode()) + _field(2, value.encode())) for key, value in sorted(labels.items())
            )
            body += _field(1, head + bytes(samples))
        return _snappy(bytes(body))

    def push(self, message: bytes) -> None:
        """Write, as Prometheus' own remote write does."""
        headers = {
            "Content-Encoding": "snappy", "Content-Type": "application/x-protobuf",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }  # fmt: skip
        self._post("/api/v1/write", message, headers)

    def kept(self, metric: str, rank: int, begin: float, end: float) -> list[tuple[float, float]]:
        """Return time and value of what it has of a metric, in its order."""
        span = f"{math.ceil(end - begin) + 2}s"
        query = {"query": f'{{__name__="{metric}",rank="{rank}"}}[{span}]', "time": repr(end + 1)}
        found = self._client.get("/api/v1/query", params=query).json()["data"]["result"]
        return [(float(at), float(value)) for at, value in found[0]["values"]] if found else []

    def disk_bytes(self) -> int:
        """Return what lies on its disk."""
        return _size(self._folder / "data")


class Trackio(_Peer):
    """``trackio.show``: its HTTP server over SQLite.

    Args:
        python: of an environment that has it.
    """

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        port = free_port()
        folder.mkdir()
        code = f"import trackio; trackio.show(open_browser=False, block_thread=True, server_port={port})"
        env = {"TRACKIO_DIR": str(folder / "data"), "TRACKIO_WRITE_TOKEN": TOKEN, "PYTHONPATH": ""}
        super().__init__([python, "-c", code], "/", port, env, folder / "log")
        self._folder = folder

    @staticmethod
    def message(rows: Sequence[Row]) -> bytes:
        """Return rows as its client sends them to ``bulk_log``: a run for each rank, an id for each row."""
        logs = [
            {
                "project": "peers", "run": f"rank-{rank}", "step": step, "log_id": f"{rank}-{step}-{at!r}",
                "metrics": {name: value if math.isfinite(value) else "NaN" for name, value in metrics.items()},
            }
            for rank, step, at, metrics in rows
        ]  # fmt: skip
        return json.dumps({"args": [], "kwargs": {"logs": logs, "hf_token": None}}).encode()

    def push(self, message: bytes) -> None:
        """Send, as its client does."""
        self._post("/api/bulk_log", message, {"Content-Type": "application/json", "X-Trackio-Write-Token": TOKEN})

    def kept(self, metric: str, rank: int, begin: float, end: float) -> list[tuple[float, float]]:
        """Return step and value of what it has of a metric, in its order."""
        asked = {"args": ["peers", f"rank-{rank}"], "kwargs": {}}
        found = self._client.post("/api/get_logs", json=asked).json()["data"]
        return [(float(row["step"]), float(row[metric])) for row in found if row.get(metric) is not None]

    def disk_bytes(self) -> int:
        """Return what lies on its disk."""
        return _size(self._folder / "data")


def _size(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _snappy(data: bytes) -> bytes:
    """Return a snappy block of literals (format_description.txt of google/snappy)."""
    out = bytearray(_varint(len(data)))
    for at in range(0, len(data), 65_536):
        part = data[at : at + 65_536]
        out += bytes([61 << 2]) + struct.pack("<H", len(part) - 1) + part
    return bytes(out)
