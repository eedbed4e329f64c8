"""Keeps the output of a child process in a file that can't grow without bound."""

from __future__ import annotations

import logging
import os
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO

__all__ = ["BoundedLog"]

#: Lines of the end that ``tail`` gives: enough to see why a server ended.
_TAIL_LINES = 6
_TAIL_BYTES = 4096


class BoundedLog(RotatingFileHandler):
    """Appends to ``path`` and moves it to ``<path>.1`` when it is full, so at most twice ``max_bytes`` are kept.

    A write that fails (full disk) is dropped: a log must never stop what it logs.

    Args:
        path: the file; made on the first write.
        max_bytes: size at which the file is moved away.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        super().__init__(path, maxBytes=max_bytes, backupCount=1, encoding="utf-8", delay=True)
        self.path = path

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the line."""

    def write(self, line: str) -> None:
        """Append a line."""
        self.handle(logging.makeLogRecord({"msg": line}))

    def pump(self, source: IO[bytes]) -> None:
        """Append all that comes out of ``source`` until it ends, and close it."""
        with source:
            for line in source:
                self.write(line.decode(errors="replace").rstrip("\n"))

    def tail(self) -> str:
        """Return the last lines, or an empty string."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-_TAIL_LINES:])
