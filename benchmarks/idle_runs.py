"""What runs cost at which nothing happens: memory of Redis a run, CPU and questions of every role, the list of runs.

    python benchmarks/idle_runs.py [--runs 0 1000 10000] [--kind silent over] [--seconds 20] [--json]

A door, two workers, pages and alerting on one Redis. Each run comes through the door: an agent, a rank, some rows.
``silent``: its agent leaves and does not say that it is done, so workers follow it for a day.
``over``: its rank says that it is done; it is archived and let go.

Then nothing is sent for ``--seconds``, and what each part uses is counted; "0 runs" is the floor. The list is
``GET /api/v1/runs`` (a page of 100) at the pages, beside ``GET /healthz`` of the same process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
from parts.feeder import WireAgent
from parts.role_stack import Shape, Stack, started
from parts.server_process import usage
from redis import Redis

from stabilitybackend.base.keys import MEMBERS, RunKeys
from stabilityclient.wire import EventBlock, Frame, PointsBlock, SourceInfo

SHAPE = Shape(doors=1, workers=2, pages=1, alerting=1)
ROWS = 20
NAMES = ["loss", "grad_norm", "lr", "step_time_s"]
#: Agents that come at the same time.
THREADS = 4
#: Longest wait until the workers follow what they should, and the pause behind it, seconds.
SETTLE_S, QUIET_S = 1_800.0, 15.0
REQUESTS = 20


def send(port: int, number: int, kind: str) -> None:
    """Let the job of a run begin, log some rows, and end or vanish."""
    now = time.time()
    info = SourceInfo(f"r0-{number:x}-1", 0, 1, 0, f"n{number}", 1, now, 0)
    run_id = f"idle-{number:05d}"
    noise = random.Random(number)  # runs of the same losses would be an incident
    values = [[noise.random() for _ in range(ROWS)] for _ in NAMES]
    steps, times = struct.pack(f"<{ROWS}q", *range(1, ROWS + 1)), struct.pack(f"<{ROWS}d", *(now for _ in range(ROWS)))
    block = PointsBlock(NAMES, steps, times, b"".join(struct.pack(f"<{ROWS}d", *column) for column in values))
    with WireAgent("127.0.0.1", port, run_id, f"a{number}", node=f"n{number}", sources=(info,)) as agent:
        agent.send(Frame(info, 1, 1, [EventBlock("start", now)]))
        agent.send(Frame(info, 2, 1 + ROWS, [block]))
        if kind == "over":
            agent.send(Frame(info, 2 + ROWS, 2 + ROWS, [EventBlock("finish", now)]))
        agent.drain()


def make(port: int, first: int, count: int, kind: str) -> None:
    """Make runs, some at a time."""

    def some(begin: int) -> None:
        for number in range(first + begin, first + count, THREADS):
            send(port, number, kind)

    threads = [threading.Thread(target=some, args=(begin,)) for begin in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def settle(stack: Stack, followed: int) -> None:
    """Return when the workers follow so many runs, and what that asked of them is over."""
    end = time.monotonic() + SETTLE_S
    while (found := stack.followed()) != followed:
        if time.monotonic() > end:
            raise SystemExit(f"{found} runs are followed after {SETTLE_S:.0f} s, expected {followed}")
        time.sleep(1.0)
    time.sleep(QUIET_S)


def watched(stack: Stack, seconds: float) -> dict[str, float]:
    """Return the cores that each part uses during some seconds."""
    before, begin = stack.cpu_s(), time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - begin
    return {part: (spent - before[part]) / took for part, spent in stack.cpu_s().items()}


def list_ms(url: str) -> dict[str, float]:
    """Return the median ms of the list's first page and of a request with next to nothing in it, in turn."""
    took: dict[str, list[float]] = {"list": [], "floor": []}
    with httpx.Client(base_url=url, timeout=60.0) as client:
        for _ in range(REQUESTS):
            for name, path in (("list", "/api/v1/runs?limit=100"), ("floor", "/healthz")):
                begin = time.perf_counter()
                client.get(path).raise_for_status()
                took[name].append((time.perf_counter() - begin) * 1e3)
    return {name: statistics.median(some) for name, some in took.items()}


