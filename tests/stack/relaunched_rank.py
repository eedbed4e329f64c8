"""One rank of a job that is killed and launched again: ``python relaunched_rank.py FOLDER LAUNCH ENOUGH PERIOD_S``.

It goes on from the newest checkpoint, and goes back on order; either begins an attempt. Into ``FOLDER/truth`` it writes
before each row ``<attempt> <rank> <step>``, at the start of an attempt ``<attempt> <rank> from <checkpoint's attempt>
<checkpoint's step>``, for each order that it obeys ``<attempt> <rank> obeys <command>``.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from relaunched_rank_values import ATTEMPT_VALUE, ATTEMPTS, SAVE_EVERY

import stabilityclient

#: A save takes so long, seconds: long enough to be killed in it.
SAVE_S = 0.05


def main() -> None:
    folder, launch, enough, period_s = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = launch * ATTEMPTS
    saved = folder / "checkpoint"
    owner, first, _ = map(int, saved.read_text().split()) if saved.exists() else (-1, 0, 0)
    truth = os.open(folder / "truth", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    run = stabilityclient.init(project="chaos", name="relaunches")

    def begun(owner: int, first: int) -> None:
        os.write(truth, f"{attempt} {rank} from {owner} {first}\n".encode())
        told(first)

    def told(step: int) -> None:
        here = folder / f"reached.{attempt}.{rank}"
        part = here.with_suffix(f".part{rank}")
        part.write_text(str(step))
        part.replace(here)

    def reached(step: int) -> bool:
        others = [folder / f"reached.{attempt}.{other}" for other in range(world_size) if other != rank]
        return all(other.exists() and int(other.read_text() or 0) >= step for other in others)

    def save(owner: int, step: int) -> None:
        if rank == 0:
            part = saved.with_suffix(".part")
            part.write_text(f"{owner} {step} {int(enough.exists())}")
            time.sleep(SAVE_S)
            part.replace(saved)
        while not (saved.exists() and saved.read_text().startswith(f"{owner} {step} ")):
            time.sleep(0.001)

    @run.on_rollback
    def back(rollback: stabilityclient.Rollback) -> None:
        nonlocal attempt
        attempt += 1
        os.write(truth, f"{attempt} {rank} obeys {rollback.command_id}\n".encode())
        owner, step = map(int, Path(rollback.checkpoint or "").name.split("-"))
        save(owner, step)  # or the next launch would go on from what was left
        begun(owner, step)

    begun(owner, first)
    for step in run.steps(first + 1):
        while not reached(step - 1):  # as a collective would
            time.sleep(0.001)
        os.write(truth, f"{attempt} {rank} {step}\n".encode())
        run.log(step, {"loss": attempt * ATTEMPT_VALUE + step})
        told(step)
        if step % SAVE_EVERY == 0:
            while not reached(step):
                time.sleep(0.001)
            with run.phase("checkpoint"):
                save(attempt, step)
            if rank == 0:
                announced = folder / f"{attempt}-{step}"
                announced.write_text(str(step))
                run.checkpoint(step, announced)
            if saved.read_text().endswith(" 1"):
                break
        time.sleep(period_s)
    print(run.finish(timeout_s=60), flush=True)


main()
