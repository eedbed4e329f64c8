"""A job of ``mp.spawn``: ``python spawn_job.py FOLDER ENOUGH early|late``. No environment tells who its processes are.

``late``: ``init()`` comes after ``init_process_group()``, the one line that the docs ask for. ``early``: before it.
The project has the folder's name. Each process appends to ``FOLDER/truth.<rank>`` what it did: ``step <n>`` and
``back <step>``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.multiprocessing

import stabilityclient

WORLD_SIZE = 2


def train(rank: int, folder: Path, enough: Path, when: str) -> None:
    run = stabilityclient.init(project=folder.name, name="spawn") if when == "early" else None
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=WORLD_SIZE
    )
    run = run or stabilityclient.init(project=folder.name, name="spawn")
    note = folder / f"truth.{rank}"
    (folder / f"run.{rank}").write_text(run.run_id)

    @run.on_rollback
    def restore(rollback: stabilityclient.Rollback) -> None:
        with note.open("a") as file:
            file.write(f"back {rollback.to_step}\n")

    for step in run.steps(1):
        with note.open("a") as file:
            file.write(f"step {step}\n")
        run.log(step, {"loss": 2.0 + 1.0 / step})
        time.sleep(0.005)
        over = torch.tensor(float(enough.exists() and rank == 0))
        torch.distributed.broadcast(over, 0)
        if over:
            break
    print(run.run_id, run.finish(), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, args=(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]), nprocs=WORLD_SIZE)
