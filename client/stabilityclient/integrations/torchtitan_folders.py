"""What of ours lies in torchtitan's checkpoint folders: scale of the rates and batches that were left out.

A file beside those of torch.distributed.checkpoint: as a part of the checkpoint it would be one that torchtitan alone
could not load any more.
"""

from __future__ import annotations

import json
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["discard_later", "read", "write"]

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
        return {"lr_scale": 1.0, "skips": None}


def discard_later(folder: str, step: int) -> None:
    """Let checkpoints of later steps be none: torchtitan would go on from the highest number when it starts again."""
    for name in os.listdir(folder):
        match = re.search(r"step-(\d+)", name)
        metadata = os.path.join(folder, name, _METADATA)
        if match and int(match[1]) > step and os.path.isfile(metadata):
            os.replace(metadata, os.path.join(folder, name, _LEFT))
