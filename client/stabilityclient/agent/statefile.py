"""The agent's own files: ``agent.json`` (what it does) and ``cursor.json`` (what is confirmed, what it watches)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stabilityclient.sidecar import read_json
from stabilityclient.start import write_whole

__all__ = ["StateFile", "texts"]


def texts(value: object) -> list[str]:
    """Return the texts of a list, or the names of an object; nothing of what is neither, whoever wrote it."""
    return [each for each in value if isinstance(each, str)] if isinstance(value, list | dict) else []


class StateFile:
    """One JSON object on disk, written whole and only when it changed.

    Args:
        path: of the file.

    Attributes:
        error: why the newest value is not on disk; empty while it is.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = b""
        self.error = ""

    def read(self) -> dict[str, Any]:
        """Return what is there, {} where there is nothing that can be read."""
        return read_json(str(self._path))

    def write(self, value: dict[str, Any]) -> bool:
        """Write ``value``; True when it is on disk, False when the disk is full: the next call tries again."""
        data = json.dumps(value).encode()
        if data == self._written:
            return True
        try:
            write_whole(str(self._path), data)
        except OSError as error:
            self.error = f"{self._path.name} can't be written: {error.strerror or error}"
            return False
        self._written = data
        self.error = ""
        return True
