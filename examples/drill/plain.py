"""A small job that resumes bit by bit, and forgets one thing on order: what `stabilityboard drill` is tried on.

    stabilityboard drill --steps 5 -- python examples/drill/plain.py --folder {dir}
    stabilityboard drill --steps 5 --resume-args="--forget rng" -- python examples/drill/plain.py --folder {dir}

Under torchrun its ranks are DDP and share each batch of 16 samples.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F

import stabilityclient

#: What ``--forget`` knows, and what `stabilityboard drill` calls it.
FORGETS = {
    "optimizer": "optimizer state",
    "schedule": "learning rate",
    "rng": "random numbers",
    "data": "data",
    "step": "step counter",
    "weights": "weights",
}
_BATCH = 16


def main() -> None:
    """Train for ``--steps``, from the newest checkpoint where there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="of the checkpoints")
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--forget", choices=FORGETS, help="is not restored from the checkpoint")
    args = parser.parse_args()
    torch.set_num_threads(1)
    run = stabilityclient.init(project="examples", name="drill")
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(1)
    bare = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
    model: Any = torch.nn.parallel.DistributedDataParallel(bare) if world > 1 else bare
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    inputs = torch.randn(50_000, 8, generator=torch.Generator().manual_seed(2))
    targets = inputs.square().sum(1, keepdim=True)
    done = position = 0
    saved = sorted(args.folder.glob("step-*.pt"))
    if saved:
        state = torch.load(saved[-1], weights_only=False)
        older = torch.load(saved[0], weights_only=False) if args.forget == "weights" else state
        bare.load_state_dict(older["model"])  # so it fits any number of ranks
        if args.forget != "optimizer":
            optimizer.load_state_dict(state["optimizer"])
        if args.forget != "schedule":
            schedule.load_state_dict(state["schedule"])
            for group, rate in zip(optimizer.param_groups, state["schedule"]["_last_lr"], strict=True):
                group["lr"] = rate
        if args.forget != "rng":
            torch.set_rng_state(state["rng"])
        done = state["step"] + (args.forget == "step")
        position = 0 if args.forget == "data" else state["position"]
    for step in range(done + 1, args.steps + 1):
        place = position * _BATCH + rank
        chosen = slice(place, position * _BATCH + _BATCH, world)
        run.batch(step, position)
        position += 1
        loss = F.mse_loss(model(inputs[chosen]), targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        run.log(step, {"loss": loss.item(), "grad_norm": norm.item(), "lr": schedule.get_last_lr()[0]})
        schedule.step()
        if step % args.save_every == 0 and rank == 0:
            path = args.folder / f"step-{step:06d}.pt"
            state = {"model": bare.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
            torch.save({**state, "schedule": schedule.state_dict(), "step": step, "position": position}, path)
            run.checkpoint(step, path)
    run.finish()


if __name__ == "__main__":
    main()
