"""Measures what the agent costs: CPU and memory of one agent for 8 ranks and 8 GPUs, and the job's step time with it.

    python benchmarks/agent_cost.py [--seconds 60] [--ranks 8] [--gpus 8] [--repeats 7] [--json]

The first part runs real processes that log 12 metrics and enter two phases ten times a second under one agent and a
real server; the GPUs are those of the library that speaks NVML's ABI in our tests (none where no C compiler is there).
The second part is paired: one job of fixed work a step runs with ``STABILITY_MODE`` disabled, offline (recording, no
agent) and online (with an agent and a server), one after the other; ratios are taken within a repeat, since on a
shared machine absolute times wander.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from server_process import ServerProcess, usage

#: Aims of the product: share of a core and MiB of one agent, and how much longer a step may take with it.
AIM_CPU, AIM_RSS_MIB, AIM_STEP = 0.02, 60.0, 0.005
#: Seconds after the start that are not counted: imports, first chunks, the inventory of the GPUs.
SETTLE_S = 5.0
#: Fixed work of one step, iterations of a loop: about 20 ms. Steps that are not counted.
STEP_WORK, WARM_UP_STEPS = 300_000, 10
#: Steps of one run of the second part.
STEPS = 150

_RANK = """
import random, time
import stabilityclient
run = stabilityclient.init(project="bench", name="agent cost")
begin = time.monotonic()
for step in run.steps(1):
    with run.phase("data"):
        time.sleep(0.03)
    with run.phase("forward"):
        time.sleep(0.03)
    run.log(step, {f"m{number}": random.random() for number in range(12)})
    time.sleep(max(0.0, begin + 0.1 * step - time.monotonic()))
"""

_STEPS = """
import json, sys, time
import stabilityclient
run = stabilityclient.init(project="bench", name="step time")
work, steps = int(sys.argv[1]), int(sys.argv[2])
times = []
for step in run.steps(1, steps + 1):
    begin = time.perf_counter()
    with run.phase("forward"):
        total = 0
        for number in range(work):
            total += number
    run.log(step, {f"m{number}": float(number) for number in range(12)})
    times.append(time.perf_counter() - begin)
print(json.dumps(times), flush=True)
run.finish()
"""


def environment(url: str, folder: Path, run_id: str, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STABILITY_")}
    return clean | {"STABILITY_URL": url, "STABILITY_DIR": str(folder), "STABILITY_RUN_ID": run_id} | more


def fake_gpus(folder: Path, count: int) -> dict[str, str]:
    """Return the environment in which NVML sees ``count`` GPUs of ours, {} where the library can't be built."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "nvml"))
    try:
        from fake_nvml import FakeNvml, build

        return dict(FakeNvml(build(folder), folder, gpus=count).environ) if count else {}
    except Exception as error:  # no compiler: the agent is measured without GPUs, and the table says so
        print(f"no GPUs: {type(error).__name__}: {error}", file=sys.stderr)
        return {}


def measure_agent(url: str, folder: Path, ranks: int, gpus: int, seconds: float) -> dict[str, Any]:
    """Return CPU and memory of one agent, and how many records it carried."""
    (folder / "nvml").mkdir()
    nvml = fake_gpus(folder / "nvml", gpus)
    common = environment(url, folder, "agent-cost", WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks), **nvml)
    jobs = [
        subprocess.Popen([sys.executable, "-c", _RANK], env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
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
    return {"ranks": ranks, "gpus": gpus if nvml else 0, "cpu_share": share, "rss_mib": after.rss_mib}


def step_ms(url: str, folder: Path, mode: str, repeat: int) -> float:
    """Return the median step of one run, milliseconds."""
    env = environment(url, folder, f"{mode}-{repeat}", STABILITY_MODE=mode)
    command = [sys.executable, "-c", _STEPS, str(STEP_WORK), str(STEPS)]
    out = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    return 1000 * statistics.median(json.loads(out)[WARM_UP_STEPS:])


def measure_steps(url: str, folder: Path, repeats: int) -> dict[str, Any]:
    """Return median step times by mode and their ratios to ``disabled`` in the same repeat."""
    modes = ("disabled", "offline", "online")
    rows = []
    for repeat in range(repeats):
        # Another order in each repeat, so that none is always the first.
        order = modes[repeat % 3 :] + modes[: repeat % 3]
        rows.append({mode: step_ms(url, folder, mode, repeat) for mode in order})
    result: dict[str, Any] = {mode: statistics.median(row[mode] for row in rows) for mode in modes}
    for mode in modes[1:]:
        ratios = sorted(row[mode] / row["disabled"] for row in rows)
        result[f"{mode}_ratio"] = {"median": statistics.median(ratios), "min": ratios[0], "max": ratios[-1]}
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing that was started stays
    with tempfile.TemporaryDirectory() as name, ServerProcess(Path(name) / "data") as server:
        folder = Path(name) / "spool"
        folder.mkdir()
        agent = measure_agent(server.url, folder, arguments.ranks, arguments.gpus, arguments.seconds)
        steps = measure_steps(server.url, folder, arguments.repeats)
    if arguments.json:
        print(json.dumps({"agent": agent, "steps": steps}))
    else:
        print(f"{'':28}{'measured':>12}{'aim':>10}")
        who = f"one agent, {agent['ranks']} ranks, {agent['gpus']} GPUs"
        print(f"{who}")
        print(f"{'  CPU, % of one core':28}{100 * agent['cpu_share']:12.2f}{100 * AIM_CPU:10.1f}")
        print(f"{'  memory, MiB (RSS)':28}{agent['rss_mib']:12.1f}{AIM_RSS_MIB:10.0f}")
        print(f"step time, median of {arguments.repeats} runs")
        print(f"{'  disabled, ms':28}{steps['disabled']:12.3f}")
        for mode in ("offline", "online"):
            ratio = steps[f"{mode}_ratio"]
            spread = f"  (repeats {100 * (ratio['min'] - 1):+.2f} to {100 * (ratio['max'] - 1):+.2f} %)"
            print(f"{f'  {mode}, ms':28}{steps[mode]:12.3f}")
            print(f"{'    against disabled, %':28}{100 * (ratio['median'] - 1):+12.2f}{100 * AIM_STEP:10.1f}{spread}")
    missed = agent["cpu_share"] > AIM_CPU or agent["rss_mib"] > AIM_RSS_MIB
    return int(missed or steps["online_ratio"]["median"] - 1 > AIM_STEP)


if __name__ == "__main__":
    sys.exit(main())
