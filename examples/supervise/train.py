"""A job that comes up again where its plan says; ``torchrun.sh`` and ``slurm.sh`` start it.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # or a second start may read the first one's addresses and hang
    STABILITY_RUN_ID=my-run torchrun --standalone --nproc-per-node 2 --max-restarts 3 train.py --checkpoints DIR

``--hang-at STEP`` lets rank 1 stand still there, in its first life only: order a restart and see it come back.
"""

from __future__ import annotations

import argparse
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import stabilityclient


def main() -> None:
    """Train a small model on all ranks, from the plan's checkpoint, else from the newest one, else from the start."""
    options = _options()
    # First of all, so that a start in which a rank never comes is seen, too.
    run = stabilityclient.init(project="supervise", name="supervise", config=vars(options))
    with run.phase("init"):
        dist.init_process_group("gloo", timeout=timedelta(seconds=options.timeout_s))
        rank = dist.get_rank()
        plan = _same_on_all_ranks(stabilityclient.read_plan() if rank == 0 else None)

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    path = _where_from(plan, Path(options.checkpoints))
    first = 1
    if path is not None:
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = int(saved["step"]) + 1
    if plan is not None and plan["lr_scale"] is not None:
        optimizer.param_groups[0]["lr"] *= plan["lr_scale"]
    # The batch of a step is a number here; a real loader is moved on by its own state instead.
    first_bad, last_bad = (plan or {}).get("skip_range") or (options.steps + 1, options.steps)

    for step in run.steps(first, options.steps + 1):
        with run.phase("data"):
            if step == options.hang_at and rank == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
                time.sleep(3600)
            number = step if step < first_bad else step + last_bad - first_bad + 1
            noise = torch.Generator().manual_seed(1000 * number + rank)
            x = torch.randn(32, 8, generator=noise)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        with run.phase("backward"):
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        optimizer.step()
        run.log(step, {"loss": loss})
        if rank == 0 and step % options.save_every == 0:
            file = Path(options.checkpoints) / f"{step}.pt"
            with run.phase("checkpoint"):
                torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            run.checkpoint(step, file)
        time.sleep(options.step_s)
    run.finish()
    dist.destroy_process_group()


def _same_on_all_ranks(plan: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return what rank 0 read: a node that was not there before has no plan on its disk, and all must agree."""
    box = [plan]
    dist.broadcast_object_list(box)
    return box[0]


def _where_from(plan: dict[str, Any] | None, folder: Path) -> str | Path | None:
    """Return the checkpoint to load: the one that the plan names, not the newest one, which may be the bad one."""
    if plan is not None and plan["checkpoint"] is not None:
        return str(plan["checkpoint"]["path"])
    return max(folder.glob("*.pt"), key=lambda file: int(file.stem), default=None)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", required=True, help="folder that all nodes see")
    parser.add_argument("--steps", type=int, default=2_000, help="last step")
    parser.add_argument("--save-every", type=int, default=50, help="steps between two checkpoints")
    parser.add_argument("--step-s", type=float, default=0.05, help="seconds that a step waits, so that one can watch")
    parser.add_argument("--timeout-s", type=float, default=600, help="longest wait in a collective, seconds")
    parser.add_argument("--hang-at", type=int, default=None, help="step at which rank 1 stands still, once")
    return parser.parse_args()


if __name__ == "__main__":
    main()
