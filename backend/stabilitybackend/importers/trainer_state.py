"""Reads ``trainer_state.json`` of Hugging Face's Trainer: the entries of its ``log_history``, ``eval_`` keys and
all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stabilitybackend.errors import BadRequest
from stabilitybackend.importers.batches import Batch, Grouper, Who
from stabilitybackend.importers.cells import NotAStep, as_step, row_of
from stabilitybackend.importers.troubles import Reading, shown

__all__ = ["MAX_FILE_BYTES", "read_trainer_state", "trainer_state"]

#: The file is read whole: it is one JSON object. A million log entries are about 150 MiB.
MAX_FILE_BYTES = 1 << 30


def trainer_state(path: Path) -> dict[str, Any]:
    """Return the file's content.

    Raises:
        BadRequest: it is too large, no JSON, or has no ``log_history``.
    """
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise BadRequest(
            f"{path} has {size >> 20} MiB, expected at most {MAX_FILE_BYTES >> 20} MiB for one JSON object"
        )
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadRequest(f"{path} is no JSON: {error}", hint="was it cut while it was written?") from error
    if not isinstance(content, dict) or not isinstance(content.get("log_history"), list):
        raise BadRequest(f"{path} has no list log_history, expected the trainer_state.json of Hugging Face's Trainer")
    return content


def read_trainer_state(
    path: Path, number: int, reading: Reading, *, rank: int = 0, prefix: str = "", step_key: str | None = None
) -> Iterator[Batch]:
    """Yield the log entries.

    Args:
        number: of the file in its run. rank: whose entries these are. prefix: put before every name.
        step_key: name of the step's column; None: ``step``.

    Raises:
        BadRequest: see ``trainer_state``.
    """
    history = trainer_state(path)["log_history"]
    groups = Grouper(timed=False)
    base = path.stat().st_mtime - len(history)
    for item, entry in enumerate(history, 1):
        place = f"log_history[{item - 1}]"
        if not isinstance(entry, dict):
            reading.trouble(path, place, f"{shown(entry)} is no object")
            continue
        try:
            step = as_step(entry.get(step_key or "step"))
        except NotAStep as error:
            reading.trouble(path, place, str(error))
            continue
        pairs = ((prefix + key, value) for key, value in entry.items() if key != (step_key or "step"))
        names, values = row_of(pairs, reading, path, place)
        yield from groups.add(Who(number, rank), item, names, step, base + item, values)
    yield from groups.flush()
    reading.bytes_read += path.stat().st_size
    reading.end_of_file(path, groups.numeric)
    reading.note(f"{path}: no times, so each entry counts one second, up to when the file was last written")
