"""Checkpoints of each kind as their writers leave them: `written_checkpoints` names them and imports this late.

Each function takes an empty folder and returns the path of the checkpoint that it wrote there. It is the one of step 7.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import warnings
from argparse import Namespace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from support.agent.written_checkpoints import VALUES, write_safetensors
from support.ports import free_port

__all__ = [
    "dcp",
    "dcp_own",
    "file",
    "hugging_face",
    "hugging_face_shards",
    "lightning",
    "lightning_shards",
    "megatron",
    "megatron_ranks",
    "zero",
    "zero_root",
]

_TENSOR = torch.arange(VALUES, dtype=torch.float32)
#: Some of Megatron's arguments, which it stores in its checkpoints.
_MEGATRON_ARGS = Namespace(
    use_distributed_optimizer=True,
    no_save_optim=None,
    tensor_model_parallel_size=2,
    pipeline_model_parallel_size=2,
    expert_model_parallel_size=1,
    world_size=8,
)


def file(path: Path) -> Path:
    """What torch.save writes."""
    path = path / "step-7.pt"
    torch.save({"model": {"w": _TENSOR}, "optimizer": {"lr": 0.1}, "step": 7}, path)
    return path


def _dcp_rank(rank: int, path: Path, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    weights = distribute_tensor(_TENSOR.reshape(64, 64), init_device_mesh("cpu", (2,)), [Shard(0)])
    save({"model": {"w": weights, "b": torch.zeros(3)}, "step": 7}, checkpoint_id=path)
    dist.destroy_process_group()


def dcp(path: Path) -> Path:
    """A folder of torch.distributed.checkpoint that two ranks saved."""
    path, fork, port = path / "step-7", multiprocessing.get_context("fork"), free_port()
    ranks = [fork.Process(target=_dcp_rank, args=(rank, path, port)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
        assert process.exitcode == 0
    return path


def dcp_own(path: Path) -> Path:
    """The same of one rank, with metadata of its own."""
    path = path / "step-7"
    with warnings.catch_warnings(action="ignore"):  # that one process saves alone
        save({"model": {"w": _TENSOR}}, checkpoint_id=path, use_collectives=False)
    return path


def zero(path: Path) -> Path:
    """A tag's folder of DeepSpeed, ZeRO-1, two ranks."""
    path = path / "global_step7"
    path.mkdir()
    config = {"zero_optimization": {"stage": 1}}
    told = {"module": {"w": _TENSOR}, "optimizer": None, "dp_world_size": 2, "mp_world_size": 1, "ds_config": config}
    torch.save(told, path / "mp_rank_00_model_states.pt")
    for rank in range(2):
        state = {"optimizer_state_dict": {"exp_avg": _TENSOR, "partition_count": [2]}, "zero_stage": 1}
        torch.save(state, path / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    return path


def zero_root(path: Path) -> Path:
    """The folder above, with the file that names the tag."""
    zero(path)
    (path / "latest").write_text("global_step7")
    return path


def hugging_face(path: Path) -> Path:
    """What transformers 4.57's Trainer writes under two ranks."""
    path = path / "checkpoint-7"
    path.mkdir()
    write_safetensors(path / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth", "training_args.bin"):
        torch.save({"state": {0: {"exp_avg": _TENSOR}}}, path / name)
    for name in ("config.json", "generation_config.json"):
        (path / name).write_text("{}")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": 7, "log_history": []}))
    return path


def hugging_face_shards(path: Path) -> Path:
    """The same of a model that is too large for one file."""
    path = hugging_face(path)
    (path / "model.safetensors").unlink()
    names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for name in names:
        write_safetensors(path / name)
    index = {"metadata": {"total_size": 1}, "weight_map": {"w": names[0], "v": names[1]}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def lightning(path: Path) -> Path:
    """What its Trainer writes on one device."""
    path = path / "epoch=0-step=7.ckpt"
    torch.save({"epoch": 0, "global_step": 7, "pytorch-lightning_version": "2.6.6", "state_dict": {"w": _TENSOR}}, path)
    return path


def lightning_shards(path: Path) -> Path:
    """What its FSDP strategy writes: a folder of torch.distributed.checkpoint, and the rest in a file."""
    path = path / "epoch=0-step=7.ckpt"
    with warnings.catch_warnings(action="ignore"):  # that one process saves alone
        save({"model": {"w": _TENSOR}}, checkpoint_id=path)
    torch.save({"epoch": 0, "global_step": 7}, path / "meta.pt")
    return path


def megatron(path: Path) -> Path:
    """What Megatron-LM writes with ``--ckpt-format torch_dist``: common.pt first, metadata.json last."""
    path = path / "iter_0000007"
    with warnings.catch_warnings(action="ignore"):  # that one process saves alone
        save({"model": {"w": _TENSOR}}, checkpoint_id=path)
    torch.save({"args": _MEGATRON_ARGS, "iteration": 7}, path / "common.pt")
    (path / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "common_backend": "torch"}))
    return path


def megatron_ranks(path: Path) -> Path:
    """The same with ``--ckpt-format torch``, two tensor ranks, two stages and the distributed optimizer."""
    path = path / "iter_0000007"
    for rank in ("00_000", "00_001", "01_000", "01_001"):
        folder = path / f"mp_rank_{rank}"
        folder.mkdir(parents=True)
        torch.save({"args": _MEGATRON_ARGS, "iteration": 7, "model": {"w": _TENSOR}}, folder / "model_optim_rng.pt")
        torch.save({0: {"exp_avg": _TENSOR}}, folder / "distrib_optim.pt")
    return path