def measure(stack: Stack, runs: int, seconds: float) -> dict[str, Any]:
    """Return the figures of what is there now."""
    with Redis.from_url(stack.redis_url) as redis:
        before: Any = redis.info("commandstats")
        cores = watched(stack, seconds)
        after: Any = redis.info("commandstats")
        memory: Any = redis.info("memory")
        calls = {
            name.removeprefix("cmdstat_"): (one["calls"] - before.get(name, {"calls": 0})["calls"]) / seconds
            for name, one in after.items()
        }
        keys = RunKeys("idle-00000")
        sizes = {key.rpartition("}:")[2]: redis.memory_usage(key, samples=0) or 0 for key in keys.all()} if runs else {}
        members: Any = redis.memory_usage(MEMBERS, samples=0)
    return {
        "runs": runs,
        "redis_bytes": int(memory["used_memory"]),
        "key_bytes": {name: size for name, size in sizes.items() if size},
        "members_bytes": members,
        "cores": cores,
        "calls_s": dict(sorted(calls.items(), key=lambda one: -one[1])[:6]),
        "rss_mib": {part: sum(usage(pid).rss_mib for pid in pids) for part, pids in stack.pids.items()},
        "load": os.getloadavg()[0],
    } | {f"{name}_ms": ms for name, ms in list_ms(stack.urls[0]).items()}


def say(kind: str, found: list[dict[str, Any]]) -> None:
    """Print the table of one kind."""
    base = found[0]
    print(f"\n{kind} runs; {SHAPE}; {os.cpu_count()} cores, load {min(f['load'] for f in found):.1f} to "
          f"{max(f['load'] for f in found):.1f}")  # fmt: skip
    for one in found:
        runs = one["runs"]
        each = (one["redis_bytes"] - base["redis_bytes"]) / max(1, runs - base["runs"]) / 1024
        print(
            f"  {runs:,} runs: Redis {one['redis_bytes'] / 2**20:.1f} MiB, {each:.1f} KiB a run; "
            f"the hash of the members {one['members_bytes']} bytes"
        )
        if one["key_bytes"]:
            print("    keys of one, bytes: " + ", ".join(f"{name} {size:,}" for name, size in one["key_bytes"].items()))
        print("    cores: " + ", ".join(f"{part} {share:.3f}" for part, share in one["cores"].items()))
        print("    resident MiB: " + ", ".join(f"{part} {mib:.0f}" for part, mib in one["rss_mib"].items()))
        calls = (f"{name} {rate:.0f}" for name, rate in one["calls_s"].items())
        print(f"    calls of Redis a second: {', '.join(calls)}")
        print(f"    GET /api/v1/runs {one['list_ms']:.1f} ms, {one['list_ms'] / one['floor_ms']:.1f} x /healthz "
              f"({one['floor_ms']:.1f} ms)")  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[0, 1_000, 10_000])
    parser.add_argument("--kind", nargs="+", default=["silent", "over"], choices=["silent", "over"])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    facts = {}
    for kind in options.kind:
        found = []
        with tempfile.TemporaryDirectory(prefix="idle-") as folder, started(SHAPE, Path(folder)) as stack:
            there = 0
            for runs in options.runs:
                begin = time.monotonic()
                make(stack.doors[0], there, runs - there, kind)
                there = runs
                print(f"{kind}: {runs} runs made in {time.monotonic() - begin:.0f} s", file=sys.stderr)
                if runs:
                    settle(stack, runs if kind == "silent" else 0)
                print(f"{kind}: quiet after {time.monotonic() - begin:.0f} s", file=sys.stderr)
                found.append(measure(stack, runs, options.seconds))
                if not options.json:
                    say(kind, [found[0], found[-1]] if len(found) > 1 else found)
        facts[kind] = found
    if options.json:
        print(json.dumps(facts))


if __name__ == "__main__":
    main()
