"""Rows per second with one and two workers, one and three masters of Redis, and the CPU of each role.

    python benchmarks/role_ingest.py [--seconds 15] [--repeats 2] [--rows 64 1] [--runs 8] [--json]

Eight runs of eight ranks each (12 metrics), one agent a run, which sends ``--rows`` of each rank in a message as fast
as the server confirms. The clock runs from the first message until every row is folded and judged. The peer is one
process that does everything, on the same load in the same repeat. On a machine whose cores are all busy, more processes
give no more rows: what tells is the CPU of each role, and so what a core of it carries. Three masters have a replica
each, whose CPU is counted apart.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from big_run import METRICS
from parts.feeding import feed, reports_of
from parts.role_stack import Shape, started

#: Compared; the first one is the peer.
SHAPES = (
    Shape(), Shape(doors=1, workers=1), Shape(doors=1, workers=2), Shape(doors=1, workers=2, masters=3),
)  # fmt: skip
RANKS = 8
#: Of every server. Doors take a run's frames until two windows wait: with the usual 32 MiB most of it would be that.
SETTINGS = {"STABILITY_WINDOW_MIB": "4"}
#: Processes that feed.
FEEDERS = 2


def measure(shape: Shape, runs: int, rows: int, seconds: float) -> dict[str, Any]:
    """Return the figures of one server."""
    with tempfile.TemporaryDirectory(prefix="roles-") as folder, started(shape, Path(folder), SETTINGS) as stack:
        names = [f"run-{number}" for number in range(runs)]
        agents = [(stack.doors[n % len(stack.doors)], name, range(RANKS)) for n, name in enumerate(names)]
        before, begin = stack.cpu_s(), time.time() + 1.5
        each = [[(port, run, list(ranks)) for port, run, ranks in agents[n::FEEDERS]] for n in range(FEEDERS)]
        reports = reports_of([feed(some, RANKS, rows, begin, seconds) for some in each])
        sent = {rank["run"]: int(rank["rows"]) for report in reports for rank in report["ranks"]}
        folded = stack.wait_folded(sent)
        cpu = {part: spent - before[part] for part, spent in stack.cpu_s().items()}
    cpu["feeders"] = sum(report["cpu_s"] for report in reports)
    total = RANKS * sum(sent.values())
    return {
        "rows": total,
        "rows_s": total / (folded - begin),
        "busy": sum(rank["busy"] for report in reports for rank in report["ranks"]) / RANKS,
        "cpu_s": {part: spent / (total * len(METRICS)) * 1e6 for part, spent in cpu.items()},
        "load": os.getloadavg()[0],
    }


def spread(values: list[float], digits: int) -> str:
    """Return the median [lowest..highest]."""
    return f"{statistics.median(values):,.{digits}f} [{min(values):,.{digits}f}..{max(values):,.{digits}f}]"


def say(rows: int, runs: int, found: dict[Shape, list[dict[str, Any]]]) -> None:
    """Print the table of one size of messages."""
    loads = [one["load"] for some in found.values() for one in some]
    print(
        f"\n{rows} rows of each of {RANKS} ranks a message, {runs} runs, {len(METRICS)} metrics; median of "
        f"{len(found[SHAPES[0]])} [lowest..highest]; {os.cpu_count()} cores, load {min(loads):.1f} to {max(loads):.1f}"
    )
    base = found[SHAPES[0]]
    for shape, some in found.items():
        ratios = [one["rows_s"] / peer["rows_s"] for one, peer in zip(some, base, strict=True)]
        print(f"  {shape}")
        print(f"    rows/s {spread([one['rows_s'] for one in some], 0)}, of one process {spread(ratios, 2)}")
        for part in some[0]["cpu_s"]:
            values = [one["cpu_s"][part] for one in some]
            carries = 1e6 / statistics.median(values) / len(METRICS) if statistics.median(values) else float("inf")
            print(f"    {part:<9} {spread(values, 2):<24} CPU s per 1 M points: a core carries {carries:,.0f} rows/s")
        if busy := sum(one["busy"] for one in some):
            print(f"    agents were asked to wait {busy:.0f} times")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="how long the agents send")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 1], help="of each rank in a message")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    facts = {}
    for rows in options.rows:
        found: dict[Shape, list[dict[str, Any]]] = {shape: [] for shape in SHAPES}
        for repeat in range(options.repeats):
            for shape in SHAPES:
                found[shape].append(measure(shape, options.runs, rows, options.seconds))
                print(f"{rows} rows, repeat {repeat + 1}, {shape}: {found[shape][-1]}", file=sys.stderr)
        facts[rows] = {str(shape): some for shape, some in found.items()}
        if not options.json:
            say(rows, options.runs, found)
    if options.json:
        print(json.dumps(facts))


if __name__ == "__main__":
    main()
