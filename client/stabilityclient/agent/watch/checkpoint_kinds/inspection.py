"""Looks at a checkpoint: finds its kind and asks the file of that kind."""

from __future__ import annotations

import os
import stat

from stabilityclient.agent.watch.checkpoint_kinds.dcp import inspect_dcp, is_dcp
from stabilityclient.agent.watch.checkpoint_kinds.deepspeed import inspect_tag, is_tag, tag_of
from stabilityclient.agent.watch.checkpoint_kinds.found import Folder, Found, Inspection, inspection_of, listed
from stabilityclient.agent.watch.checkpoint_kinds.hugging_face import inspect_hugging_face, is_hugging_face
from stabilityclient.agent.watch.checkpoint_kinds.megatron import inspect_megatron, is_megatron
from stabilityclient.agent.watch.checkpoint_kinds.one_file import damage, inspect_file

__all__ = ["inspect", "inspect_listed"]

#: Lightning's addition to a sharded checkpoint (strategies FSDP and ModelParallel).
_META = "meta.pt"


def inspect(path: str, world_size: int | None = None) -> Inspection | None:
    """Return the inspection of a path, None without a readable checkpoint.

    Args:
        path: of a file or folder.
        world_size: ranks of the job that announced it, None if unknown.
    """
    try:
        state = os.stat(path)
        if stat.S_ISDIR(state.st_mode):
            return inspect_listed(listed(path), None, world_size)
        name = os.path.basename(path)
        folder = Folder(os.path.dirname(path), {name: state.st_size})
        if not stat.S_ISREG(state.st_mode):  # a pipe or device would wait, or never end
            return inspection_of(Found("unknown", judged=False), folder.sizes)
        return inspect_listed(folder, name, world_size)
    except OSError:
        return None  # removed meanwhile, or not for us


def inspect_listed(folder: Folder, name: str | None, world_size: int | None = None) -> Inspection:
    """Return the inspection of a folder, or of its one file ``name``. Raises OSError where a file can't be read."""
    found = _in_folder(folder, world_size) if name is None else inspect_file(folder, name)
    return inspection_of(found, folder.sizes)


def _in_folder(folder: Folder, world_size: int | None) -> Found:
    if is_hugging_face(folder):
        return inspect_hugging_face(folder, world_size)
    if is_megatron(folder):
        return inspect_megatron(folder)
    if is_dcp(folder):
        found = inspect_dcp(folder)
        if _META in folder or folder.path.endswith(".ckpt"):
            found.kind = "lightning"
            wrong = folder.wrong(_META) or damage(folder, _META)
            found.bad |= {_META: wrong} if wrong else {}
        return found
    if is_tag(folder):
        return inspect_tag(folder)
    tag = tag_of(folder)
    if tag is not None and (is_tag(tag) or not tag.sizes):
        found = inspect_tag(tag)
        name = tag.path.rpartition("/")[2]
        found.bad = {f"{name}/{file}": wrong for file, wrong in found.bad.items()}
        if not tag.sizes:
            found.bad["latest"] = f"of {name}, which is missing"
        return found
    return Found("unknown", judged=False)
