"""One rank whose loss becomes NaN and stays so until it is rolled back: ``spoiled_job.py FOLDER PERIOD_S ENOUGH``."""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path

import stabilityclient

#: The loss is NaN from this step on; checkpoints are saved every so many steps.
BAD_FROM, EVERY = 60, 10


def main() -> None:
    folder, period_s, enough = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    rank = int(os.environ["RANK"])
    run = stabilityclient.init(project="vision", name="night run <b>א</b>")
    loaded: list[int] = []

    @run.on_rollback(can=("lr_scale", "skip_batches", "skip_range"))
    def restore(rollback: stabilityclient.Rollback) -> None:
        assert rollback.checkpoint is not None
        loaded.append(int(Path(rollback.checkpoint).read_text()))

    first, step = 1, 0
    while not os.path.exists(enough):
        for step in run.steps(first):
            time.sleep(period_s)
            bad = not loaded and step >= BAD_FROM
            run.log(step, {"loss": math.nan if bad else 2.0 + 10.0 / (step + 10) + 0.001 * (step % 7)})
            if step % EVERY == 0 and rank == 0:
                path = folder / f"{len(loaded)}-{step}"
                path.write_text(str(step))
                run.checkpoint(step, path)
            if os.path.exists(enough):
                break
        first = step + 1
    run.finish()


main()
