"""Checkpoints of each kind, written by torch itself: imported when one is written, as that takes seconds of CPU."""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path

__all__ = ["VALUES", "WRITERS", "write_safetensors"]

#: Numbers in each tensor: 0, 1, 2 and so on.
VALUES = 4_096


def write_safetensors(path: Path) -> Path:
    """Write a file of one tensor: length of the header, header, data."""
    data = array("f", range(VALUES)).tobytes()
    tensor = {"dtype": "F32", "shape": [VALUES], "data_offsets": [0, len(data)]}
    header = json.dumps({"w": tensor, "__metadata__": {"format": "pt"}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


def _write(name: str, path: Path) -> Path:
    from support.agent import torch_checkpoints

    write: Callable[[Path], Path] = getattr(torch_checkpoints, name)
    return write(path)


#: Name -> what writes a whole one into a folder and returns its path.
WRITERS: dict[str, Callable[[Path], Path]] = {
    "torch": partial(_write, "file"),
    "safetensors": lambda path: write_safetensors(path / "model.safetensors"),
    **{
        name: partial(_write, name)
        for name in (
            "dcp",
            "dcp_own",
            "zero",
            "zero_root",
            "hugging_face",
            "hugging_face_shards",
            "lightning",
            "lightning_shards",
            "megatron",
            "megatron_ranks",
        )
    },
}
