"""A job of any size as a server sees it: one real WebSocket connection a node, eight ranks and eight GPUs each.

Its agents say Hello, a Health once a second, `gpu/<i>/<field>` points every ten seconds and events, all in one asyncio
process. What is wrong with it can be switched while it runs (``Trouble``).

    python benchmarks/simulated_job.py --url http://127.0.0.1:8300 --ranks 2048 --trouble "data:517 silent:7"
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from parts.simulated_agent import GPU_EVERY_S, GPUS_PER_NODE, STEP_S, SimulatedAgent

__all__ = ["GPUS_PER_NODE", "SimulatedJob", "Trouble"]

#: Opened at once: a server takes hundreds a second, and nobody waits for the last one.
CONNECTING = 64


@dataclass
class Trouble:
    """What is wrong with the job; the sets may be changed while it runs.

    Args:
        silent: nodes that say nothing any more, their connection open.
        data: ranks that do not leave the phase ``data``; every other one waits in ``backward``.
        behind: ranks that are ten steps behind.
        hot: ranks whose GPU is too hot and throttled.
        lost: ranks whose GPU is lost.
        ecc: ranks whose GPU has uncorrected ECC errors.
        dead: ranks whose process was killed.
        long: ranks that write a checkpoint for ten minutes.
        blind: nodes that can't read the kernel log.
        torn: ranks whose slot can't be read.
        no_gpu: nodes that see no GPU.
        garbage: nodes whose agent sends what no page expects.
    """

    silent: set[int] = field(default_factory=set)
    data: set[int] = field(default_factory=set)
    behind: set[int] = field(default_factory=set)
    hot: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    ecc: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    long: set[int] = field(default_factory=set)
    blind: set[int] = field(default_factory=set)
    torn: set[int] = field(default_factory=set)
    no_gpu: set[int] = field(default_factory=set)
    garbage: set[int] = field(default_factory=set)

    def switch_on(self, words: str) -> None:
        """Switch on what ``words`` say: ``kind:number`` with spaces between."""
        for word in words.split():
            kind, _, number = word.partition(":")
            getattr(self, kind).add(int(number))


class SimulatedJob:
    """A job of ``ranks`` ranks.

    Args:
        url: of the server, ``http://...``.
        run_id: its run.
        ranks: how many; eight a node.
        clock: unix seconds.
        health_s: seconds between two Health messages of an agent.
        gpu_every_s: seconds between two readings of the GPUs.
        row_metrics: metrics that each rank logs at each step; 0: only rank 0 logs, its loss.
        seed: of the readings' noise.
    """

    def __init__(
        self,
        url: str,
        run_id: str,
        ranks: int,
        *,
        clock: Callable[[], float] = time.time,
        health_s: float = 1.0,
        gpu_every_s: float = GPU_EVERY_S,
        row_metrics: int = 0,
        seed: int = 1,
    ) -> None:
        self.url, self.run_id, self.ranks = url.replace("http", "ws", 1) + "/api/v1/agent", run_id, ranks
        self.trouble = Trouble()
        self.clock, self.health_s, self.gpu_every_s = clock, health_s, gpu_every_s
        self.row_metrics = row_metrics
        self.started = clock()
        self.random = random.Random(seed)
        #: When the first rank began to hold up all others, and at which step; None while all run.
        self.stood_since: float | None = None

    @property
    def nodes(self) -> int:
        """How many nodes it has."""
        return -(-self.ranks // GPUS_PER_NODE)

    def node_name(self, node: int) -> str:
        """Return the name of a node, from 1 on as racks are labelled."""
        return f"gpu-{node + 1:03d}"

    def ranks_of(self, node: int) -> range:
        """Return the ranks of a node."""
        return range(node * GPUS_PER_NODE, min(self.ranks, (node + 1) * GPUS_PER_NODE))

    def step_now(self) -> int:
        """Return the step that the job is in; it stands while a rank holds it up."""
        if self.trouble.data or self.trouble.dead:
            self.stood_since = self.stood_since or self.clock()
        else:
            self.stood_since = None
        return int(((self.stood_since or self.clock()) - self.started) / STEP_S)

    async def run(self, stop: asyncio.Event) -> None:
        """Run every agent until ``stop``."""
        gate = asyncio.Semaphore(CONNECTING)
        async with asyncio.TaskGroup() as group:
            for node in range(self.nodes):
                group.create_task(SimulatedAgent(self, node).run(stop, gate))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--run", default="simulated")
    parser.add_argument("--ranks", type=int, default=2048)
    parser.add_argument("--trouble", default="", help='such as "data:517 silent:7"')
    parser.add_argument("--after", type=float, default=0.0, help="seconds until the trouble begins")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--row-metrics", type=int, default=0, help="metrics that every rank logs at each step")
    options = parser.parse_args()
    job = SimulatedJob(options.url, options.run, options.ranks, row_metrics=options.row_metrics)

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.call_later(options.after, job.trouble.switch_on, options.trouble)
        loop.call_later(options.seconds, stop.set)
        if not options.after:
            job.trouble.switch_on(options.trouble)
        await job.run(stop)

    asyncio.run(run())


if __name__ == "__main__":
    main()
