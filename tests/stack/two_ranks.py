"""One rank that logs at a steady pace: ``python two_ranks.py SECONDS PERIOD_S``; prints how many rows it logged."""

from __future__ import annotations

import math
import sys
import time

import stabilityclient


def main() -> None:
    seconds, period_s = float(sys.argv[1]), float(sys.argv[2])
    run = stabilityclient.init(project="no-loss", name="no-loss")
    step, end = 0, time.monotonic() + seconds
    for step in run.steps(1):
        if time.monotonic() > end:
            step -= 1
            break
        values = {f"m{i}": step + i / 100 for i in range(11)}
        run.log(step, {"loss": math.nan if step % 500 == 0 else 2.0 + 1.0 / step, **values})
        time.sleep(period_s)
    print(step, flush=True)
    print(run.finish(timeout_s=60), flush=True)


main()
