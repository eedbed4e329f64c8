"""Measures what looking at the GPUs costs: wall and CPU time per GPU of a cheap and of a dear look.

    python benchmarks/gpu_poll.py [--looks 200] [--json]

The floor is the very same calls of the C library, with the same arguments and nothing around them: recorded once from
pynvml and repeated. Measured on the library of ours that speaks NVML's ABI (tests/support/nvml) with 1 and 8 GPUs, so
it is the cost of our side; where this machine has GPUs also on them, which adds what the driver takes. Each case is a
process of its own, since the loader reads LD_LIBRARY_PATH once. Exit code 1: an aim is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Aim: share of one core for 8 GPUs at the default poll, our side alone.
AIM_SHARE = 0.002
#: Looks that are not counted: imports, questions that are asked once.
WARM_UP = 5
#: Seconds between two cheap and two dear looks (agent/gpu/poller.py).
CHEAP_S, DEAR_S = 10.0, 60.0


def main() -> int:
    """Run all cases and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--looks", type=int, default=200, help="looks of each kind in a case")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(arguments.looks)))
        return 0
    cases = {}
    with tempfile.TemporaryDirectory(prefix="gpu-poll-") as folder:
        for gpus in (1, 8):
            environ = ours(Path(folder), gpus)
            cases[f"ours, {gpus} GPU"] = run_case(arguments.looks, environ) if environ else "no C compiler here"
    cases["this machine"] = run_case(max(20, arguments.looks // 10), {})
    if arguments.json:
        print(json.dumps(cases, indent=2))
    else:
        print_table(cases)
    eight = cases["ours, 8 GPU"]
    return int(isinstance(eight, dict) and share_of(eight) > AIM_SHARE)


def ours(folder: Path, gpus: int) -> dict[str, str]:
    """Return the environment in which NVML sees GPUs of ours, {} where the library can't be built."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.nvml.fake_nvml import FakeNvml, build, compiler

    return dict(FakeNvml(build(folder), folder, gpus).environ) if compiler() else {}


def run_case(looks: int, environ: dict[str, str]) -> dict[str, Any] | str:
    """Return the figures of one process, or why there are none."""
    command = [sys.executable, __file__, "--looks", str(looks), "--case", "child"]
    done = subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, timeout=300)
    if done.returncode:
        return f"failed: {done.stderr.strip().splitlines()[-1:]}"
    found = json.loads(done.stdout)
    return found if isinstance(found, dict) else str(found)


def measure(looks: int) -> dict[str, Any] | str:
    """Return the figures of this process, per GPU in microseconds."""
    from stabilityclient.agent.gpu.reader import GpuReader

    reader = GpuReader()
    first = reader.sample(True, True)
    if not first.visible:
        return first.text
    for _ in range(WARM_UP):
        reader.sample(True, True)
    gpus = len(first.samples)
    found: dict[str, Any] = {"gpus": gpus, "name": first.text, "driver": first.driver}
    for kind, dear in (("cheap", False), ("dear", True)):
        calls = recorded(lambda dear=dear: reader.sample(dear, dear))

        def floor(calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = calls) -> None:
            for call, arguments in calls:
                call(*arguments)

        found[kind] = {"calls": len(calls) / gpus}
        # In turn, so that a slow moment of the machine meets both.
        times: dict[str, list[tuple[float, float]]] = {"look": [], "floor": []}
        for _ in range(looks):
            times["look"].append(timed(lambda dear=dear: reader.sample(dear, dear)))
            times["floor"].append(timed(floor))
        for name, both in times.items():
            wall, cpu = ([1e6 * value[at] / gpus for value in both] for at in (0, 1))
            found[kind][name] = {"wall_us": spread(wall), "cpu_us": spread(cpu)}
    reader.close()
    return found


def recorded(sample: Callable[[], Any]) -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Return each call of the C library that one look makes, with its arguments."""
    import pynvml

    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
    cache = pynvml._nvmlGetFunctionPointer_cache

    def recorder(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls.append((function, arguments))
            return function(*arguments)

        return call

    before = dict(cache)
    cache.update({name: recorder(function) for name, function in before.items()})
    try:
        sample()
    finally:
        cache.update(before)
    return calls


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Return wall and CPU seconds of one call."""
    wall, cpu = time.perf_counter(), time.thread_time()
    work()
    return time.perf_counter() - wall, time.thread_time() - cpu


def spread(values: list[float]) -> list[float]:
    """Return median and the 5th and 95th percentile."""
    cuts = statistics.quantiles(values, n=20)
    return [round(value, 1) for value in (statistics.median(values), cuts[0], cuts[-1])]


def share_of(case: dict[str, Any]) -> float:
    """Return the share of one core that the looks of a case take at the default poll."""
    cost = case["cheap"]["look"]["cpu_us"][0] / CHEAP_S + case["dear"]["look"]["cpu_us"][0] / DEAR_S
    return float(cost * case["gpus"] / 1e6)


def print_table(cases: dict[str, Any]) -> None:
    """Print what was found, us per GPU: median (5 % to 95 %)."""
    print("| GPUs | look | calls per GPU | wall us per GPU | CPU us per GPU | bare C calls, wall us | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name, case in cases.items():
        if isinstance(case, str):
            print(f"| {name} | {case} | | | | | |")
            continue
        for kind in ("cheap", "dear"):
            sample, floor = case[kind]["look"], case[kind]["floor"]
            ratio = sample["wall_us"][0] / max(0.1, floor["wall_us"][0])
            wall, cpu, bare = (
                f"{mid:.0f} ({low:.0f} to {high:.0f})"
                for mid, low, high in (sample["wall_us"], sample["cpu_us"], floor["wall_us"])
            )
            print(f"| {name} | {kind} | {case[kind]['calls']:.1f} | {wall} | {cpu} | {bare} | {ratio:.1f} |")
        print(f"| {name} | a cheap look each 10 s, a dear one each 60 s: {share_of(case):.4%} of a core | | | | | |")


if __name__ == "__main__":
    sys.exit(main())
