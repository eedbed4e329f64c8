"""Keeps the output of a child process in a file that can't grow without bound."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import IO

__all__ = ["BoundedLog"]

#: Lines of the end that ``tail`` gives: enough to see why a server ended.
_TAIL_LINES = 6
_TAIL_BYTES = 4096


class BoundedLog:
    """Appends to ``path`` and moves it to ``<path>.1`` when it is full, so at most twice ``max_bytes`` are kept.

    A write that fails (full disk) is dropped: a log must never stop what it logs.

    Args:
        path: the file; made on the first write.
        max_bytes: size at which the file is moved away.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        """Append ``data``."""
        with self._lock:
            try:
                if self._file is None:
                    self._file = self.path.open("ab", buffering=0)
                elif self._file.tell() > self._max_bytes:
                    self._file.close()
                    os.replace(self.path, self.path.with_name(self.path.name + ".1"))
                    self._file = self.path.open("ab", buffering=0)
                self._file.write(data)
            except OSError:
                pass

    def pump(self, source: IO[bytes]) -> None:
        """Append all that comes out of ``source`` until it ends, and close it."""
        with source:
            for line in source:
                self.write(line)

    def tail(self) -> str:
        """Return the last lines, or an empty string."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-_TAIL_LINES:])

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
