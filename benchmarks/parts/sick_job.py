"""A rank that gets sick: ``sick_job.py FAULT FILE``. FILE gets the moment of its first bad step, unix seconds."""

from __future__ import annotations

import math
import os
import random
import signal
import sys
import time
from pathlib import Path

import stabilityclient

#: Seconds of a step, and the first bad one: the detectors know by then what is usual. Speed is judged by 4 s each.
STEP_S, BAD_FROM, SLOW_FROM = 0.02, 400, 4_500


def main() -> None:
    """Train well, then badly, until somebody ends it."""
    fault, file = sys.argv[1], Path(sys.argv[2])
    run = stabilityclient.init(project=fault, name=fault)
    noise, bad_from = random.Random(fault), SLOW_FROM if fault == "slow" else BAD_FROM
    for step in range(100_000):
        bad = step >= bad_from
        good = 2.0 + 2.0 * math.exp(-step / 200) + noise.gauss(0, 0.02)
        loss = {"nan": math.nan, "spike": good + 3.0, "drift": good + 0.002 * (step - bad_from)}.get(fault, good)
        began = time.perf_counter()
        with run.phase("forward"):
            time.sleep(STEP_S * (4 if fault == "slow" and bad else 1))
        if step == bad_from:
            file.write_text(repr(time.time()))
            if fault == "death":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "hang":
                with run.phase("data"):
                    time.sleep(3600)
        speed = 1000.0 / (time.perf_counter() - began)
        norm = 1.0 + 0.1 * noise.random()
        run.log(step, {"loss": loss if bad else good, "grad_norm": norm, "tokens_per_s": speed})


if __name__ == "__main__":
    main()
