"""One rank of a job that is killed and launched again: ``python relaunched_rank.py FOLDER LAUNCH ENOUGH PERIOD_S``.

It goes on from the newest checkpoint. Before it logs a row it writes into ``FOLDER/truth`` what it knows: a line
``<launch> <rank> <step>``, and at its start ``<launch> <rank> from <checkpoint's launch> <checkpoint's step>``.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from relaunched_rank_values import LAUNCH_VALUE, SAVE_EVERY

import stabilityclient

#: A save takes so long, seconds: long enough to be killed in it.
SAVE_S = 0.05


def main() -> None:
    folder, launch, enough, period_s = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    saved = folder / "checkpoint"
    owner, first, _ = map(int, saved.read_text().split()) if saved.exists() else (-1, 0, 0)
    truth = os.open(folder / "truth", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    run = stabilityclient.init(project="chaos", name="relaunches")
    os.write(truth, f"{launch} {rank} from {owner} {first}\n".encode())
    here = folder / f"reached.{launch}.{rank}"
    others = [folder / f"reached.{launch}.{other}" for other in range(world_size) if other != rank]

    def reached(step: int) -> bool:
        return all(other.exists() and int(other.read_text() or 0) >= step for other in others)

    def tell(step: int) -> None:
        part = here.with_suffix(".part" + str(rank))
        part.write_text(str(step))
        part.replace(here)

    tell(first)
    for step in run.steps(first + 1):
        while not reached(step - 1):  # as a collective would
            time.sleep(0.001)
        os.write(truth, f"{launch} {rank} {step}\n".encode())
        run.log(step, {"loss": launch * LAUNCH_VALUE + step})
        tell(step)
        if step % SAVE_EVERY == 0:
            while not reached(step):
                time.sleep(0.001)
            if rank == 0:
                with run.phase("checkpoint"):
                    part = saved.with_suffix(".part")
                    part.write_text(f"{launch} {step} {int(enough.exists())}")
                    time.sleep(SAVE_S)
                    part.replace(saved)
                run.checkpoint(step, folder / f"{launch}-{step}")
            while not (saved.exists() and saved.read_text().startswith(f"{launch} {step} ")):
                time.sleep(0.001)
            if saved.read_text().endswith(" 1"):
                break
        time.sleep(period_s)
    print(run.finish(timeout_s=60), flush=True)


main()
