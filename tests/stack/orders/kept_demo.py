"""The demo's job under a launcher that asks for the plan, and what each rank wrote down (``demo_rank.py``)."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from stabilityplugins.demo.processes import ManagedProcess, training_command
from support.processes import Server, agent_pid
from support.waiting import wait_until

__all__ = ["RANKS", "KeptDemo", "Note", "effective"]

RANKS = (0, 1)
#: What a rank wrote down: what it did, and of what.
Note = list[Any]
#: A start on two busy cores imports torch twice.
START_S = 120.0


class KeptDemo:
    """Two ranks of ``examples/multimodal/train.py``, started again whenever the plan says so; a context.

    Args:
        server: to which it reports. folder: of its truth, spool and checkpoints.
    """

    run_id = "demo"

    def __init__(self, server: Server, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.spool = folder / "spool"
        self.starts = 0
        #: The plan said that only a person starts it again.
        self.stays_down = False
        self.process: ManagedProcess | None = None

    def start(self) -> None:
        """Start it, as a person does: from where it was."""
        folder = self.folder
        arguments = ["--steps", "1000000", "--rows", "3", "--resume", "--checkpoint-every", "10"]
        arguments += ["--checkpoint-dir", str(folder / "checkpoints"), "--data-cache", str(folder / "tokens")]
        command = training_command(Path(__file__).with_name("demo_rank.py"), len(RANKS), [str(folder), *arguments])
        env = {"STABILITY_URL": self.server.url, "STABILITY_DIR": str(self.spool), "STABILITY_RUN_ID": self.run_id}
        env |= {"STABILITY_MODE": "online", "STABILITY_FINISH_S": "10", "OMP_NUM_THREADS": "1"}
        self.starts += 1
        self.stays_down = False
        self.process = ManagedProcess(command, log=folder / f"job.{self.starts}.log", env=env)

    def keep(self) -> None:
        """Do what a launcher does when its job has ended: what the plan says."""
        assert self.process is not None
        if self.process.running or self.stays_down:
            return
        self.end()
        try:
            action = self.server.get(f"/runs/{self.run_id}/plan")["action"]
        except httpx.HTTPError:
            return  # the server is away: asked again
        if action.startswith("relaunch"):
            self.start()
        self.stays_down = action == "stop"

    def until(self, condition: Callable[[], Any], timeout_s: float, what: str) -> Any:
        """Return what ``condition`` says once it is true; meanwhile the launcher does its work."""

        def check() -> Any:
            self.keep()
            return condition()

        return wait_until(check, timeout_s, what)

    def end(self) -> None:
        """kill -9 of the launcher and of ranks that it left, each of which has a session of its own."""
        if self.process is not None:
            self.process.end(0.0)
        for rank in RANKS:
            for pid in [note[1] for note in self.truth(rank) if note[0] == "begin"]:
                with suppress(OSError):
                    if b"demo_rank.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.kill(pid, signal.SIGKILL)

    # --- what it did ---------------------------------------------------------------------------------------------

    def truth(self, rank: int) -> list[Note]:
        """Return what a rank wrote down, oldest first."""
        file = self.folder / f"truth.{rank}"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def steps_since_begin(self) -> int:
        """Return how many steps both ranks have trained since they started."""
        found = []
        for rank in RANKS:
            notes = self.truth(rank)
            last = max((at for at, note in enumerate(notes) if note[0] == "begin"), default=len(notes))
            found.append(sum(note[0] == "step" for note in notes[last:]))
        return min(found)

    def trains_on(self, steps: int = 3) -> None:
        """Wait until both ranks have trained so many steps from now on, the job being started again if it has to."""
        marks = [len(self.truth(rank)) for rank in RANKS]

        def trained() -> bool:
            return all(
                sum(note[0] == "step" for note in self.truth(rank)[mark:]) >= steps
                for rank, mark in zip(RANKS, marks, strict=True)
            )

        self.until(trained, START_S, f"both ranks train {steps} steps more")

    # --- orders --------------------------------------------------------------------------------------------------

    def get(self, what: str, **params: Any) -> Any:
        """Return what the server answers of the run, None where it does not."""
        try:
            return self.server.get(f"/runs/{self.run_id}{what}", **params)
        except httpx.HTTPError:
            return None

    def order(self, key: str, make: Callable[[], dict[str, Any] | None]) -> tuple[dict[str, Any], list[str]]:
        """Order once, however often that takes; return the command and why it was refused before.

        Args:
            make: the order as it fits the run now, None: not yet.
        """
        refused: list[str] = []

        def taken() -> dict[str, Any] | None:
            order = make()
            if order is None:
                return None
            body = order | {"idempotency_key": key, "reason": key}
            answer = httpx.post(f"{self.server.url}/api/v1/runs/{self.run_id}/commands", json=body, timeout=10)
            if answer.status_code == 201:
                return dict(answer.json())
            why = str(answer.json()["error"]["message"])
            if why not in refused:
                refused.append(why)
            time.sleep(0.1)
            return None

        return self.until(taken, START_S, f"the order {key} is taken"), refused

    def kill(self, victim: str, rank: int) -> None:
        """kill -9 of the server (which is started again), the agent, or a rank; "nobody" of nobody."""
        if victim == "server":
            self.server.kill()
            self.server.start()
        elif victim == "agent":
            with suppress(ProcessLookupError):
                os.kill(agent_pid(self.spool, self.run_id), signal.SIGKILL)
        elif victim == "rank":
            begun = [note[1] for note in self.truth(rank) if note[0] == "begin"]
            with suppress(ProcessLookupError):
                os.kill(begun[-1], signal.SIGKILL)

    def __enter__(self) -> KeptDemo:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def effective(notes: list[Note]) -> list[tuple[int, float]]:
    """Return step and loss of what the model in memory has learned, from what rank 0 wrote down."""
    path: list[tuple[int, float]] = []
    saved: dict[str, list[tuple[int, float]]] = {}
    for what, *about in notes:
        if what == "begin":
            path = []
        elif what == "step":
            path.append((about[0], about[1]))
        elif what == "saved":
            saved[about[1]] = [*path]
        elif what == "restored":
            path = [*saved[about[1]]]
    return path
