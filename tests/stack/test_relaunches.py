"""A job killed at any moment and launched again at once: every row once, on the branch that the trainer knows."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from stack.relaunched_rank_values import SAVE_EVERY
from stack.trainer_truth import Comparison, Truth, compared
from support.processes import Ranks, Server, agent_pid
from support.waiting import wait_until

RANKS = 2
PERIOD_S = 0.02
#: Seconds between the end of a launch and the next one: a launcher looks about as often.
PAUSE_S = 0.6


@pytest.mark.parametrize("relaunches", [3, pytest.param(50, marks=pytest.mark.soak)])
@pytest.mark.parametrize("seed", [int(os.environ.get("CHAOS_SEED", "1"))])
def test_a_job_killed_at_any_moment_and_launched_again_is_on_the_branch_that_the_trainer_knows(
    relaunches: int, seed: int, tmp_path: Path, free_port: int
) -> None:
    draw, enough = random.Random(seed), tmp_path / "enough"
    print(f"seed {seed}")
    kills: dict[str, int] = {}
    with Server(tmp_path / "data", free_port) as server:
        for launch in range(relaunches + 1):
            arguments = [str(tmp_path), str(launch), str(enough), str(PERIOD_S)]
            generation = {"TORCHELASTIC_RESTART_COUNT": str(launch)}
            with Ranks(
                "relaunched_rank.py", arguments, url=server.url, folder=tmp_path / "spool", run_id="r", **generation
            ) as job:
                if launch == relaunches:
                    wait_until(lambda n=launch: _trained(tmp_path, n, 4 * SAVE_EVERY), 60, "the last launch trains")
                    enough.touch()
                    outcomes = [lines[0] for lines in job.outputs()]
                    break
                # At every moment: of the start (before init() too), of training, of a save, of a backlog.
                moment = draw.choice(["start", "training", "training", "save", "backlog"])
                kills[moment] = kills.get(moment, 0) + 1
                if moment != "start" and launch:
                    wait_until(lambda n=launch: _trained(tmp_path, n, 1), 60, "it trains")
                if not launch:
                    wait_until(lambda: _trained(tmp_path, 0, SAVE_EVERY), 60, "the first checkpoint is made")
                if moment == "save":
                    wait_until(lambda: (tmp_path / "checkpoint.part").exists(), 20, "it saves")
                if moment == "backlog":
                    draw.choice([server.kill, lambda: os.kill(agent_pid(tmp_path / "spool", "r"), signal.SIGKILL)])()
                time.sleep(draw.uniform(0.0, 0.6))
                job.processes[draw.randrange(RANKS)].kill()
                time.sleep(draw.uniform(0.0, 0.1))  # then the launcher ends the others
            assert server.process is not None
            if server.process.poll() is not None:
                server.start()
            time.sleep(PAUSE_S)
        assert outcomes == ["delivered"] * RANKS
        truth = Truth(tmp_path / "truth")
        last = max(max(truth.effective(rank)) for rank in range(RANKS))
        server.wait_for("/runs/r", lambda run: run["last_step"] == last, "the tail is there", 60)
        print(f"{relaunches} relaunches, kills {kills}, {sum(map(len, truth.rows.values()))} rows")
        assert compared(server, "r", truth, RANKS) == Comparison([], [], [], [])


def _trained(folder: Path, launch: int, steps: int) -> bool:
    file = folder / "truth"
    if not file.exists():
        return False
    return Truth(file).trained(launch, steps, RANKS)
