"""One rank of a PyTorch job that leaves out odd updates, as docs/skip-updates.md has it: ``python skipping_rank.py``.

Rank 1 alone meets batches that are not finite at steps 100 and 140. It prints the steps that it left out and a digest
of its weights.
"""

from __future__ import annotations

import hashlib
import json
import os

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import stabilityclient

BAD_STEPS = (100, 140)


def main() -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    run = stabilityclient.init(project="tests", name="skipping")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dice = torch.Generator().manual_seed(rank)
    skipped = []
    for step in run.steps(0, 180):
        batch = torch.randn(8, 4, generator=dice)
        if rank == 1 and step in BAD_STEPS:
            batch[0, 0] = float("nan")
        optimizer.zero_grad(set_to_none=True)
        loss = (model(batch).squeeze(1) - batch.sum(1)).square().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        mean = loss.detach().clone()
        distributed.all_reduce(mean)
        if run.should_skip(step, mean.item() / distributed.get_world_size(), norm.item()):
            optimizer.zero_grad(set_to_none=True)
            skipped.append(step)
        else:
            optimizer.step()
        run.log(step, {"loss": mean.item() / distributed.get_world_size(), "grad_norm": norm.item()})
    run.finish()
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    finite = bool(torch.isfinite(weights).all())
    print(json.dumps({"skipped": skipped, "digest": digest, "finite": finite}), flush=True)
    distributed.destroy_process_group()


main()
