"""A node of GPUs for tests: a real process that watches our NVML through the real pynvml, and what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.nvml.fake_nvml import FakeNvml
from support.waiting import wait_until

__all__ = ["Node"]

_PROGRAM = Path(__file__).parents[2] / "support" / "nvml" / "watched_node.py"
_POLL_S = 0.1


class Node:
    """A node of GPUs and a process that watches it."""

    def __init__(self, nvml: FakeNvml, folder: Path, *ranks: str, environ: dict[str, str] | None = None) -> None:
        self.nvml = nvml
        self.gpu = nvml.gpu
        self.kmsg = folder / "kmsg"
        self.kmsg.write_bytes(b"")
        self.said: list[tuple[str, Any]] = []
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        self.process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), str(_POLL_S), *ranks],
            env=clean | nvml.environ | {"STABILITY_KMSG": str(self.kmsg)} | (environ or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            self.said.append((said["kind"], said["data"]))

    def close(self) -> float:
        """End the process as its parent's death does; return how long it took, seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        started = time.monotonic()
        self.process.stdin.close()
        try:
            assert self.process.wait(60) == 0
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join(5)
            self.process.stdout.close()
        return time.monotonic() - started

    def all(self, kind: str) -> list[Any]:
        """Return what was said of one kind."""
        return [data for said, data in list(self.said) if said == kind]

    def wait(self, kind: str, condition: Callable[[Any], Any] = bool, what: str = "") -> Any:
        """Return the first thing said of a kind for which ``condition`` holds."""
        return wait_until(
            lambda: next((data for data in self.all(kind) if condition(data)), None), 15, f"{kind}: {what}"
        )

    def wait_change(self, what: str, state: str, count: int = 1) -> Any:
        """Return the ``count``-th ``gpu`` event of this kind."""

        def found() -> Any:
            events = [d for d in self.all("gpu") if (d["what"], d["state"]) == (what, state)]
            return events[count - 1] if len(events) >= count else None

        return wait_until(found, 15, f"{what} {state}, number {count}")

    def wait_state(self, condition: Callable[[Any], Any], what: str) -> Any:
        """Return the newest state once ``condition`` holds of it."""
        return wait_until(lambda: (s := self.all("state")) and condition(s[-1]) and s[-1], 15, what)

    def wait_rows(self, more: int = 2) -> dict[str, float]:
        """Return the newest row after so many more have come."""
        before = len(self.all("row"))
        return wait_until(lambda: len(r := self.all("row")) >= before + more and r[-1], 15, "rows go on")

    def wait_listening(self, before: int = 0) -> None:
        """Return when the process waits for events."""
        wait_until(lambda: self.nvml.waits > before, 15, "the process waits for events")

    def write_kernel(self, text: str) -> None:
        """Write a line to the node's kernel log."""
        with open(self.kmsg, "ab") as file:
            file.write(f"3,1,{time.monotonic_ns() // 1000},-;{text}\n".encode())
