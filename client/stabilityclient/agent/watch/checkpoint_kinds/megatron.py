"""Megatron-LM's ``iter_0000100``: a folder of torch.distributed.checkpoint with two files more, or a folder for each
model-parallel rank (``--ckpt-format torch``).
"""

from __future__ import annotations

import json
import re

from stabilityclient.agent.watch.checkpoint_kinds.dcp import inspect_dcp
from stabilityclient.agent.watch.checkpoint_kinds.found import Folder, Found
from stabilityclient.agent.watch.checkpoint_kinds.one_file import damage, pickle_of

__all__ = ["inspect_megatron", "is_megatron"]

#: Of ``--ckpt-format torch_dist``: the objects other than tensors, written first; the folder's kind, written last
#: (megatron/core/dist_checkpointing/serialization.py).
_COMMON, _CONFIG = "common.pt", "metadata.json"
#: ``mp_rank_<tensor>[_<pipeline>][_<expert>]`` (megatron/training/checkpointing.py, ``get_checkpoint_name``).
_RANK = re.compile(r"mp_rank_(\d{2,9})((?:_\d{3,9}){0,2})/(?P<file>model_optim_rng\.pt|distrib_optim\.pt)")
_MODEL, _OPTIMIZER = "model_optim_rng.pt", "distrib_optim.pt"
#: Megatron's arguments stand in each file of model states, behind the weights' names: so many bytes of its pickle are
#: searched.
_PICKLE_BYTES = 32 * 1024 * 1024


def is_megatron(folder: Folder) -> bool:
    """Whether a folder is one of Megatron-LM."""
    return _COMMON in folder or any(map(_RANK.fullmatch, folder.sizes)) or _is_config(folder)


def _is_config(folder: Folder) -> bool:
    return _CONFIG in folder and ".metadata" in folder


def inspect_megatron(folder: Folder) -> Found:
    """Return the findings. Raises OSError where a file can't be read."""
    legacy = [match for name in folder.sizes if (match := _RANK.fullmatch(name))]
    return _of_ranks(folder, legacy) if legacy else _of_tensors(folder)


def _of_tensors(folder: Folder) -> Found:
    found = inspect_dcp(folder)
    found.kind, found.judged = "megatron", True
    for name in (_COMMON, _CONFIG):
        if wrong := folder.wrong(name):
            found.bad[name] = wrong
    if _COMMON not in found.bad and (wrong := damage(folder, _COMMON)):
        found.bad[_COMMON] = wrong
    if _CONFIG not in found.bad:
        with folder.open(_CONFIG) as file:
            try:
                json.loads(file.read(1_000_000))
            except ValueError:
                found.bad[_CONFIG] = "truncated"
    return found


def _of_ranks(folder: Folder, legacy: list[re.Match[str]]) -> Found:
    found = Found("megatron", loads_with="any")
    for match in legacy:
        if wrong := damage(folder, match[0]):
            found.bad[match[0]] = wrong
    models = [match[0] for match in legacy if match["file"] == _MODEL and match[0] not in found.bad]
    told = next((one for name in models if (one := pickle_of(folder, name, _PICKLE_BYTES))), b"")
    tensor, pipeline, expert = (
        _number(told, f"{name}_model_parallel_size") for name in ("tensor", "pipeline", "expert")
    )
    found.world_size = _number(told, "world_size")
    if tensor is None or pipeline is None or (expert or 1) > 1:
        # Not every pair of tensor and expert rank has a file: which ones do depends on how the ranks were laid out.
        ranks = {match[0].partition("/")[0] for match in legacy}
        found.judged = False
    else:
        ranks = {
            f"mp_rank_{one:02d}" + (f"_{stage:03d}" if pipeline > 1 else "")
            for one in range(tensor)
            for stage in range(pipeline)
        }
    needed = {_MODEL}
    if any(match["file"] == _OPTIMIZER for match in legacy) or _true(told, "use_distributed_optimizer"):
        needed |= {_OPTIMIZER}
    if _true(told, "no_save_optim"):
        needed = {_MODEL}
    for name in {f"{rank}/{file}" for rank in ranks for file in needed} - found.bad.keys():
        if wrong := folder.wrong(name):
            found.bad[name] = wrong
    return found


def _key(name: str) -> bytes:
    """Return how torch's pickle has a key: the text, and the note of its place."""
    return re.escape(b"X" + len(name).to_bytes(4, "little") + name.encode()) + rb"(?:q.|r.{4})"


def _number(pickle: bytes, name: str) -> int | None:
    """Return a small whole number among the arguments, None where it is none."""
    match = re.search(_key(name) + rb"(?:K(.)|M(.{2})|J(.{4}))", pickle, re.DOTALL)
    return None if match is None else int.from_bytes(next(one for one in match.groups() if one is not None), "little")


def _true(pickle: bytes, name: str) -> bool:
    return re.search(_key(name) + b"\x88", pickle, re.DOTALL) is not None
