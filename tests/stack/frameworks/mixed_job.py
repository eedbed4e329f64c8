"""The job of docs/integrations/sources.md: ``python mixed_job.py FOLDER RANKS STOP``, two micro-batches a step.

Each process appends to ``FOLDER/truth.<rank>`` what it trained: ``step <n> <lr> <source> <loss>`` for each sample.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import stabilityclient
from stabilityclient.integrations.torch import Training

_PAGE = Path(__file__).resolve().parents[3] / "docs/integrations/sources.md"
NAMES = ("web", "code", "books")


class Samples(torch.utils.data.Dataset[dict[str, Any]]):
    """Seven of ten samples are of the first source, two of the second."""

    def __len__(self) -> int:
        return 400_000

    def __getitem__(self, number: int) -> dict[str, Any]:
        kind = (0, 0, 1, 0, 0, 2, 0, 1, 0, 0)[number % 10]
        return {"id": number, "source": NAMES[kind], "inputs": torch.full((2,), 1.0 + kind + number % 7 / 10)}


def main() -> None:
    os.chdir(sys.argv[1])
    world, stop = int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    run = stabilityclient.init(project="llm", name="mixed")
    run.mixture({"web": 0.7, "code": 0.2, "books": 0.1}, unit="samples")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = Samples()
    loader = torch.utils.data.DataLoader(data, 3, sampler=torch.utils.data.DistributedSampler(data))
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
    training = Training(run, "checkpoints", save_every=20, batches_per_step=2, **parts)
    names: dict[str, Any] = {"run": run}
    exec(compile(_PAGE.read_text().split("```python\n")[1].split("```")[0], str(_PAGE), "exec"), names)
    for step in training.steps(stop):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(2):
            batch = training.batch()
            with torch.no_grad():
                each = (model(batch["inputs"]) - 1).square().mean(1).tolist()
            loss = names["loss_of"](model, batch) / 2
            loss.backward()
            total += loss.item()
            rate = optimizer.param_groups[0]["lr"]
            with Path(f"truth.{dist.get_rank()}").open("a") as file:
                for name, one in zip(batch["source"], each, strict=True):
                    file.write(f"step {step} {rate!r} {NAMES.index(name)} {one!r}\n")
        optimizer.step()
        run.log(step, {"loss": total})
    run.finish()
    assert world == dist.get_world_size()
    dist.destroy_process_group()


main()
