"""A script that knows nothing of us, by the tee under torchrun: all it says comes, whoever is killed. Real parts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.installed import needs
from support.ports import free_port
from support.processes import Server, agent_pid
from support.waiting import wait_until

pytestmark = [
    needs("torch", "the job of this test trains with torch"),
    needs("wandb", "the job of this test logs to it"),
]

_SCRIPT = Path(__file__).parent / "teed_job.py"
#: Seconds that the job may take to its first step: it imports torch twice.
START_S = 120.0


@pytest.mark.soak
def test_values_config_and_ranks_come_and_the_death_of_the_agent_loses_none(tmp_path: Path) -> None:
    told = ("PYTEST", "RANK", "WORLD_SIZE", "LOCAL_", "STABILITY_", "WANDB_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(told)}
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with Server(tmp_path / "data", free_port()) as server, (tmp_path / "log").open("w+b") as log:
        env = clean | {"STABILITY_URL": server.url, "STABILITY_DIR": str(tmp_path / "spool"), "OMP_NUM_THREADS": "1"}
        job = subprocess.Popen(
            [sys.executable, *launch, "-m", "stabilityclient.tee", "--run-id", "theirs", str(_SCRIPT), str(tmp_path)],
            env=env,
            stdout=log,
            stderr=log,
        )
        try:
            server.wait_for("/runs/theirs", lambda run: run["config"].get("lr") == 0.5, "its config is there", START_S)
            server.wait_for("/runs/theirs", lambda run: (run["last_step"] or 0) >= 8, "it trains")
            os.kill(agent_pid(tmp_path / "spool", "theirs"), signal.SIGKILL)
            seen = len(lines(tmp_path))
            wait_until(lambda: len(lines(tmp_path)) > seen + 20, 60, "it trains on")
            (tmp_path / "enough").touch()
            assert job.wait(START_S) == 0, (tmp_path / "log").read_text()
        finally:
            if job.poll() is None:
                job.terminate()  # torchrun ends its ranks
                job.wait(60)
        run = server.wait_for("/runs/theirs", lambda run: run["status"] == "finished", "it has finished", 60)
        told_us = server.get("/runs/theirs/series", metric="train/loss")["series"]

    points = [[*point] for one in told_us for point in zip(one["steps"], one["values"], strict=True)]
    assert points == [json.loads(line) for line in lines(tmp_path)]
    assert (run["config"]["layers"], run["config"]["wandb"]["project"]) == (2, "theirs")
    assert run["world_size"] == 2


def lines(folder: Path) -> list[str]:
    file = folder / "truth"
    return file.read_text().splitlines() if file.exists() else []
