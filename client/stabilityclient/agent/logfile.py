"""The agent's log: standard error, which its starter pointed at ``agent.log``; bounded in rate and in size."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TextIO

from stabilityclient.secrets.texts import clean_text
from stabilityclient.sidecar import LOG_BYTES

__all__ = ["AgentLog"]

#: Seconds between two lines with the same beginning: a server that is away for a week must not fill the disk.
REPEAT_S = 60.0
#: Characters that make two lines the same, and lines that are remembered.
SAME_CHARS = 60
MAX_REMEMBERED = 100


class AgentLog:
    """Writes lines with a time; the same line at most once a minute; the file is emptied when it is too long."""

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.time) -> None:
        self._stream = stream
        self._now = now
        self._written: dict[str, float] = {}

    def write(self, text: str) -> None:
        """Write one line; never raises."""
        now = self._now()
        key = text[:SAME_CHARS]
        if now - self._written.get(key, -REPEAT_S) < REPEAT_S:
            return
        if len(self._written) >= MAX_REMEMBERED:
            self._written.clear()
        self._written[key] = now
        try:
            fd = self._stream.fileno()
            if os.fstat(fd).st_size > LOG_BYTES:
                os.ftruncate(fd, 0)  # opened for appending: the next line is the first
        except (OSError, ValueError):
            pass  # a terminal or a pipe
        try:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
            print(f"{stamp} {clean_text(text)}", file=self._stream, flush=True)
        except (OSError, ValueError):
            pass  # the disk is full: the log is the least of it
