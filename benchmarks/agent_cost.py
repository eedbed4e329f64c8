"""Measures what one agent costs for 8 ranks and 8 GPUs: CPU and memory.

    python benchmarks/agent_cost.py [--seconds 60] [--ranks 8] [--gpus 8] [--json]

Real processes log 12 metrics and enter two phases each step under one agent and a real server; the GPUs are those of
the library that speaks NVML's ABI in our tests (none where no C compiler is there). Once with a step each second, as
large jobs have it at most, and once with ten a second. What a step costs the job is in ``step_effect.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from parts.server_process import ServerProcess, usage

#: Aims of the product: share of a core and MiB of one agent.
AIM_CPU, AIM_RSS_MIB = 0.02, 60.0
#: Seconds after the start that are not counted: imports, first chunks, the inventory of the GPUs.
SETTLE_S = 5.0
#: Seconds a step takes in the jobs.
PERIODS_S = (1.0, 0.1)

_RANK = """
import random, sys, time
import stabilityclient
period = float(sys.argv[1])
run = stabilityclient.init(project="bench", name="agent cost")
begin = time.monotonic()
for step in run.steps(1):
    with run.phase("data"):
        time.sleep(0.3 * period)
    with run.phase("forward"):
        time.sleep(0.3 * period)
    run.log(step, {f"m{number}": random.random() for number in range(12)})
    time.sleep(max(0.0, begin + period * step - time.monotonic()))
"""


def environment(url: str, folder: Path, run_id: str, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STABILITY_")}
    return clean | {"STABILITY_URL": url, "STABILITY_DIR": str(folder), "STABILITY_RUN_ID": run_id} | more


def fake_gpus(folder: Path, count: int) -> dict[str, str]:
    """Return the environment in which NVML sees ``count`` GPUs of ours, {} where the library can't be built."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    try:
        from support.nvml.fake_nvml import FakeNvml, build

        # A driver sleeps until an event comes; ours looks for one, and its looks are not the agent's cost.
        return dict(FakeNvml(build(folder), folder, gpus=count).environ) | {"FAKE_NVML_LOOK_MS": "100"} if count else {}
    except Exception as error:  # no compiler: the agent is measured without GPUs, and the table says so
        print(f"no GPUs: {type(error).__name__}: {error}", file=sys.stderr)
        return {}


def measure(url: str, folder: Path, period_s: float, ranks: int, gpus: int, seconds: float) -> dict[str, Any]:
    """Return CPU and memory of one agent."""
    (folder / "nvml").mkdir(parents=True)
    nvml = fake_gpus(folder / "nvml", gpus)
    common = environment(url, folder, "agent-cost", WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks), **nvml)
    command = [sys.executable, "-c", _RANK]
    jobs = [
        subprocess.Popen([*command, str(period_s)], env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(ranks)
    ]
    try:
        state = folder / "agent-cost" / "agent" / "agent.json"
        deadline = time.monotonic() + 60
        while not state.exists() or json.loads(state.read_bytes()).get("state") != "connected":
            assert time.monotonic() < deadline, "no agent has connected"
            time.sleep(0.1)
        time.sleep(SETTLE_S)
        pid = int(json.loads(state.read_bytes())["pid"])
        begin, before = time.monotonic(), usage(pid).cpu_s
        time.sleep(seconds)
        after, took = usage(pid), time.monotonic() - begin
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    share = (after.cpu_s - before) / took
    found = {"period_s": period_s, "ranks": ranks, "gpus": gpus if nvml else 0}
    return found | {"cpu_share": share, "rss_mib": after.rss_mib}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing that was started stays
    with tempfile.TemporaryDirectory() as name, ServerProcess(Path(name) / "data") as server:
        rows = [
            measure(
                server.url, Path(name) / f"{period_s}", period_s, arguments.ranks, arguments.gpus, arguments.seconds
            )
            for period_s in PERIODS_S
        ]
    if arguments.json:
        print(json.dumps(rows))
    else:
        print(f"one agent, {rows[0]['ranks']} ranks, {rows[0]['gpus']} GPUs")
        print(f"{'steps a second':>16}{'CPU, % of a core':>20}{'aim':>6}{'RSS, MiB':>12}{'aim':>6}")
        for row in rows:
            cpu, memory = f"{100 * row['cpu_share']:.2f}", f"{row['rss_mib']:.1f}"
            print(f"{1 / row['period_s']:16.0f}{cpu:>20}{100 * AIM_CPU:6.0f}{memory:>12}{AIM_RSS_MIB:6.0f}")
    return int(any(row["cpu_share"] > AIM_CPU or row["rss_mib"] > AIM_RSS_MIB for row in rows))


if __name__ == "__main__":
    sys.exit(main())
