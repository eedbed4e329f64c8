"""One process of an older checkout against one of this tree, in turn on the same machine: is any figure worse?

    git worktree add /tmp/before COMMIT
    python benchmarks/before_after.py /tmp/before [--seconds 8] [--repeats 3] [--ingest] [--json]

Points come as in ingest.py: frames of 512 rows from eight agents, and one row of eight ranks in a message (each for
itself where the older server takes no such message); CPU is that of the server and its Redis. Then what a
person asks for: the list of runs, a run, a chart of all of it. Ratios are this tree divided by the older one, of the
same repeat; a figure is worse where the median of them is off by more than 5 % to its bad side. Returns 1 then. The
other checkout needs the packages of this environment, and agents of this tree.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ingest import RUN_ID, measure, wait_folded
from parts.feeding import feed, reports_of
from parts.server_process import ServerProcess, usage

#: Rows of each rank in a message, and whether one agent has all ranks.
CASES = ((512, False), (1, True))
#: By how much a figure may be worse.
ALLOWED = 0.05
#: Figures of ingest.measure: name, whether more is better.
FIGURES = {"points_s": True, "cpu_s": False, "server_cpu_s": False, "redis_cpu_s": False, "server_peak_mib": False}
REQUESTS = 30


def roots(checkout: Path) -> str:
    """Return the PYTHONPATH of a checkout."""
    return os.pathsep.join(str(checkout / name) for name in ("backend", "client", "alerting", "frontend"))


def people(settings: dict[str, str]) -> dict[str, float]:
    """Return what people wait for, ms (median), the CPU of a start and that of a minute in which nothing happens."""
    with (
        tempfile.TemporaryDirectory(prefix="before-") as folder,
        ServerProcess(Path(folder) / "data", settings) as server,
    ):
        found = {"start_cpu_s": usage(server.pid).cpu_s}
        (report,) = reports_of([feed([(server.port, RUN_ID, [0])], 1, 512, time.time() + 1.0, 1.0)])
        wait_folded(server, int(report["ranks"][0]["rows"]))
        asked: dict[str, Callable[[], object]] = {
            "list_ms": lambda: server.get("/runs"),
            "run_ms": lambda: server.get(f"/runs/{RUN_ID}"),
            "chart_ms": lambda: server.get(f"/runs/{RUN_ID}/series", metric="loss", points=2_000),
        }
        for name, ask in asked.items():
            took = []
            for _ in range(REQUESTS):
                begin = time.perf_counter()
                ask()
                took.append((time.perf_counter() - begin) * 1e3)
            found[name] = statistics.median(took)
        before = usage(server.pid)
        time.sleep(30.0)  # the kernel counts hundredths of a second
        found["idle_cpu_s_a_minute"] = 2 * (usage(server.pid).cpu_s - before.cpu_s)
        return found


def compared(found: dict[str, list[tuple[float, float]]], more_is_better: set[str]) -> list[str]:
    """Print a line for each figure; return those that are worse."""
    worse = []
    for name, pairs in found.items():
        ratios = [after / before for before, after in pairs if before]
        if not ratios:
            continue
        ratio = statistics.median(ratios)
        loss = 1 / ratio - 1 if name in more_is_better else ratio - 1
        before, after = (statistics.median(side) for side in zip(*pairs, strict=True))
        mark = "  WORSE" if loss > ALLOWED else ""
        worse += [name] if mark else []
        print(f"  {name:<36}{before:>14,.2f}{after:>14,.2f}   {ratio:.3f} [{min(ratios):.3f}..{max(ratios):.3f}]{mark}")
    return worse


def main() -> int:
    """Measure, print, and return 0 where nothing is worse."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long the agents send")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ingest", action="store_true", help="only how points come in")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sides = [{"PYTHONPATH": roots(each)} for each in (options.before.resolve(), Path(__file__).resolve().parents[1])]
    found: dict[str, list[tuple[float, float]]] = {}
    more_is_better = set[str]()
    for repeat in range(options.repeats):
        # The machine warms up, or others begin: each is first in turn.
        order = sides if repeat % 2 == 0 else sides[::-1]
        results: dict[int, dict[str, float]] = {}
        for side in order:
            one: dict[str, float] = {}
            for rows, node in CASES:
                print(f"repeat {repeat + 1}: {rows} rows          ", end="\r", file=sys.stderr)
                figures: dict[str, Any] = measure(rows, options.seconds, side, None, node=node)
                for name, more in FIGURES.items():
                    one[f"{name}, {rows} rows"] = figures[name]
                    more_is_better |= {f"{name}, {rows} rows"} if more else set()
            results[sides.index(side)] = one if options.ingest else one | people(side)
        for name, before in results[0].items():
            found.setdefault(name, []).append((before, results[1][name]))
    if options.json:
        print(json.dumps(found))
    print(f"before, this tree, ratio; {options.repeats} repeats, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    worse = compared(found, more_is_better)
    print(f"worse by over {ALLOWED:.0%}: {', '.join(worse) or 'nothing'}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
