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
    """Writes to ``sources/a<start in hex ns>-<pid>``; made at the first record that finds room on the disk.

    Args:
        run_folder: of the run on this node. node: host name. limit_bytes: of all spools of the run here.
        log: takes a text when records are dropped: a full disk must not keep the agent from delivering what is there.
    """

    def __init__(self, run_folder: Path, node: str, limit_bytes: int, log: Callable[[str], None]) -> None:
        self._started_ns = time.time_ns()
        self.name = f"a{self._started_ns:x}-{os.getpid()}"
        self._home = run_folder / "sources" / self.name
        self._node = node
        self._limit_bytes = limit_bytes
        self._log = log
        self._spool: SpoolWriter | None = None
        #: Records that found no room.
        self.dropped = 0

    def event(self, kind: str, step: int | None, data: dict[str, Any]) -> None:
        """Append one event at the time of now."""
        spool = self._open()
        if spool is None or not spool.append_event(kind, step, time.time(), data):
            self.dropped += 1

    def row(self, step: int, metrics: dict[str, float]) -> None:
        """Append the values of one look."""
        spool = self._open()
        names, values = tuple(metrics), tuple(metrics.values())
        now = time.time()
        for at in range(0, len(names), MAX_SET_NAMES):
            end = at + MAX_SET_NAMES
            if spool is None or not spool.append_row(names[at:end], step, now, values[at:end]):
                self.dropped += 1

    def close(self) -> None:
        """Unmap; the files stay."""
        if self._spool is not None:
            self._spool.close()

    def _open(self) -> SpoolWriter | None:
        if self._spool is not None:
            return self._spool
        pid = os.getpid()
        info = {
            "source": self.name,
            "node": self._node,
            "pid": pid,
            "started": self._started_ns / 1e9,
            "start_ticks": start_ticks(pid),
        }
        try:
            self._home.mkdir(parents=True, exist_ok=True)
            spool = SpoolWriter(str(self._home), self._limit_bytes, self._log)
            write_whole(str(self._home / "source.json"), json.dumps(info).encode())
        except OSError as error:
            self._log(f"no room for the agent's own records: {error}")
            return None
        self._spool = spool
        return spool
