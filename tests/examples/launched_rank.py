"""One rank of a job as people write it: ``launched_rank.py FOLDER STOP``. It goes on behind its newest checkpoint.

All ranks wait for each other before the first step, as in a first all-reduce, and end where a file ``enough`` is.
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
    run = stabilityclient.init(project=folder.parent.name, name="launched")
    saved = max((int(file.stem) for file in folder.glob("*.saved")), default=0)
    attempt = os.environ.get("SLURM_RESTART_COUNT", "0")
    (folder / f"{attempt}.{rank}.rank").touch()
    while len(list(folder.glob(f"{attempt}.*.rank"))) < world_size:
        time.sleep(0.01)
    for step in run.steps(saved + 1, 1_000_000):
        run.log(step, {"loss": 1.0 / step})
        if rank == 0 and step % SAVE_EVERY == 0:
            file = folder / f"{step}.saved"
            file.touch()
            run.checkpoint(step, file)
        time.sleep(0.05)
        if (folder / "enough").exists():
            break
    run.finish()


main()
