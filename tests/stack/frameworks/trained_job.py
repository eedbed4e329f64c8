"""The job of docs/integrations/torch.md: ``python trained_job.py FOLDER RANKS KIND STOP``.

KIND is ``plain``, ``ddp``, ``fsdp`` or ``drawn`` (batches are drawn by a function). Each process appends to
``FOLDER/truth.<rank>`` the samples, the learning rate and the loss of each step that it trained:
``step <n> <lr> <first sample of the batch> <loss>``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from job_faults import trained
from torch.distributed.fsdp import fully_shard

_PAGE = Path(__file__).resolve().parents[3] / "docs/integrations/torch.md"
SAMPLES, COLUMNS = 400_000, 4


def main() -> None:
    os.chdir(sys.argv[1])
    world, kind, stop = int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    if world > 1:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if world > 1 else 0
    torch.manual_seed(0)
    layers = (torch.nn.Linear(COLUMNS, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    model: torch.nn.Module = torch.nn.Sequential(*layers)
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp":
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1.0 + step / 1000))

    def train(step: int, inputs: Any) -> tuple[float, float]:
        (numbers,) = inputs
        loss = (model(numbers / SAMPLES) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        rate = float(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
        with Path(f"truth.{rank}").open("a") as file:
            file.write(f"step {step} {rate!r} {int(numbers[0, 0])} {loss.item()!r}\n")
        trained(step)
        return loss.item(), rate

    code = _PAGE.read_text().split("```python\n")[1].split("```")[0]
    names = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader(kind, world)}
    exec(compile(code, str(_PAGE), "exec"), {"train": train, "stop": stop, **names})
    if world > 1:
        dist.destroy_process_group()


def loader(kind: str, world: int) -> Any:
    numbers = torch.arange(SAMPLES).unsqueeze(1).repeat(1, COLUMNS)
    if kind == "drawn":
        return lambda: (numbers[torch.randint(SAMPLES, (2,))],)
    data = torch.utils.data.TensorDataset(numbers)
    sampler = torch.utils.data.DistributedSampler(data) if world > 1 else None
    return torch.utils.data.DataLoader(data, batch_size=2, shuffle=sampler is None, sampler=sampler)


main()
