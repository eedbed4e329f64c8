"""The agent's own files: ``agent.json`` (its activity) and ``cursor.json`` (the confirmed records, the watches)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from stabilityclient.sidecar import read_json
from stabilityclient.start import write_whole

__all__ = ["StateFile", "read_as"]

_T = TypeVar("_T")


def read_as(value: object, kind: type[_T]) -> _T:
    """Return a part of an agent's file; an empty one where it has another type."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return kind()


class StateFile:
    """One JSON object on disk, written whole and only when it changed.

    Attributes:
        error: why the newest value is not on disk; empty while it is.
    """

    def __init__(self, path: Path, mode: int = 0o600) -> None:
        self._path = path
        self._mode = mode
        self._written = b""
        self.error = ""

    def read(self) -> dict[str, Any]:
        """Return the content, {} without a readable one."""
        return read_json(str(self._path))

    def write(self, value: dict[str, Any]) -> bool:
        """Write ``value``; True when it is on disk, False when the disk is full: the next call tries again."""
        data = json.dumps(value).encode()
        if data == self._written:
            return True
        try:
            write_whole(str(self._path), data, mode=self._mode)
        except OSError as error:
            self.error = f"{self._path.name} can't be written: {error.strerror or error}"
            return False
        self._written = data
        self.error = ""
        return True
