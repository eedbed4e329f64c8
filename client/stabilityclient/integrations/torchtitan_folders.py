"""What of ours lies in torchtitan's checkpoint folders: the rates' scale, what was left out, who ordered it last.

A file beside those of torch.distributed.checkpoint: as a part of the checkpoint it would be one that torchtitan alone
could not load any more.
"""

from __future__ import annotations

import json
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["discard_later", "newest", "read", "write"]

_FILE = "stabilityboard.json"
_METADATA = ".metadata"
#: What a folder of steps that were left has in its place: torchtitan takes it for no checkpoint.
_LEFT = ".metadata.left"


def write(path: str, kept: dict[str, Any]) -> None:
    """Write into a checkpoint's folder.

    Raises:
        OSError: it can't be written.
    """
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, _FILE), "w") as file:
        json.dump(kept, file)


def read(path: str) -> dict[str, Any]:
    """Return what was written; of a checkpoint of torchtitan alone, that nothing was changed."""
    try:
        with open(os.path.join(path, _FILE)) as file:
            return dict(json.load(file))
    except FileNotFoundError:
        return {"lr_scale": 1.0, "skips": None, "ordered": ""}


def discard_later(folder: str, step: int) -> None:
    """Let checkpoints of later steps be none: torchtitan would go on from the highest number when it starts again."""
    for later, path in _checkpoints(folder):
        if later > step:
            os.replace(os.path.join(path, _METADATA), os.path.join(path, _LEFT))


def newest(folder: str) -> int:
    """Return the step from which torchtitan goes on by itself, 0 where there is none."""
    return max((step for step, _ in _checkpoints(folder)), default=0)


def _checkpoints(folder: str) -> Iterator[tuple[int, str]]:
    """Yield step and folder of each checkpoint that torchtitan takes for one."""
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        match = re.search(r"step-(\d+)", name)
        path = os.path.join(folder, name)
        if match and os.path.isfile(os.path.join(path, _METADATA)):
            yield int(match[1]), path
