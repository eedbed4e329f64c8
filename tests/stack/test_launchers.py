"""Under launchers that tell their processes little, an order is carried out on all ranks or on none: real jobs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.installed import needs
from support.ports import free_port
from support.processes import Server
from support.waiting import wait_until

pytestmark = needs("lightning", "the job of this test needs torch and lightning")

_HERE = Path(__file__).parent
#: Seconds that a job may take to its first step: it imports torch twice.
START_S = 120.0


class Launched:
    """A job that a script starts by itself, with nothing of a launcher in its environment."""

    def __init__(self, script: str, folder: Path, server: Server, *more: str) -> None:
        self.folder, self.enough, self._server = folder, folder / "enough", server
        told = ("PYTEST", "RANK", "WORLD_SIZE", "LOCAL_", "NODE_RANK", "MASTER_", "SLURM_", "STABILITY_")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(told)}
        self.log = (folder / "log").open("w+b")
        self.process = subprocess.Popen(
            [sys.executable, str(_HERE / script), str(folder), str(self.enough), *more],
            env=clean | {"STABILITY_URL": server.url, "STABILITY_DIR": str(folder / "spool"), "OMP_NUM_THREADS": "1"},
            stdout=self.log,
            stderr=self.log,
        )

    def truth(self, rank: int) -> list[str]:
        """Return what a rank says that it did."""
        file = self.folder / f"truth.{rank}"
        return file.read_text().splitlines() if file.exists() else []

    def backs(self) -> list[list[str]]:
        """Return the rollbacks that each rank made."""
        return [[line for line in self.truth(rank) if line.startswith("back")] for rank in (0, 1)]

    def runs(self) -> dict[str, Any]:
        """Return the runs of this job that the server knows, by id."""
        try:
            runs = self._server.get("/runs")["runs"]
        except httpx.HTTPError:
            return {}
        return {run["run_id"]: run for run in runs if run["project"] == self.folder.name}

    def order(self, run_id: str, draw: random.Random) -> dict[str, Any]:
        """Order a rollback to any step that the server has heard of; return the command as it ended."""
        reached = self._server.wait_for(f"/runs/{run_id}", lambda run: (run["last_step"] or 0) > 1, "it trains")
        body = {"kind": "rollback", "to_step": draw.randrange(reached["last_step"])}
        answer = httpx.post(f"{self._server.url}/api/v1/runs/{run_id}/commands", json=body, timeout=30)
        assert answer.status_code == 201, answer.text
        command_id = answer.json()["command_id"]

        def ended() -> dict[str, Any] | None:
            commands = self._server.get(f"/runs/{run_id}/commands")["commands"]
            (one,) = [command for command in commands if command["command_id"] == command_id]
            return one if one["state"] in ("done", "rejected", "failed", "expired") else None

        return wait_until(ended, 60, "the command has ended")  # type: ignore[no-any-return]

    def end(self) -> str:
        """Let the job end by itself and return what it printed."""
        self.enough.touch()
        code = self.process.wait(60)
        text = (self.folder / "log").read_text(errors="replace")
        assert code == 0, text[-2_000:]
        return text


@contextmanager
def launched(script: str, folder: Path, server: Server, *more: str) -> Iterator[Launched]:
    """Start a job and wait until both of its processes train."""
    job = Launched(script, folder, server, *more)
    try:
        wait_until(lambda: all(len(job.truth(rank)) > 5 for rank in (0, 1)), START_S, "both ranks train")
        yield job
    finally:
        if job.process.poll() is None:
            job.process.kill()
            job.process.wait()
        job.log.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server") / "data", free_port()) as server:
        yield server


@pytest.mark.soak
@pytest.mark.parametrize("orders", [1, 20])
@pytest.mark.parametrize(
    ("script", "more"),
    [("lightning_job.py", ()), ("spawn_job.py", ("late",))],
)
def test_an_order_is_carried_out_by_both_processes_or_by_none(
    script: str, more: tuple[str, ...], orders: int, tmp_path: Path, server: Server
) -> None:
    draw = random.Random(f"{script} {orders}")
    ended: list[dict[str, Any]] = []
    with launched(script, tmp_path, server, *more) as job:
        (run_id,) = wait_until(job.runs, 30, "the server knows the run")
        server.wait_for(f"/runs/{run_id}", lambda run: run["ranks"] == [0, 1], "both ranks are heard of")
        for _ in range(orders):
            time.sleep(draw.uniform(0.0, 0.5) if orders > 1 else 0.0)  # a random moment: nothing is waited for
            ended.append(job.order(run_id, draw))
            wait_until(lambda: len({tuple(backs) for backs in job.backs()}) == 1, 20, "both ranks did the same")
        both = job.backs()
        job.end()
        assert set(job.runs()) == {run_id}
    assert both[0] == both[1]
    states = Counter(command["state"] for command in ended)
    print(f"{script}, {orders} orders: {len(both[0])} on both ranks, {orders - len(both[0])} on none; {dict(states)}")
    assert len(both[0]) == states["done"] > 0, [command["history"] for command in ended]


@pytest.mark.soak
def test_processes_that_call_init_before_they_know_who_they_are_refuse_and_the_job_lives(
    tmp_path: Path, server: Server
) -> None:
    with launched("spawn_job.py", tmp_path, server, "early") as job:
        wait_until(lambda: len(job.runs()) == 2, 30, "the server knows what it takes for two runs")
        ended = [job.order(run_id, random.Random(0)) for run_id in sorted(job.runs())]
        assert [command["state"] for command in ended] == ["rejected"] * 2
        why = " ".join(note["detail"] for command in ended for note in command["history"])
        assert "torch.distributed says rank 1 of 2" in why
        assert job.backs() == [[], []]
        job.end()
