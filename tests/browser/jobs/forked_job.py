"""A job that is over at once and went back twice by itself: ``python forked_job.py STEPS``. One rank, no waiting.

Steps 1..STEPS, back from 200 to 150 and from 300 to 250; loss falls, with a NaN at step 40 and a spike before each way
back; tokens rise by 1,000 a step.
"""

from __future__ import annotations

import math
import sys

import stabilityclient

#: Where it goes back, and to where.
BACK = {200: 150, 300: 250}


def main() -> None:
    run = stabilityclient.init(project="browser", name=f"forked {sys.argv[1]}")
    went: set[int] = set()
    step = 1
    while step <= int(sys.argv[1]):
        spoilt = any(to < step <= at and at not in went and step > at - 20 for at, to in BACK.items())
        loss = 2.0 + 3.0 * math.exp(-step / 40) + 0.1 * (-1) ** step + (5.0 if spoilt else 0.0)
        run.log(step, {"loss": math.nan if step == 40 else loss, "grad_norm": 1.0, "tokens": 1000.0 * step})
        if step in BACK and step not in went:
            went.add(step)
            step = BACK[step]
            run.rolled_back(step, reason=f"spike number {len(went)}", lr_scale=0.5, skip_batches=40)
        step += 1
    run.finish()


main()
