"""The folder ``checkpoint-N`` of Hugging Face's Trainer: weights, optimizer, schedule, random states, its own state."""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from stabilityclient.agent.watch.checkpoint_kinds.dcp import inspect_dcp
from stabilityclient.agent.watch.checkpoint_kinds.deepspeed import inspect_tag, tag_of
from stabilityclient.agent.watch.checkpoint_kinds.found import Folder, Found
from stabilityclient.agent.watch.checkpoint_kinds.one_file import damage

__all__ = ["inspect_hugging_face", "is_hugging_face"]

STATE = "trainer_state.json"
#: Files of weights, the first that is there counts: of a whole model, or of an adapter (PEFT).
_WEIGHTS = (
    "model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin", "pytorch_model_fsdp.bin"
)  # fmt: skip
#: They name the shards of weights that are too large for one file.
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SHARD = re.compile(r"(?:model|pytorch_model)-\d+-of-\d+\.(?:safetensors|bin)")
#: Sharded parts of FSDP: folders of torch.distributed.checkpoint.
_FSDP = ("pytorch_model_fsdp_0", "optimizer_0")
_RANDOM = re.compile(r"rng_state_(?P<rank>\d{1,9})\.pth")
_LARGEST_JSON_BYTES = 64 * 1024 * 1024
_SAVED_BY_TORCH = ("optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "rng_state.pth", "training_args.bin")


def is_hugging_face(folder: Folder) -> bool:
    """Whether a folder is one of a Trainer; its state is written last."""
    weights = any(name in folder for name in (*_WEIGHTS, *_INDEXES)) or any(map(_SHARD.fullmatch, folder.sizes))
    return STATE in folder or (weights and ("training_args.bin" in folder or "scheduler.pt" in folder))


def inspect_hugging_face(folder: Folder, world_size: int | None) -> Found:
    """Return the findings. Raises OSError where a file can't be read.

    Args:
        world_size: ranks of the job that announced it, each of which saves its random states; None: unknown.
    """
    found = Found("hugging_face", loads_with="any")
    tag, sharded = tag_of(folder), [folder.inner(name) for name in _FSDP]
    needed = {STATE, "scheduler.pt"}
    if tag is not None:
        needed -= {"scheduler.pt"}  # DeepSpeed keeps its own
        inner = inspect_tag(tag)
        found.loads_with = inner.loads_with
        found.bad |= {f"{tag.path.rpartition('/')[2]}/{name}": wrong for name, wrong in inner.bad.items()}
        if not tag.sizes:
            found.bad["latest"] = "of a folder that is missing"
    elif any(each.sizes for each in sharded):
        for name, each in zip(_FSDP, sharded, strict=True):
            found.bad |= {f"{name}/{file}": wrong for file, wrong in inspect_dcp(each).bad.items()}
    else:
        needed |= _weights(folder, found)
        needed |= {"optimizer.bin" if "optimizer.bin" in folder else "optimizer.pt"}
    ranks = {int(match["rank"]) for name in folder.sizes if (match := _RANDOM.fullmatch(name))}
    size = (world_size or max(ranks) + 1) if ranks else 1
    needed |= {f"rng_state_{rank}.pth" for rank in range(size)} if ranks else {"rng_state.pth"}
    found.world_size = None if not ranks and world_size not in (None, 1) else max([size, *(r + 1 for r in ranks)])
    for rank in sorted(ranks):
        if rank >= size:
            found.bad[f"rng_state_{rank}.pth"] = f"of another save: the job has {size} ranks"
    found.bad |= _damaged(folder, needed, found.bad.keys())
    return found


def _damaged(folder: Folder, needed: set[str], known: Collection[str]) -> dict[str, str]:
    """Return the faults of files that are not listed as bad: missing, cut off, not readable."""
    bad = {name: wrong for name in needed if name not in known and (wrong := folder.wrong(name))}
    saved = (name for name in folder.sizes if name in _SAVED_BY_TORCH or (name in needed and name != STATE))
    for name in saved:
        if name not in known and name not in bad and (wrong := damage(folder, name)):
            bad[name] = wrong
    if STATE not in known and STATE not in bad and _read(folder, STATE) is None:
        bad[STATE] = "truncated"
    return bad


def _weights(folder: Folder, found: Found) -> set[str]:
    """Return the files of weights that have to be there."""
    index = next((name for name in _INDEXES if name in folder), None)
    if index is None:
        if any(map(_SHARD.fullmatch, folder.sizes)):
            shard = next(name for name in folder.sizes if _SHARD.fullmatch(name))
            return {_INDEXES[0 if shard.endswith(".safetensors") else 1]}
        return {next((name for name in _WEIGHTS if name in folder), _WEIGHTS[0])}
    listed = _read(folder, index)
    shards = listed.get("weight_map") if isinstance(listed, dict) else None
    if not isinstance(shards, dict):
        found.bad[index] = folder.wrong(index) or "truncated"
        return set()
    return {str(name) for name in shards.values()}


def _read(folder: Folder, name: str) -> object:
    """Return the content of a JSON file, None without any."""
    if not 0 < folder.sizes[name] <= _LARGEST_JSON_BYTES:
        return None
    try:
        with folder.open(name) as file:
            return json.load(file)
    except (ValueError, RecursionError):
        return None
