"""The agent's own stream of records: deaths, GPUs, lost checkpoints. Spooled and numbered like that of a rank."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stabilityclient.spool import MAX_SET_NAMES, SpoolWriter
from stabilityclient.start import start_ticks, write_whole

__all__ = ["OwnSource"]


class OwnSource:
    """Writes to ``sources/a<start in hex ns>-<pid>``.

    Args:
        run_folder: of the run on this node. node: host name. limit_bytes: of all spools of the run here.
        log: takes a text when records are dropped.

    Raises:
        OSError: its files can't be made.
    """

    def __init__(self, run_folder: Path, node: str, limit_bytes: int, log: Callable[[str], None]) -> None:
        pid = os.getpid()
        started_ns = time.time_ns()
        self.name = f"a{started_ns:x}-{pid}"
        home = run_folder / "sources" / self.name
        home.mkdir(parents=True)
        self._spool = SpoolWriter(str(home), limit_bytes, log)
        info = {
            "source": self.name,
            "node": node,
            "pid": pid,
            "started": started_ns / 1e9,
            "start_ticks": start_ticks(pid),
        }
        write_whole(str(home / "source.json"), json.dumps(info).encode())

    def event(self, kind: str, step: int | None, data: dict[str, Any]) -> None:
        """Append one event at the time of now."""
        self._spool.append_event(kind, step, time.time(), data)

    def row(self, step: int, metrics: dict[str, float]) -> None:
        """Append the values of one look."""
        names, values = tuple(metrics), tuple(metrics.values())
        now = time.time()
        for at in range(0, len(names), MAX_SET_NAMES):
            self._spool.append_row(names[at : at + MAX_SET_NAMES], step, now, values[at : at + MAX_SET_NAMES])

    def close(self) -> None:
        """Unmap; the files stay."""
        self._spool.close()
