"""One rank that logs at a steady pace until FILE is there: ``python steady_rank.py FILE PERIOD_S [BAD_STEP]``.

It writes a checkpoint every 20 steps, obeys rollbacks, and logs a NaN at BAD_STEP, once. Prints each step that it went
back to with the command, then what ``finish`` said.
"""

from __future__ import annotations

import math
import os
import random
import sys
import time
from pathlib import Path

import stabilityclient


def loss_of(step: int) -> float:
    """Return a loss of this run alone: two runs with the same losses have the same data, and that is an incident."""
    draw = random.Random(f"{os.environ['STABILITY_RUN_ID']} {os.environ['RANK']} {step}")
    return 3.0 - step / 2**12 + draw.random() / 8


def main() -> None:
    enough, period_s, bad = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else -1
    run = stabilityclient.init(project="roles", name="steady")

    @run.on_rollback
    def back(rollback: stabilityclient.Rollback) -> None:
        print(f"back {rollback.to_step} {rollback.command_id}", flush=True)

    for step in run.steps(1):
        run.log(step, {"loss": math.nan if step == bad else loss_of(step)})
        bad = -1 if step == bad else bad
        if step % 20 == 0:
            saved = Path(enough).with_name(f"checkpoint-{step}")
            saved.write_text(str(step))
            run.checkpoint(step, saved)
        time.sleep(period_s)
        if os.path.exists(enough):
            break
    print(run.finish(timeout_s=60), flush=True)


main()
