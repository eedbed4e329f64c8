"""How long after kill -9 of the server until every live run is judged again, and what that costs.

    python benchmarks/restart.py [--runs 4 12 50] [--rows 12000] [--frame 1] [--json]

N live runs log ``--rows`` rows of 12 metrics, ``--frame`` rows a frame, all of them within the window: the hardest
case. Then the server is killed and started anew, twice: with what it had written down of the
runs, and without (as a server of another version or on another machine starts: every frame is folded again). Times
count from the first answer of ``/livez``; CPU is that of the server alone. Aim: 5 s with 50 runs. Returns 1 when it is
missed, or when a run does not have the step that it had.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from big_run import METRICS, row_values
from parts.feeder import WireAgent
from parts.server_process import ServerProcess, usage

from stabilityclient.wire import EventBlock, Frame, PointsBlock, SourceInfo

#: Every live run is judged within so many seconds.
AIM_S = 5.0
TIMEOUT_S = 600.0
POLL_S = 0.02


def feed(server: ServerProcess, run_id: str, rows: int, frame_rows: int) -> WireAgent:
    """Log a run and return its agent, still connected."""
    started = time.time() - 1.0
    info = SourceInfo(f"{run_id}-r0-1", 0, 1, 0, "n0", 1, started, 0)
    noise = np.random.default_rng(sum(run_id.encode()))
    steps = np.arange(1, rows + 1)
    values, times = row_values(noise, steps), started + steps * 0.01
    agent = WireAgent("127.0.0.1", server.port, run_id, f"a-{run_id}", sources=(info,), name=run_id)
    agent.send(Frame(info, 1, 1, [EventBlock("start", started)]))
    for at in range(0, rows, frame_rows):
        part = slice(at, at + frame_rows)
        columns = np.ascontiguousarray(values[:, part]).tobytes()
        block = PointsBlock(list(METRICS), steps[part].tobytes(), times[part].tobytes(), columns)
        agent.send(Frame(info, at + 2, at + 1 + len(steps[part]), [block]))
    agent.drain()
    return agent


def folded(server: ServerProcess, runs: list[str], rows: int) -> None:
    """Return when every run is folded and shown as live in what is stored."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        found = [server.get(f"/runs/{run_id}") for run_id in runs]
        if all(run["last_step"] == rows for run in found):
            time.sleep(2.5)  # two ticks store the view
            return
        time.sleep(0.5)
    raise SystemExit(f"the runs were not folded within {TIMEOUT_S:.0f} s")


def restart(server: ServerProcess, runs: list[str], rows: int) -> dict[str, Any]:
    """Kill the server, start it and return how long it took until all runs were judged."""
    server.kill()
    server.start()
    begin = time.monotonic()
    cpu_up = usage(server.pid).cpu_s
    with httpx.Client(base_url=server.url, timeout=TIMEOUT_S) as client:
        while client.get("/readyz").status_code != 200:
            if time.monotonic() - begin > TIMEOUT_S:
                raise SystemExit(f"not ready within {TIMEOUT_S:.0f} s: {client.get('/readyz').text}")
            time.sleep(POLL_S)
    ready_s, cpu_s = time.monotonic() - begin, usage(server.pid).cpu_s
    same = all(server.get(f"/runs/{run_id}")["last_step"] == rows for run_id in runs)
    return {"ready_s": round(ready_s, 2), "cpu_s": round(cpu_s - cpu_up, 2), "cpu_all_s": cpu_s, "same": same}


def measure(count: int, rows: int, frame_rows: int) -> dict[str, Any]:
    """Return the figures for ``count`` live runs."""
    with tempfile.TemporaryDirectory(prefix="stability-restart-") as folder:
        data_dir = Path(folder) / "data"
        with ServerProcess(data_dir, {"STABILITY_WINDOW_MIB": "32"}) as server:
            runs = [f"run-{i:03}" for i in range(count)]
            agents = [feed(server, run_id, rows, frame_rows) for run_id in runs]
            folded(server, runs, rows)
            files = sum(path.stat().st_size for path in (data_dir / "restart").rglob("*") if path.is_file())
            hot = server.get(f"/runs/{runs[0]}/storage")["hot"]
            kept = restart(server, runs, rows)
            server.kill()
            shutil.rmtree(data_dir / "restart")
            without = restart(server, runs, rows)
            del agents
    return {
        "runs": count,
        "rows": rows,
        "frame_rows": frame_rows,
        "window_mib": round(hot["bytes"] / 2**20, 1),
        "file_mib_a_run": round(files / count / 2**20, 2),
        "with": kept,
        "without": without,
    }


def main() -> int:
    """Measure, print a table or JSON, return 1 when the aim was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[4, 12, 50])
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--frame", type=int, default=1, help="rows a frame")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    results = [measure(count, given.rows, given.frame) for count in given.runs]
    if given.json:
        print(json.dumps(results))
    else:
        print("live runs  rows each  hot MiB  file MiB | with files: ready s  CPU s | without: ready s  CPU s")
        for one in results:
            kept, bare = one["with"], one["without"]
            print(
                f"{one['runs']:9} {one['rows']:10} {one['window_mib']:8} {one['file_mib_a_run']:9} |"
                f" {kept['ready_s']:19} {kept['cpu_s']:6} | {bare['ready_s']:16} {bare['cpu_s']:6}"
            )
    good = all(one["with"]["same"] and one["without"]["same"] for one in results)
    return 0 if good and all(one["with"]["ready_s"] <= AIM_S for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
