"""One rank of a small job in which a fault happens: ``python rank.py PLAN`` with PLAN as JSON, see ``DEFAULTS``.

The job is made of what every training loop has: a loader with a thread of its own, phases, a collective in backward,
checkpoints, evaluations. What it computes is sleep: only the shape in time matters here, and a machine of two cores
has to carry many such jobs.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import stabilityclient
from collective import Group, open_group

DEFAULTS: dict[str, Any] = {
    "fault": "",  # name of a fault of catalog.py, "" for a healthy job
    "rank": 1,  # the rank that it happens on
    "step": 60,  # the step in which it happens
    "stop": 100_000,  # first step that is not run
    "period_s": 0.1,  # seconds of a step
    "group": "torch",  # or hub:PATH
    "mark": "",  # file that gets the unix seconds at which the fault happens
    "cgroup": "",  # memory cgroup to go into before eating memory
    "checkpoint_every": 0,  # steps, 0: never
    "checkpoint_s": [1.0],  # seconds of each checkpoint in turn
    "eval_every": 0,
    "eval_s": [1.0],
}


class Loader:
    """A data loader as they are: a worker fills a queue, the rank takes from it."""

    def __init__(self) -> None:
        self._batches: queue.Queue[int] = queue.Queue(maxsize=2)
        self.broken = threading.Event()
        threading.Thread(target=self._work, name="loader", daemon=True).start()

    def _work(self) -> None:
        batch = 0
        while not self.broken.is_set():
            self._batches.put(batch)
            batch += 1

    def next(self) -> int:
        """Return the next batch; waits for it."""
        return self._batches.get()

    def drain(self) -> None:
        """Let the worker die and take what it left: the next batch never comes."""
        self.broken.set()
        while True:
            try:
                self._batches.get(timeout=0.2)
            except queue.Empty:
                return


class Job:
    """One rank's loop."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.rank = int(os.environ["RANK"])
        self.group: Group = open_group(plan["group"])
        self.loader = Loader()
        self.run = stabilityclient.init(project="faults", name=plan["fault"] or "healthy")
        self.slow = 1.0

    def train(self) -> None:
        """Run until the plan's end, or until the fault ends it."""
        checkpoints, evals = 0, 0
        for step in self.run.steps(1, self.plan["stop"]):
            began = time.perf_counter()
            self._step(step)
            if self.rank == 0:
                seconds = time.perf_counter() - began
                self.run.log(step, {"loss": 2.0 + 3.0 / step, "step_time_s": seconds, "tokens_per_s": 8192 / seconds})
            if self._due("checkpoint_every", step):
                with self.run.phase("checkpoint"):
                    time.sleep(self.plan["checkpoint_s"][checkpoints % len(self.plan["checkpoint_s"])])
                checkpoints += 1
            if self._due("eval_every", step):
                with self.run.phase("eval"):
                    time.sleep(self.plan["eval_s"][evals % len(self.plan["eval_s"])])
                evals += 1
        self.run.finish()

    def _due(self, every: str, step: int) -> bool:
        return bool(self.plan[every]) and step % self.plan[every] == 0

    def _step(self, step: int) -> None:
        here = self.plan["fault"] and step == self.plan["step"] and self.rank == self.plan["rank"]
        fault = getattr(self, f"_{self.plan['fault']}", None) if here else None
        if step == self.plan["step"] and self.plan["fault"] == "slow_all":
            self.slow = 4.0
            self._mark()
        with self.run.phase("data"):
            if here and self.plan["fault"] == "data_loader":
                self._mark()
                self.loader.drain()
            self.loader.next()
            if here and self.plan["fault"] == "slow_data":
                self._mark()
            late = self.plan["fault"] == "slow_data" and self.rank == self.plan["rank"] and step >= self.plan["step"]
            time.sleep((6.0 if late else 0.2) * self.plan["period_s"])
        with self.run.phase("forward"):
            time.sleep(0.3 * self.slow * self.plan["period_s"])
            if fault is not None:
                self._mark()
                fault()
        with self.run.phase("backward"):
            time.sleep(0.3 * self.slow * self.plan["period_s"])
            self.group.all_reduce()
        with self.run.phase("optimizer"):
            time.sleep(0.1 * self.plan["period_s"])

    def _mark(self) -> None:
        if self.plan["mark"]:
            path = Path(f"{self.plan['mark']}.{self.rank}")
            if not path.exists():
                part = Path(f"{path}.part")  # of this rank alone: with slow_all each one marks
                part.write_text(repr(time.time()))
                part.replace(path)

    # --- the faults, by their name in catalog.py ------------------------------------------------------------------

    def _peer_missing(self) -> None:
        """This rank's data end first: it leaves the loop, and the others wait for it in their next collective."""
        self.group.leave()
        self.run.finish()
        time.sleep(3600)

    def _livelock(self) -> None:
        spins = 0
        while True:
            spins += 1

    def _gil_held(self) -> None:
        library, semaphore = ctypes.PyDLL(None), ctypes.create_string_buffer(64)  # PyDLL keeps the interpreter's lock
        library.sem_init(semaphore, 0, 0)
        library.sem_wait(semaphore)  # not sleep: the dump's signal would end it, and the fault with it

    def _blocked(self) -> None:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

    def _stopped(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def _sigkill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _segfault(self) -> None:
        ctypes.string_at(0)

    def _abort(self) -> None:
        os.abort()

    def _exit_code(self) -> None:
        os._exit(3)

    def _exception(self) -> None:
        raise RuntimeError("shape mismatch in layer 7")

    def _oom(self) -> None:
        (Path(self.plan["cgroup"]) / "cgroup.procs").write_text(str(os.getpid()))
        eaten = []
        while True:
            eaten.append(bytearray(b"x") * (8 * 1024 * 1024))

    def _checkpoint_hang(self) -> None:
        with self.run.phase("checkpoint", expect_s=2.0):
            time.sleep(3600)


if __name__ == "__main__":
    Job(DEFAULTS | json.loads(sys.argv[1])).train()
