"""One rank of a job as people write it: ``launched_rank.py FOLDER``. It goes on behind its newest checkpoint.

All ranks meet before the first step and at each checkpoint, as in a collective: a step that is saved was logged by all.
They end at the next checkpoint after a file ``enough`` is there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import stabilityclient

#: Steps between two checkpoints.
SAVE_EVERY = 5


def main() -> None:
    folder = Path(sys.argv[1])
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = os.environ.get("SLURM_RESTART_COUNT", "0")

    def meet(step: int) -> None:
        (folder / f"{attempt}.{step}.{rank}.met").touch()
        while len(list(folder.glob(f"{attempt}.{step}.*.met"))) < world_size:
            time.sleep(0.01)

    run = stabilityclient.init(project=folder.parent.name, name="launched")
    saved = max((int(file.stem) for file in folder.glob("*.saved")), default=0)
    meet(saved)
    for step in run.steps(saved + 1, 1_000_000):
        run.log(step, {"loss": 1.0 / step})
        time.sleep(0.05)
        if step % SAVE_EVERY == 0:
            if rank == 0 and (folder / "enough").exists():
                (folder / f"{attempt}.last").touch()
            meet(step)
            if rank == 0:
                file = folder / f"{step}.saved"
                file.touch()
                run.checkpoint(step, file)
            if (folder / f"{attempt}.last").exists():
                break
    run.finish()


main()
