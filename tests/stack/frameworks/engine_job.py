"""The job of docs/integrations/deepspeed.md: ``python engine_job.py FOLDER RANKS STAGE STOP``.

Each process appends to ``FOLDER/truth.<rank>`` each step that its engine made:
``step <n> <lr> <first sample of its first batch> <loss of its last batch>``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"  # before the import, which looks for one

import deepspeed
import torch
import torch.distributed as dist
from job_faults import trained

_PAGE = Path(__file__).resolve().parents[3] / "docs/integrations/deepspeed.md"
SAMPLES, COLUMNS = 400_000, 4

# Without it the start compiles an extension for minutes, and hangs at the lock that a killed start left.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def main() -> None:
    os.chdir(sys.argv[1])
    stage, stop = int(sys.argv[3]), int(sys.argv[4])
    torch.manual_seed(0)
    layers = (torch.nn.Linear(COLUMNS, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    warmup = {"warmup_min_lr": 1e-4, "warmup_max_lr": 1e-3, "warmup_num_steps": 1_000, "warmup_type": "linear"}
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": warmup},
        "zero_optimization": {"stage": stage},
        "steps_per_print": 1_000_000,
    }
    deepspeed.init_distributed("gloo", verbose=False)
    rank, world = dist.get_rank(), dist.get_world_size()
    first: list[int] = []

    def loss_of(engine: Any, inputs: Any) -> Any:
        (numbers,) = inputs
        loss = (engine(numbers / SAMPLES) - 1).square().mean()
        first.append(int(numbers[0, 0]))
        if engine.is_gradient_accumulation_boundary():
            rate = float(engine.optimizer.param_groups[0]["lr"])
            with Path(f"truth.{rank}").open("a") as file:
                file.write(f"step {engine.global_steps + 1} {rate!r} {first[0]} {loss.item()!r}\n")
            trained(engine.global_steps + 1)
            first.clear()
        return loss

    data = torch.utils.data.TensorDataset(torch.arange(SAMPLES).unsqueeze(1).repeat(1, COLUMNS))
    sampler = torch.utils.data.DistributedSampler(data, world, rank)
    loader = torch.utils.data.DataLoader(data, batch_size=2, sampler=sampler)
    code = _PAGE.read_text().split("```python\n")[1].split("```")[0]
    names = {"deepspeed": deepspeed, "model": torch.nn.Sequential(*layers), "config": config, "loader": loader}
    exec(compile(code, str(_PAGE), "exec"), {"loss_of": loss_of, "stop": stop, **names})
    dist.destroy_process_group()


main()
