"""A job for the browser's tests that stands inside an open spike: ``python spoilt_job.py FOLDER ONSET STOP STEP...``.

Its loss rises at step ONSET and stays there. It has checkpoints at the steps named, and waits in step STOP until the
file FOLDER/go exists. A rollback heals it.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import stabilityclient


def main() -> None:
    folder, onset, stop, checkpoints = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), map(int, sys.argv[4:])
    saved = set(checkpoints)
    run = stabilityclient.init(project="browser", name="spoilt")
    spoilt = [True]

    @run.on_rollback(can=("skip_batches", "skip_range"))
    def back(rollback: stabilityclient.Rollback) -> dict[str, Any]:
        spoilt[0] = False
        return rollback.changes()

    for step in run.steps(1):
        while step == stop and not (folder / "go").exists():
            time.sleep(0.05)
        loss = 2.0 + 0.01 * math.sin(1.7 * step) + (4.0 if spoilt[0] and step >= onset else 0.0)
        run.log(step, {"loss": loss})
        if step in saved:
            (folder / f"checkpoint-{step}").write_text(str(step))
            run.checkpoint(step, str(folder / f"checkpoint-{step}"))
        # A pace that it keeps: by it the server reckons where the job is, and how far ahead a command has to act.
        time.sleep(0.005 if spoilt[0] else 0.05)


main()
