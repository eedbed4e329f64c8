"""Processes that send rows of 12 metrics, mostly as fast as a server confirms: each is several agents, a thread each.

    python -m parts.feeding AGENTS WORLD ROWS BEGIN SECONDS RATE    # in benchmarks/

AGENTS: [[port, run, [rank, ...]], ...]; RATE: points a second of each agent, 0 for as fast as the server confirms;

prints what was sent as JSON. An agent of several ranks sends the rows of all of them in one message.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from big_run import METRICS, row_values
from parts.feeder import WireAgent
from parts.server_process import usage

from stabilityclient.node_frames import together
from stabilityclient.wire import EventBlock, Frame, PointsBlock, SourceInfo

__all__ = ["Agent", "feed", "reports_of"]

#: An agent: the port that it connects to, its run, its ranks.
Agent = tuple[int, str, Sequence[int]]
#: Rows of a rank that are made at once; messages between two looks at the clock, at most.
_BATCH_ROWS, _MESSAGES = 8_192, 256


def feed(
    agents: Sequence[Agent], world: int, rows: int, begin: float, seconds: float, rate: float = 0.0
) -> subprocess.Popen[str]:
    """Start a process that sends as ``agents``.

    Args:
        world: ranks of each run. rows: of each rank in a message.
        begin: unix seconds. seconds: how long.
        rate: points a second of each agent at most; 0: as fast as the server confirms.
    """
    command = [sys.executable, "-m", "parts.feeding", json.dumps(agents)]
    command += [str(world), str(rows), repr(begin), repr(seconds), repr(rate)]
    return subprocess.Popen(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True)


def reports_of(feeders: Iterable[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """Return what each process has sent: ``ranks``, each with ``run``, ``rows``, ``frames`` and ``busy``; when it
    ``ended``, unix seconds; its ``cpu_s``."""
    found = []
    for feeder in feeders:
        lines = feeder.communicate()[0].splitlines()
        if feeder.returncode:
            raise SystemExit("an agent ended early")
        found.append(json.loads(lines[-1]))
    return found


def _feed_as(
    agent: Agent, world: int, rows: int, begin: float, seconds: float, rate: float, sent: list[dict[str, Any]]
) -> None:
    port, run_id, ranks = agent
    started = begin - 10.0
    node = f"n{ranks[0]}"
    infos = [SourceInfo(f"r{rank}-{rank:x}-1", rank, world, at, node, 1, started, 0) for at, rank in enumerate(ranks)]
    # Runs of the same losses would be an incident.
    noise = np.random.default_rng([ranks[0], *run_id.encode()])
    names = list(METRICS)
    with WireAgent("127.0.0.1", port, run_id, f"a{ranks[0]}", node=node, sources=tuple(infos)) as wire:
        for info in infos:
            wire.send(Frame(info, 1, 1, [EventBlock("start", started)]))
        wire.drain()
        time.sleep(max(0.0, begin - time.time()))
        seq, first = 1, 1
        batch = min(_BATCH_ROWS, _MESSAGES * rows)
        end = time.time() + seconds
        while time.time() < end:
            steps = np.arange(first, first + batch)
            values = [row_values(noise, steps) for _ in infos]
            times = started + steps * 0.01
            for at in range(0, batch, rows):
                part = slice(at, at + rows)
                columns, count = (steps[part].tobytes(), times[part].tobytes()), len(steps[part])
                frames = []
                for info, mine in zip(infos, values, strict=True):
                    block = PointsBlock(names, *columns, np.ascontiguousarray(mine[:, part]).tobytes())
                    frames.append(Frame(info, seq + 1, seq + count, [block]))
                whole = len(frames) > 1
                for message in [together(frames)] if whole else frames:
                    wire.send(message)
                seq += count
                if rate:
                    due = end - seconds + (seq - 1) * len(ranks) * len(names) / rate
                    time.sleep(max(0.0, min(due, end) - time.time()))
            first += batch
        wire.drain()
        one = {"run": run_id, "rows": first - 1, "frames": wire.acked / len(ranks), "busy": wire.busy}
        sent += [one for _ in ranks]


def _main(agents: Sequence[Agent], *numbers: float) -> None:
    world, rows, begin, seconds, rate = numbers
    sent: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=_feed_as, args=(agent, int(world), int(rows), begin, seconds, rate, sent))
        for agent in agents
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(sent) != sum(len(ranks) for _, _, ranks in agents):
        raise SystemExit(1)
    print(json.dumps({"ranks": sent, "ended": time.time(), "cpu_s": usage(os.getpid()).cpu_s}))


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]), *map(float, sys.argv[2:]))
