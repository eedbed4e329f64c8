"""The agent's own stream of records: deaths, stacks, GPUs, lost checkpoints. Spooled and numbered like a rank's."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stabilityclient.agent.sources import Source
from stabilityclient.arguments import MAX_STEP
from stabilityclient.spool import SpoolWriter
from stabilityclient.start import start_ticks, write_whole

__all__ = ["MAX_WAITING_BYTES", "MAX_WAITING_EVENTS", "AgentEvents", "within_limits"]

#: Events that wait in memory while the disk is full, and their bytes of JSON; the oldest ones go first, counted.
MAX_WAITING_EVENTS = 256
MAX_WAITING_BYTES = 4 * 1024 * 1024
#: Longest text, characters: stacks have 60,000; the server takes 100,000.
MAX_TEXT_CHARS = 60_000
#: Deepest nesting; the server takes 20 levels.
MAX_DEPTH = 16
#: Longest text and list of an event that is too long as a whole.
SHORT_CHARS, SHORT_ITEMS = 15_000, 100


class AgentEvents:
    """Writes to ``sources/a<start in hex ns>-<pid>``.

    Room for the first records is reserved by ``reserve``: events of a full disk must be reported too.
    Events that find no room wait in memory for it, and are reported with the time when they happened.

    Args:
        run_folder: of the run on this node. node: its name. limit_bytes: of all spools of the run here.
        log: takes a text when records are dropped: a full disk must not keep the agent from delivering the rest.

    Attributes:
        dropped: records that never found room.
        error: why there is no room now; empty while there is.
    """

    def __init__(self, run_folder: Path, node: str, limit_bytes: int, log: Callable[[str], None]) -> None:
        started_ns = time.time_ns()
        #: Unix seconds of this agent's start.
        self.started = started_ns / 1e9
        self.name = f"a{started_ns:x}-{os.getpid()}"
        self._home = run_folder / "sources" / self.name
        self.node = node
        self._limit_bytes = limit_bytes
        self._log = log
        self._spool: SpoolWriter | None = None
        self._waiting: deque[tuple[str, int | None, float, dict[str, Any], int]] = deque()
        self._waiting_bytes = 0
        self.dropped = 0
        self.error = ""

    def event(self, kind: str, step: int | None, data: dict[str, Any]) -> None:
        """Append one event at the time of now, or let it wait for room; a ``step`` below 0 is none."""
        data = within_limits(data)
        step = step if step is not None and 0 <= step <= MAX_STEP else None
        size = len(json.dumps(data, default=str))
        self._waiting.append((kind, step, time.time(), data, size))
        self._waiting_bytes += size
        self.flush()
        while len(self._waiting) > MAX_WAITING_EVENTS or self._waiting_bytes > MAX_WAITING_BYTES:
            self._waiting_bytes -= self._waiting.popleft()[4]
            self.dropped += 1

    def flush(self) -> None:
        """Append the waiting events, oldest first, as far as there is room."""
        while self._waiting:
            kind, step, when, data, size = self._waiting[0]
            spool = self.reserve()
            if spool is None:
                return
            try:
                if not _append(spool, kind, step, when, data):
                    return
            except ValueError as error:  # a defect of this package, and no reason to end
                self._log(f"an event is dropped: {error}")
                self.dropped += 1
            self.error = ""
            self._waiting.popleft()
            self._waiting_bytes -= size

    def row(self, step: int, metrics: dict[str, float]) -> None:
        """Append the values of one sample; they are dropped where there is no room: the next one is newer."""
        spool = self.reserve()
        if spool is None or not spool.append_row(tuple(metrics), step, time.time(), metrics.values()):
            self.dropped += 1

    def confirmed(self, read: Source | None) -> bool:
        """Whether all reported events are confirmed; ``read`` is this source in delivery, None before that.

        It does not count records appended after its last read.
        """
        return not self._waiting and (self._spool is None or (read is not None and read.acked >= self._spool.last_seq))

    def close(self) -> None:
        """Unmap; the files stay."""
        if self._spool is not None:
            self._spool.close()

    def reserve(self) -> SpoolWriter | None:
        """Make the files, with room for the first records; return their writer, None where there is no room."""
        if self._spool is not None:
            return self._spool
        pid = os.getpid()
        info = {
            "source": self.name,
            "node": self.node,
            "pid": pid,
            "started": self.started,
            "start_ticks": start_ticks(pid),
        }
        spool = None
        try:
            self._home.mkdir(0o700, parents=True, exist_ok=True)
            spool = SpoolWriter(str(self._home), self._limit_bytes, self._no_room)
            write_whole(str(self._home / "source.json"), json.dumps(info).encode())
        except OSError as error:
            if spool is not None:
                spool.close()
            self._no_room(f"no room for the agent's own records: {error.strerror or error}")
            return None
        self._spool = spool
        return spool

    def _no_room(self, text: str) -> None:
        self.error = text
        self._log(text)


def _append(spool: SpoolWriter, kind: str, step: int | None, when: float, data: dict[str, Any]) -> bool:
    try:
        return spool.append_event(kind, step, when, data)
    except ValueError:  # too long as a whole
        return spool.append_event(kind, step, when, within_limits(data, short=True))


def within_limits(value: Any, *, short: bool = False, depth: int = MAX_DEPTH) -> Any:
    """Return ``value`` as JSON and MessagePack can hold it; the excess is cut.

    One text that is too long or too deep would hold up all that follows it.

    Args:
        short: cut long texts at their beginning and long lists at their end. depth: levels that are left.
    """
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)[:40]
    if isinstance(value, str):
        # Of stacks the end matters. Half a surrogate pair comes from file names that are no UTF-8.
        return value[-(SHORT_CHARS if short else MAX_TEXT_CHARS) :].encode("utf-8", "replace").decode()
    if depth <= 0 or not isinstance(value, dict | list | tuple):
        return str(value)[:200].encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {
            within_limits(str(key)[:200]): within_limits(each, short=short, depth=depth - 1)
            for key, each in value.items()
        }
    return [within_limits(each, short=short, depth=depth - 1) for each in (value[:SHORT_ITEMS] if short else value)]
