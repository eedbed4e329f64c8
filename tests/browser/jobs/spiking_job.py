"""One rank of a small job for the browser's tests: ``python spiking_job.py FOLDER [STEPS]``.

It steps every 30 ms, after STEPS steps every 300. Its loss falls, and rises when the file FOLDER/spoil exists; a
rollback ends that. Names are as nasty as a stranger's could be. Its checkpoints are files that exist.
"""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path

import stabilityclient

PERIOD_S = 0.03
SLOW_AFTER = float(sys.argv[2]) if sys.argv[2:] else math.inf
RANK = int(os.environ["RANK"])
#: Text that would run if anything made markup of it.
NASTY = "<img src=x onerror='window.pwned=1'>"


def main() -> None:
    folder = Path(sys.argv[1])
    spoil = folder / "spoil"
    spoilt_at: list[int] = []
    went_back: list[float] = []
    run = stabilityclient.init(project="browser", name=f"spiking {NASTY}")

    @run.on_rollback(can=("lr_scale", "seed", "skip_batches"))
    def back(rollback: stabilityclient.Rollback) -> dict[str, float]:
        spoil.unlink(missing_ok=True)
        spoilt_at.clear()
        went_back.append(1.0)
        return {"lr_scale": 0.5, "seed": 7, "skip_batches": 40}

    for step in run.steps(1):
        begin = time.time()
        if spoil.exists() and not spoilt_at:
            spoilt_at.append(step)
        wave = 0.01 * math.sin(1.7 * (step + 40 * len(went_back)))
        loss = 2.0 + 3.0 * math.exp(-step / 40) + wave + (4.0 if spoilt_at else 0.0)
        values = {"step_time_s": PERIOD_S + 0.001 * RANK}
        if RANK == 0:
            values |= {
                "loss": math.nan if step == 60 else loss,
                "loss/code": 0.9 * loss,
                f"loss/{NASTY}": 1.1 * loss,
                "grad_norm": 0.5 + abs(wave) + (3.0 if spoilt_at else 0.0),
                "lr": 1e-3 * 0.5 ** len(went_back),
                "ratio/image_text": 0.4 + wave,
                "tokens_per_s": 40_000.0,
            }
        run.log(step, values)
        if RANK == 0 and step % 20 == 0:
            path = folder / f"checkpoint-{step}"
            path.write_text(str(step))
            run.checkpoint(step, str(path))
        time.sleep(max(0.0, (PERIOD_S if step < SLOW_AFTER else 10 * PERIOD_S) - (time.time() - begin)))


main()
