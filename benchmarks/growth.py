"""How the server's cost grows: runs, lost agents, crashes, hangs, rollbacks, restarts, checkpoints, metrics, tabs.

    python benchmarks/growth.py [--only rollbacks "lost agents"] [--repeats 2] [--json]

Each direction is measured at four sizes, in this process, on the code that a worker runs: CPU seconds of the event loop
(the median of the repeats) and the longest single step, in which nobody else is served. Through the four sizes a power
is fitted by least squares of the logarithms: 1 is in proportion, 2 is quadratic. Returns 1 when a power is above 1.3
(n log n over these sizes is 1.1 to 1.2), or when a step at the largest size takes more than 50 ms. Pauses of Python's
collector of cycles are part of the steps. ``--only`` measures some directions: all of them take some 8 minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from dataclasses import asdict, dataclass

from parts.growth_hang import hung_ranks
from parts.growth_jobs import COLLECTOR, JOBS, Steps
from parts.growth_runs import followed_runs

_JOBS = {**JOBS, "hung ranks": (hung_ranks, (2_048, 4_096, 8_192, 16_384))}
#: The aims: the greatest power, and the longest step at the largest size, milliseconds.
MAX_POWER, MAX_STEP_MS = 1.3, 50.0
#: Below this a time is mostly the clock's and the interpreter's, CPU seconds: no power is read from it.
LEAST_S = 0.05


@dataclass(frozen=True)
class Growth:
    """One direction: CPU seconds and the longest step at each size, and the fitted power (None: too little to fit)."""

    name: str
    sizes: tuple[int, ...]
    cpu_s: tuple[float, ...]
    step_ms: tuple[float, ...]
    power: float | None

    @property
    def missed(self) -> bool:
        """Whether an aim was missed."""
        return (self.power is not None and self.power > MAX_POWER) or self.step_ms[-1] > MAX_STEP_MS


def fitted(sizes: tuple[int, ...], cpu_s: tuple[float, ...]) -> float | None:
    """Return the power p of ``cpu_s ~ sizes ** p`` by least squares of the logarithms, None where there is no time."""
    if cpu_s[-1] < LEAST_S:
        return None
    xs, ys = [math.log(size) for size in sizes], [math.log(max(took, 1e-6)) for took in cpu_s]
    return statistics.linear_regression(xs, ys).slope


def measured(name: str, sizes: tuple[int, ...], repeats: int) -> Growth:
    """Measure one direction."""
    cpu_s, step_ms = [], []
    for size in sizes:
        found = [_steps(name, size) for _ in range(repeats)]
        cpu_s.append(statistics.median(steps.total_s for steps in found))
        step_ms.append(1e3 * statistics.median(steps.longest_s for steps in found))
    return Growth(name, sizes, tuple(cpu_s), tuple(step_ms), fitted(sizes, tuple(cpu_s)))


def _steps(name: str, size: int) -> Steps:
    """Return the steps of one direction at one size, the collector of cycles tended as in the server's process."""
    COLLECTOR.start()
    try:
        return followed_runs(size) if name == "followed runs" else _JOBS[name][0](size).steps
    finally:
        COLLECTOR.stop()


def main() -> int:
    """Print the table; return 1 when an aim is missed."""
    every = {"followed runs": (250, 500, 1_000, 2_000)} | {name: sizes for name, (_, sizes) in _JOBS.items()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(every), default=list(every), help="directions to measure")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--shrink", type=int, default=1, help="divide all sizes by this: for a look at old code")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    found = []
    if not options.json:
        head = f"{'direction':<18}{'sizes':>34}  {'CPU s at each':<34}{'power':>6}"
        print(f"{head}  longest step at each, ms")
    for name in options.only:
        sizes = tuple(size // options.shrink for size in every[name])
        one = measured(name, sizes, options.repeats)
        found.append(one)
        if not options.json:
            columns = ["  ".join(f"{value:,.3g}" for value in values) for values in (one.cpu_s, one.step_ms)]
            power = "-" if one.power is None else f"{one.power:.2f}"
            shown = " ".join(f"{size:,}" for size in sizes)
            missed = "  MISSED" * one.missed
            print(f"{name:<18}{shown:>34}  {columns[0]:<34}{power:>6}  {columns[1]}{missed}", flush=True)
    if options.json:
        print(json.dumps([asdict(one) for one in found], indent=1))
    return int(any(one.missed for one in found))


if __name__ == "__main__":
    sys.exit(main())
