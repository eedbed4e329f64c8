"""One rank that logs at a steady pace: ``python two_ranks.py FILE PERIOD_S``; prints how many rows it logged.

It ends once FILE is there and it has logged ``ROWS``: a machine that is slow makes the job longer, not smaller.
"""

from __future__ import annotations

import math
import os
import sys
import time

import stabilityclient

#: At least so many rows a rank: several windows of the server.
ROWS = 2_000


def main() -> None:
    enough, period_s = sys.argv[1], float(sys.argv[2])
    run = stabilityclient.init(project="no-loss", name="no-loss")
    step = 0
    for step in run.steps(1):
        if step > ROWS and os.path.exists(enough):
            step -= 1
            break
        values = {f"m{i}": step + i / 100 for i in range(11)}
        run.log(step, {"loss": math.nan if step % 500 == 0 else 2.0 + 1.0 / step, **values})
        time.sleep(period_s)
    print(step, flush=True)
    print(run.finish(timeout_s=60), flush=True)


main()
