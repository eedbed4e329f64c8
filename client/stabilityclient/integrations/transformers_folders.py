"""Checkpoint folders of steps that a rollback left: Trainer would take the highest number for the newest."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["leave", "newest"]

#: In the output folder: what was left, and when it was written. A folder that is written again is left no longer.
_FILE = "stabilityboard.json"
_STATE = "trainer_state.json"


def leave(output: str, to_step: int) -> None:
    """Note that the checkpoints of later steps belong to a branch that was left.

    Raises:
        OSError: the folder can't be written.
    """
    known = _checkpoints(output)
    left = _left(output) | {name: at for step, name, at in known if step > to_step}
    for step, name, _ in known:
        if step == to_step:
            left.pop(name, None)  # a rollback was undone: this one is of no branch that was left any more
    with open(os.path.join(output, _FILE), "w") as file:
        json.dump(left, file)


def newest(output: str) -> str | None:
    """Return the newest whole checkpoint that was not left, None where there is none."""
    left = _left(output)
    kept = max((one for one in _checkpoints(output) if left.get(one[1]) != one[2]), default=None)
    return os.path.join(output, kept[1]) if kept else None


def _checkpoints(output: str) -> list[tuple[int, str, int]]:
    """Return step, name and time of writing of each whole checkpoint."""
    found = []
    for name in os.listdir(output) if os.path.isdir(output) else ():
        kind, _, step = name.rpartition("-")
        state = os.path.join(output, name, _STATE)
        if kind == "checkpoint" and step.isdecimal() and os.path.exists(state):
            found.append((int(step), name, os.stat(state).st_mtime_ns))
    return found


def _left(output: str) -> dict[str, Any]:
    try:
        with open(os.path.join(output, _FILE)) as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        return {}
