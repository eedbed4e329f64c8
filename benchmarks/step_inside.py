"""Measures what recording adds to a step inside the training process: neighbouring steps of one job, with and without.

    python benchmarks/step_inside.py [--seconds 300] [--rows 2] [--steps-a-turn 1] [--json]

``step_effect.py`` compares two jobs, and is as exact as the machine lets two jobs be alike. Here one job of
``make demo`` records at one of two steps, by a seeded coin, and is as if disabled at the other; heartbeat thread, agent
and server go on throughout, so their share is not in it: they take it from cores that a job on GPUs leaves free
(``agent_cost.py``).
Steps are compared in windows of some seconds by their medians, in wall time and in CPU time of the training thread;
the intervals are bootstraps over the windows (Efron 1979). The exit code is 1 where the interval of the wall time lies
above the aim.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from parts.server_process import ServerProcess
from step_effect import AIM, WARM_UP_STEPS, Job, interval

#: Steps of a window: half of them with, half of them without.
WINDOW = 128


def measure(seconds: float, rows: int, steps_a_turn: int) -> dict[str, Any]:
    """Return ratios with and without recording, and milliseconds a step."""
    with tempfile.TemporaryDirectory() as name, ServerProcess(Path(name) / "data") as server:
        folder = Path(name)
        job = Job("online", 1, rows, folder / "job", server.url, folder / "tokens", steps_a_turn)
        try:
            job.wait_for_steps(WARM_UP_STEPS)
            time.sleep(seconds)
            stamps = job.stamps[WARM_UP_STEPS:]
        finally:
            job.end()
    took = [(a.recorded, 1000 * (b.at - a.at), 1000 * (b.cpu_s - a.cpu_s)) for a, b in pairwise(stamps)]
    windows = [took[at : at + WINDOW] for at in range(0, len(took) - WINDOW + 1, WINDOW)]
    if not windows:
        raise SystemExit(f"{len(took)} steps in {seconds:g} s, expected at least {WINDOW}: give more --seconds")
    return {"steps": len(took), "windows": len(windows), "wall": _compare(windows, 1), "cpu": _compare(windows, 2)}


def _compare(windows: list[list[tuple[bool, float, float]]], field: int) -> dict[str, float]:
    medians = [
        [statistics.median(step[field] for step in window if step[0] is recorded) for recorded in (False, True)]
        for window in windows
    ]
    ratios = [after / before for before, after in medians]
    low, high = interval(ratios)
    without = statistics.median(before for before, _ in medians)
    return {"without_ms": without, "ratio": statistics.median(ratios), "low": low, "high": high}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--rows", type=int, default=2, help="of a batch: few make short steps, of which there are many")
    parser.add_argument("--steps-a-turn", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing that was started stays
    found = measure(arguments.seconds, arguments.rows, arguments.steps_a_turn)
    if arguments.json:
        print(json.dumps(found))
    else:
        print(f"the demo's job, 1 rank, {found['steps']} steps in {found['windows']} windows of {WINDOW}")
        print(f"{'':10}{'without, ms':>14}{'longer with us, %':>20}   95 %")
        for name in ("wall", "cpu"):
            one = found[name]
            percent = [100 * (one[key] - 1) for key in ("ratio", "low", "high")]
            print(f"{name:10}{one['without_ms']:14.2f}{percent[0]:+20.3f}   {percent[1]:+.3f} to {percent[2]:+.3f}")
    return int(found["wall"]["low"] - 1 > AIM)


if __name__ == "__main__":
    sys.exit(main())
