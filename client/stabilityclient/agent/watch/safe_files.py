"""Reads files that another process wrote: bounded, without ever waiting, also with another kind of file there.

A FIFO would block its reader, a device would never end, and a file meant to be small may have a gigabyte.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

__all__ = ["read_object", "read_part"]

#: Longest JSON file of a rank that is parsed, bytes: ``probe.json`` has two texts of 60,000 characters at most.
MAX_OBJECT_BYTES = 4 * 1024 * 1024


def read_part(path: Path, begin: int, max_bytes: int) -> tuple[bytes, int]:
    """Return at most ``max_bytes`` of a regular file, and its size.

    Args:
        begin: offset of the first byte; below 0: the last ``max_bytes``.

    Raises:
        OSError: it can't be read, or is no regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(f"{path.name} is no regular file")
        at = begin if begin >= 0 else max(0, facts.st_size - max_bytes)
        parts, left = [], max_bytes
        while left and (part := os.pread(fd, left, at)):
            parts.append(part)
            at, left = at + len(part), left - len(part)
        return b"".join(parts), facts.st_size
    finally:
        os.close(fd)


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        OSError: it can't be read. ValueError: it holds none, or more than MAX_OBJECT_BYTES.
    """
    data, size = read_part(path, 0, MAX_OBJECT_BYTES)
    if size > MAX_OBJECT_BYTES:
        raise ValueError(f"{path.name} has {size} bytes, expected at most {MAX_OBJECT_BYTES}")
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise ValueError(f"{path.name} is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds no JSON object")
    return value
