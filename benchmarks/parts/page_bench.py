"""What the figures of pages are measured on: a server with a long run, a run of many metrics and a live one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from big_run import BEGIN, feed, tell_story
from parts.feeder import WireAgent
from parts.server_process import ServerProcess

from stabilityclient.wire import EventBlock, Frame, PointsBlock, SourceInfo

__all__ = ["BIG", "CHARTS", "LIVE", "RATE_HZ", "WIDE", "WIDE_METRICS", "Bench", "live_job"]

#: The runs: 10 M points; 600 metrics; 20 metrics that come all the time.
BIG, WIDE, LIVE = "big", "wide", "live"
WIDE_METRICS, WIDE_STEPS = 600, 2_000
CHARTS, RATE_HZ = 20, 5.0
#: Steps a frame of the run of many metrics: 0.5 MB.
_WIDE_ROWS = 100
_JOB = """
import math, random, sys, time, stabilityclient
charts, rate = int(sys.argv[1]), float(sys.argv[2])
names = ["loss", "grad_norm", "lr", "tokens_per_s", *(f"layer/{at}" for at in range(charts))]
run = stabilityclient.init(project="bench", name="live")
begin = time.monotonic()
for step in run.steps(1):
    time.sleep(max(0.0, begin + step / rate - time.monotonic()))
    run.log(step, {name: 2.0 + math.exp(-step / 300) + 0.02 * random.gauss(0, 1) for name in names})
"""


@dataclass
class Bench:
    """What all measurements get.

    Attributes:
        server: has the runs. folder: for what else is stored. quick: fewer and shorter ones. chromium: the binary.
        steps: of the long run, 12.5 points each.
    """

    server: ServerProcess
    folder: Path
    quick: bool
    chromium: str
    steps: int

    @property
    def url(self) -> str:
        """Of the server."""
        return self.server.url

    def times(self, few: int, many: int) -> int:
        """Return how often something is measured."""
        return few if self.quick else many

    def make_big(self) -> None:
        """Feed the long run, unless it is there."""
        if self.has(BIG, self.steps):
            return
        story = tell_story(self.steps)
        feed(story, "127.0.0.1", self.server.port, BIG)
        self._wait(BIG, self.steps)

    def make_wide(self) -> None:
        """Feed the run of 600 metrics, unless it is there."""
        if self.has(WIDE, WIDE_STEPS):
            return
        random = np.random.default_rng(7)
        names = ["loss", *(f"group{at // 50}/metric{at:03d}" for at in range(1, WIDE_METRICS))]
        info = SourceInfo("r0-1-1", 0, 1, 0, "n0", 1, BEGIN, 0)
        with WireAgent("127.0.0.1", self.server.port, WIDE, "a0", sources=(info,), name="600 metrics") as agent:
            agent.send(Frame(info, 1, 1, [EventBlock("start", BEGIN)]))
            for first in range(1, WIDE_STEPS + 1, _WIDE_ROWS):
                steps = np.arange(first, first + _WIDE_ROWS)
                values = 2 + np.exp(-steps / 400) + 0.05 * random.standard_normal((WIDE_METRICS, _WIDE_ROWS))
                block = PointsBlock(names, steps.tobytes(), (BEGIN + 0.5 * steps).tobytes(), values.tobytes())
                agent.send(Frame(info, first + 1, first + _WIDE_ROWS, [block]))
            agent.send(Frame(info, WIDE_STEPS + 2, WIDE_STEPS + 2, [EventBlock("finish", BEGIN + 0.5 * WIDE_STEPS)]))
            agent.drain()
        self._wait(WIDE, WIDE_STEPS)

    def has(self, run: str, last: int) -> bool:
        """Whether the server has a run up to a step."""
        answer = self.server.try_ask(f"/runs/{run}")
        return answer is not None and (answer.json()["last_step"] or 0) >= last

    def _wait(self, run: str, last: int) -> None:
        while not self.has(run, last):
            time.sleep(0.2)


@contextlib.contextmanager
def live_job(bench: Bench) -> Iterator[None]:
    """A job that logs 20 metrics five times a second through the real client and agent, from its first points on."""
    own = {"STABILITY_URL": bench.url, "STABILITY_DIR": str(bench.folder / "spool"), "STABILITY_RUN_ID": LIVE}
    process = subprocess.Popen([sys.executable, "-c", _JOB, str(CHARTS), str(RATE_HZ)], env=os.environ | own)
    try:
        end = time.monotonic() + 60
        while not bench.has(LIVE, 10):
            if time.monotonic() > end or process.poll() is not None:
                raise SystemExit("the live job logs nothing")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait(30)
