"""A process that watches the GPUs of its node as an agent does, and prints its events: one JSON object a line.

    python watched_node.py POLL_S [RANK:PID:LOCAL_RANK ...]

Runs until its standard input is closed. STABILITY_KMSG is its kernel log.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from typing import Any

import msgspec

from stabilityclient.agent.gpu import monitor as monitor_module
from stabilityclient.agent.gpu.monitor import GpuMonitor, RankProcess
from stabilityclient.agent.watch.kernel_log import KernelLog

# The agent's own are made for a node, ours for tests that wait for each step.
monitor_module.TICK_S, monitor_module.INVENTORY_SETTLES_S = 0.03, 0.2


def say(kind: str, data: Any) -> None:
    print(json.dumps({"kind": kind, "data": data}), flush=True)


async def watch(poll_s: float, ranks: list[RankProcess]) -> None:
    kernel = KernelLog(environ=os.environ)
    monitor = GpuMonitor(say, lambda row: say("row", row), lambda: ranks, lambda: not kernel.blind, poll_s=poll_s)
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(over.set)), daemon=True).start()
    task = asyncio.create_task(monitor.run())
    before: Any = None
    while not over.is_set() and not task.done():
        monitor.kernel(kernel.read())
        now = {
            "blind": msgspec.to_builtins(monitor.gaps()),
            "gpu": {name: value for name, value in monitor.reading.items() if name != "time"},
            "ranks": {str(rank.rank): monitor.device_of(rank.pid, rank.local_rank) for rank in ranks},
        }
        if now != before:
            say("state", now)
            before = now
        await asyncio.sleep(0.02)
    if task.done():
        task.result()
    task.cancel()


def main(arguments: list[str]) -> None:
    ranks = [RankProcess(*(int(part) for part in text.split(":"))) for text in arguments[1:]]
    asyncio.run(watch(float(arguments[0]), ranks))


if __name__ == "__main__":
    main(sys.argv[1:])
