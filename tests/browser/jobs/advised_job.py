"""The sick job of the twelve questions: ``python advised_job.py FOLDER``. One rank, steps of some milliseconds.

From step 220 on the loss of the data set `code` stays up, from step 270 on it steps slowly. It has checkpoints at 200
and 250. A rollback to the first one heals it, and one to the second, or undoing the first, does not.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import stabilityclient

ONSET, STOP, SAVED = 220, 270, (200, 250)
#: Of a step once there is something to see: few come while somebody looks.
SLOW_S = 0.3


def main() -> None:
    folder = Path(sys.argv[1])
    config = {"model": {"layers": 32, "width": 4096}, "optimizer": {"lr": 6e-4, "warmup": 2000}, "batch_size": 1024}
    run = stabilityclient.init(project="llm", name="7b-lr6e-4", config=config, tags=["night"])
    spoilt = [True]
    went_back: list[int] = []

    @run.on_rollback(can=("skip_batches", "skip_range"))
    def back(rollback: stabilityclient.Rollback) -> dict[str, Any]:
        went_back.append(rollback.to_step)
        spoilt[0] = rollback.to_step >= ONSET
        return rollback.changes()

    for step in run.steps(1):
        wave = 0.01 * math.sin(1.7 * step)
        web = 2.0 + 3.0 * math.exp(-step / 40) + wave
        code = 1.6 + 2.0 * math.exp(-step / 40) - wave + (6.0 if spoilt[0] and step >= ONSET else 0.0)
        values = {"loss": (web + code) / 2, "loss/web": web, "loss/code": code, "tokens": 4.2e6 * step, "lr": 6e-4}
        run.log(step, values)
        if step in SAVED and not went_back:
            (folder / f"checkpoint-{step}").write_text(str(step))
            run.checkpoint(step, str(folder / f"checkpoint-{step}"))
        time.sleep(SLOW_S if step > STOP or went_back else 0.005)


main()
