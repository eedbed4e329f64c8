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

#: Steps a second, and the first bad one: the detectors know by then what is usual.
STEP_S, BAD_FROM = 0.02, 400


def main() -> None:
    """Train well, then badly, until somebody ends it."""
    fault, file = sys.argv[1], Path(sys.argv[2])
    run = stabilityclient.init(project=fault, name=fault)
    noise = random.Random(fault)
    for step in range(100_000):
        bad = step >= BAD_FROM
        good = 2.0 + 2.0 * math.exp(-step / 200) + noise.gauss(0, 0.02)
        loss = {"nan": math.nan, "spike": good + 3.0, "drift": good + 0.002 * (step - BAD_FROM)}.get(fault, good)
        with run.phase("forward"):
            time.sleep(STEP_S * (4 if fault == "slow" and bad else 1))
        if step == BAD_FROM:
            file.write_text(repr(time.time()))
            if fault == "death":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "hang":
                with run.phase("data"):
                    time.sleep(3600)
        run.log(
            step,
            {"loss": loss if bad else good, "grad_norm": 1.0 + 0.1 * noise.random(), "tokens_per_s": 1000.0 / STEP_S},
        )


if __name__ == "__main__":
    main()
