"""A job whose loop a framework owns, that people give orders to, and what it wrote down of itself."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import httpx

from stabilityclient.agent.commands.downlink import Downlink
from stabilityclient.plan import write_plan
from support.processes import Server
from support.waiting import wait_until

__all__ = [
    "BATCH",
    "RESTARTS",
    "START_S",
    "Fitted",
    "Step",
    "killed_after_rollback",
    "places",
    "planned",
    "trained_until",
]

_HERE = Path(__file__).parent
#: Modules that start the ranks of a job, where the framework does not.
_LAUNCHERS = {
    "torchrun": ("torch.distributed.run", "--standalone", "--nproc-per-node"),
    # "--cpu" starts one process whatever is asked for: the job itself says that it wants the processor.
    "accelerate": (
        "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1", "--mixed_precision", "no",
        "--dynamo_backend", "no", "--main_process_port", "0", "--num_processes",
    ),
    "deepspeed": ("deepspeed.launcher.runner", "--no_local_rank", "--master_port", "29517", "--num_accelerators"),
}  # fmt: skip
#: Variables with which torchrun starts the ranks again, each time with a store of its own.
RESTARTS = {"PET_MAX_RESTARTS": "5", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
#: Samples in a batch of the job.
BATCH = 2
#: Seconds that the job may take to its first step: it imports torch and lightning.
START_S = 120.0
#: Steps from an order to stop until it is obeyed: more than the job takes while the order is written.
STOP_STEPS = 500


class Step(NamedTuple):
    """A step that the job trained, as it wrote it down."""

    number: int
    rate: float
    sample: int
    loss: float = math.nan


class Fitted:
    """The job and what a person does with it; a context that ends it, with all ranks.

    Args:
        folder: of the job. server: to which it reports.
        devices: how many ranks it has.
        script: the job; it is given its folder, the ranks and ``more``.
        launcher: ``torchrun``, ``accelerate`` or ``deepspeed``, or ``""`` for the framework's own.
        environ: variables of the job.
    """

    def __init__(
        self,
        folder: Path,
        server: Server,
        devices: int = 1,
        *more: str,
        script: str = "fitted_job.py",
        launcher: str = "",
        **environ: str,
    ) -> None:
        self.folder, self.server, self._devices = folder, server, devices
        self.run_id = f"fitted-{folder.name}"
        told = ("PYTEST", "RANK", "WORLD_SIZE", "LOCAL_", "NODE_RANK", "MASTER_", "SLURM_", "STABILITY_")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(told)}
        start = ["-m", *_LAUNCHERS[launcher], str(devices)] if launcher else []
        self.log = (folder / "log").open("w+b")
        self.process = subprocess.Popen(
            [sys.executable, *start, str(_HERE / script), str(folder), str(devices), *more],
            env=clean
            | environ
            | {
                "STABILITY_URL": server.url,
                "STABILITY_DIR": str(folder / "spool"),
                "STABILITY_RUN_ID": self.run_id,
                "OMP_NUM_THREADS": "1",
            },
            stdout=self.log,
            stderr=self.log,
        )

    def truth(self, rank: int = 0) -> list[Step]:
        """Return the steps that a rank trained, in order."""
        file = self.folder / f"truth.{rank}"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        rows = [line.split()[1:] for line in lines if line.endswith("\n")]
        return [Step(int(number), float(rate), int(sample), *map(float, more)) for number, rate, sample, *more in rows]

    def branches(self, rank: int = 0) -> list[list[Step]]:
        """Return the steps that a rank trained, of each segment."""
        found: list[list[Step]] = []
        for step in self.truth(rank):
            if not found or step.number != found[-1][-1].number + 1:
                found.append([])
            found[-1].append(step)
        return found

    def get(self, what: str = "", **params: Any) -> Any:
        """Return what the server answers of the run."""
        return self.server.get(f"/runs/{self.run_id}{what}", **params)

    def wait_for_run(self) -> None:
        """Wait until the server has rows of all ranks."""
        ranks = [*range(self._devices)]

        def there() -> bool:
            assert self.process.poll() is None, (self.folder / "log").read_text(errors="replace")[-4_000:]
            try:
                return bool(self.get()["ranks"] == ranks)
            except httpx.HTTPError:
                return False

        wait_until(there, START_S, "all ranks report")

    def wait_for_checkpoint(self, step: int, segment: int) -> None:
        """Wait until a checkpoint of a step is offered that was saved in a segment."""
        saved = {"step": step, "segment": segment, "available": True}

        def there(answer: Any) -> bool:
            return any(saved.items() <= one.items() for one in answer["checkpoints"])

        self.server.wait_for(f"/runs/{self.run_id}/checkpoints", there, f"checkpoint {saved}", START_S)

    def order(self, *, within_s: float = 60.0, **body: Any) -> dict[str, Any]:
        """Order a rollback and return the command as it ended, with ``took_s``, from the order to the end."""
        begin = time.monotonic()
        body = {"kind": "rollback", "accept_inside_incident": True} | body
        answer = httpx.post(f"{self.server.url}/api/v1/runs/{self.run_id}/commands", json=body, timeout=30)
        assert answer.status_code == 201, answer.text
        command_id = answer.json()["command_id"]

        def ended() -> dict[str, Any] | None:
            (one,) = [each for each in self.get("/commands")["commands"] if each["command_id"] == command_id]
            return one if one["state"] in ("done", "rejected", "failed", "expired") else None

        command: dict[str, Any] = wait_until(ended, within_s, "the command has ended")
        return command | {"took_s": time.monotonic() - begin}

    def stop(self, steps: int = STOP_STEPS, *, last: int | None = None) -> int:
        """Order that the job stops ``steps`` after ``last``, its newest; return the step before which it does."""
        now, step = time.time(), (self.truth()[-1].number if last is None else last) + steps
        key = self.get("/segments")["segments"][-1]["key"]
        command = {
            "command_id": "stop-1", "kind": "stop", "reason": "enough", "issuer": "ada", "issued": now,
            "expires": now + 600, "fence": {"segment": 0, "segment_key": key}, "attempt": 1, "apply_at_step": step,
            "world_size": self._devices, "state": "pending",
        }  # fmt: skip
        problems: list[str] = []
        Downlink(self.folder / "spool" / self.run_id, problems.append).take(command, 0.0)
        assert problems == []
        return step

    def ended(self) -> int:
        """Wait until the job has ended by itself, and return its exit code."""
        wait_until(lambda: self.process.poll() is not None, START_S, "the job has ended")
        return int(self.process.returncode)

    def wait(self) -> str:
        """Wait until the job has ended well by itself, and return what it printed."""
        code = self.ended()
        text = (self.folder / "log").read_text(errors="replace")
        assert code == 0, text[-4_000:]
        return text

    def __enter__(self) -> Fitted:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        while pids := self._left():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self.log.close()
        if error is not None:
            print((self.folder / "log").read_text(errors="replace")[-4_000:])

    def _left(self) -> list[int]:
        """Return the processes of the job, which a launcher that was killed leaves: torchrun's have own sessions.

        An agent is none of them: it delivers what is left and goes by itself.
        """
        own, found = f"STABILITY_DIR={self.folder / 'spool'}".encode(), []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has just ended
                belongs = own in (process / "environ").read_bytes().split(b"\0")
                if belongs and b"stabilityclient.agent" not in (process / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(process.name))
        return found


def places(branches: list[list[Step]], skip: int) -> dict[int, set[int]]:
    """Return the samples that came at each place of the data, if each rollback left out ``skip`` batches."""
    found: dict[int, set[int]] = {}
    skipped = {0: -skip}
    for branch in branches:
        so_far = skipped[branch[0].number - 1] + skip
        for step in branch:
            skipped[step.number] = so_far
            found.setdefault(step.number + so_far, set()).add(step.sample)
    return found


def planned(folder: Path, step: int, path: Path) -> None:
    """Leave the plan of a restart for the job of a folder that starts next."""
    run_id, now = f"fitted-{folder.name}", time.time()
    (folder / "spool" / run_id).mkdir(parents=True)
    plan = {"version": 1, "run_id": run_id, "written": now, "received": now, "action": "relaunch", "command_id": "p1"}
    write_plan(str(folder / "spool" / run_id), plan | {"checkpoint": {"step": step, "path": str(path)}})


def killed_after_rollback(job: Fitted, to_step: int, **changes: Any) -> dict[int, int]:
    """Order a rollback of a job with ``KILLED_AT``; return the sample that each step of its first branch had."""
    with job:
        job.wait_for_run()
        job.wait_for_checkpoint(to_step, 0)
        wait_until(lambda: job.truth()[-1].number > to_step + 100, START_S, "the first branch is long")
        assert job.order(to_step=to_step, **changes)["state"] == "done"
        assert job.ended() != 0
    return {step.number: step.sample for step in job.branches()[0]}


def trained_until(job: Fitted, step: int) -> list[Step]:
    """Let a job that was started again train up to a step, kill it, and return what it trained of that."""
    before = len(job.truth())
    with job:
        wait_until(lambda: any(one.number >= step for one in job.truth()[before:]), START_S, f"it trains step {step}")
    return [one for one in job.truth()[before:] if one.number <= step]
