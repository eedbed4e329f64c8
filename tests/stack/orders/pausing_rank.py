"""One rank of two that go back slowly, and hang on demand: ``python pausing_rank.py FOLDER torch|plain``.

The handler waits for FOLDER/go. Once FOLDER/hang is there ``plain`` ranks stop for ever; with ``torch`` both meet in a
real all_reduce each step, so that rank 0 hangs in it when rank 1 stops.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import stabilityclient


def meeting() -> Callable[[], object]:
    """Return what both ranks do in each step."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    weights = torch.ones(16)
    return lambda: dist.all_reduce(weights)


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    meet = meeting() if sys.argv[2] == "torch" else None
    run = stabilityclient.init(project="tests", name="pausing")

    @run.on_rollback
    def back(rollback: stabilityclient.Rollback) -> None:
        end = time.monotonic() + 120
        while not (folder / "go").exists() and time.monotonic() < end:
            time.sleep(0.05)  # a checkpoint from a busy store

    plan = stabilityclient.read_plan()
    for step in run.steps(plan["checkpoint"]["step"] + 1 if plan and plan["checkpoint"] else 1):
        while (rank == 1 or meet is None) and (folder / "hang").exists():
            time.sleep(1)
        time.sleep(0.02)
        if meet is not None:
            meet()
        run.log(step, {"loss": 2.0 + 1.0 / step})
        if step % 20 == 0 and rank == 0:
            path = folder / f"checkpoint-{step}"
            path.write_text(str(step))
            run.checkpoint(step, path)
    run.finish()


main()
