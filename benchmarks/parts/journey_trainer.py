"""The trainer of `journeys.py`: ``python journey_trainer.py FOLDER WARM_ROWS``."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import stabilityclient


def train(folder: Path, warm_rows: int) -> None:
    """Log as many steps as the file ``allowed`` holds: a noisy loss, a spike in the second row after ``warm_rows``."""
    run = stabilityclient.init(project="journeys", name="journeys")
    draw = random.Random(1)

    @run.on_rollback
    def restore(rollback: stabilityclient.Rollback) -> None: ...

    first, last = 1, 0
    while True:
        for step in run.steps(first, 10**6):
            time.sleep(0.1 if step > warm_rows + 4 or last > warm_rows + 4 else 0)
            while step > int((folder / "allowed").read_text()):
                time.sleep(0.01)
                if (folder / "end").exists():
                    return
            if (folder / "end").exists():
                return
            spike = 8.0 if warm_rows + 1 < step <= warm_rows + 4 else 0.0
            run.log(step, {"loss": 2.0 + spike + draw.gauss(0, 0.02), "grad_norm": 1.0 + draw.gauss(0, 0.02)})
            if step % 100 == 0:
                path = folder / f"step-{step}"
                path.write_text(str(step))
                run.checkpoint(step, path)
            last = step
        first = last + 1


train(Path(sys.argv[1]), int(sys.argv[2]))
