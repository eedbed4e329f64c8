"""Keeps what the tests of this folder compare with: compact files, written anew on purpose only (README.md)."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "WRITE", "read", "without_words", "write"]

FOLDER = Path(__file__).parent
#: Whether answers are written instead of compared.
WRITE = os.environ.get("STABILITY_GOLDEN") == "write"


def read(name: str) -> Any:
    """Return a stored answer; floats come back to the last bit."""
    return json.loads(gzip.decompress((FOLDER / name).read_bytes()))


def write(name: str, answer: Any) -> None:
    """Store an answer; the same answer gives the same bytes."""
    text = json.dumps(answer, separators=(",", ":"), sort_keys=True)
    (FOLDER / name).write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def without_words(value: Any) -> Any:
    """Return a JSON value with an ellipsis for each string that has a blank in it."""
    if isinstance(value, dict):
        return {key: without_words(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_words(item) for item in value]
    return "..." if isinstance(value, str) and " " in value else value
